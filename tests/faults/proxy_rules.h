/*
 * Which request meets which fault, by rules and one seed, and the counts of what really happened.
 * A rule is one word: KIND:VERB:HOW[:ms=N], VERB a function of the queue without its prefix
 * ("complete"), a command in small letters ("bzpopmin"), or "*"; HOW p=0.02 (by chance), every=N,
 * or k=N (the N-th such request alone, from 1). ms: how long stall and block last.
 */
#ifndef EVQ_TESTS_FAULTS_PROXY_RULES_H
#define EVQ_TESTS_FAULTS_PROXY_RULES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/faults/proxy_resp.h"

enum proxy_fault {
    PROXY_NONE,
    PROXY_STALL,       // The request waits, and all that follows it on its connection.
    PROXY_HALF_CLOSE,  // It is forwarded; the client is told that nothing more will be said.
    PROXY_RESET,       // Not forwarded; the client's connection is reset.
    PROXY_CUT_REQUEST, // Not forwarded; both ends are closed.
    PROXY_CUT_REPLY,   // Redis has answered: both ends are closed, nothing of the reply is passed.
    PROXY_CUT_MIDDLE,  // The first half of the reply is passed, then both ends are closed.
    PROXY_DRIP,        // The reply is passed a byte at a time.
    PROXY_GARBAGE,     // Bytes that are no reply are passed in its place, then both are closed.
    PROXY_BLOCK,       // Requests pass, replies do not; after ms both ends are closed.
    PROXY_FAULTS
};

struct proxy_rules;
struct proxy_rules *proxy_rules_new(uint64_t seed); // NULL: no memory.
void proxy_rules_free(struct proxy_rules *rules);   // Accepts NULL.

/* False, with a sentence on standard error, when it is no rule. */
bool proxy_rules_add(struct proxy_rules *rules, const char *text);
void proxy_rules_clear(struct proxy_rules *rules); // Counts stay.

/* A random number of the seed's. */
uint64_t proxy_rules_random(struct proxy_rules *rules);

/* The number by which counts know the verb of a request; -1: no more of them fit. */
int proxy_rules_verb(struct proxy_rules *rules, const struct proxy_word *words, size_t count);
const char *proxy_rules_verb_name(const struct proxy_rules *rules, int verb);

/* Counts the request and says what it meets. */
enum proxy_fault proxy_rules_meet(struct proxy_rules *rules, int verb, int64_t *ret_ms);

void proxy_rules_happened(struct proxy_rules *rules, enum proxy_fault fault, int verb);

/* "requests VERB N" and "fault KIND VERB N" of all that are not 0, a line each. */
void proxy_rules_print(const struct proxy_rules *rules, FILE *out);

#endif
