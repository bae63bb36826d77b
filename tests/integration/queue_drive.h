/*
 * Sends random operations to the server and to the model, and compares the answers.
 */
#ifndef EVQ_TESTS_INTEGRATION_QUEUE_DRIVE_H
#define EVQ_TESTS_INTEGRATION_QUEUE_DRIVE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/queue.h"
#include "tests/fixture/queue_model.h"
#include "tests/fixture/random.h"

enum { OPERATIONS = 24000, ROUND = 240, TOKENS_MAX = 512, WORDS_MAX = 64 };

static const char *const operation_names[] = {
    "submit",  "duplicate", "replaced",  "followed", "skipped", "claim",  "claimed",     "repeat",
    "none",    "publish",   "changed",   "complete", "stale",   "fail",   "dead",        "release",
    "split",   "shard",     "merge",     "beat",     "cancel",  "regain", "look",        "reclaim",
    "promote", "retry",     "retry_new", "pause",    "limit",   "forget", "lowest_first"};
enum event {
    SUBMIT,
    DUPLICATE,
    REPLACED,
    FOLLOWED,
    SKIPPED,
    CLAIM,
    CLAIMED,
    REPEAT,
    NONE,
    PUBLISH,
    CHANGED,
    COMPLETE,
    STALE,
    FAIL,
    DEAD,
    RELEASE,
    SPLIT,
    SHARD,
    MERGE,
    BEAT,
    CANCEL,
    REGAIN,
    LOOK,
    RECLAIM,
    PROMOTE,
    RETRY,
    RETRY_NEW,
    PAUSE,
    LIMIT,
    FORGET,
    LOWEST_FIRST,
    EVENT_COUNT
};

struct held {
    char id[EVQ_JOB_ID_BYTES_MAX];
    char token[EVQ_QUEUE_TOKEN_BYTES_MAX];
};

struct drive {
    struct fixture *fx;
    struct model *m;
    uint64_t seed;
    uint64_t random;
    int operation;
    char what[512]; // The operation, for the failure message.
    int64_t events[EVENT_COUNT];
    struct held held[TOKENS_MAX]; // All tokens of this round, valid or old.
    int held_count;
    uint64_t request;
    char last_request[32];
    char last_worker[16];
    unsigned last_suites;
    struct held last_rows[8];
    int last_count;
};

static inline uint64_t roll(struct drive *d, uint64_t below)
{
    return fixture_random(&d->random) % below;
}

static inline void broken(struct drive *d, const char *want, const char *got)
{
    fail_msg("seed %llu operation %d: %s: want %s, got %s", (unsigned long long)d->seed,
             d->operation, d->what, want, got);
}

/* Calls evalq_v1_FUNCTION with C strings; NULL ends them. */
static inline struct evq_reply *ask(struct drive *d, const char *function, ...)
{
    struct evq_error err = {EVQ_OK, ""};
    char name[64];
    const char *words[WORDS_MAX] = {"FCALL", name, "1", evq_queue_prefix(d->fx->queue)};
    size_t count = 4;
    va_list list;

    (void)snprintf(name, sizeof name, "evalq_v1_%s", function);
    va_start(list, function);
    for (const char *word = va_arg(list, const char *); word != NULL;
         word = va_arg(list, const char *)) {
        assert_true(count < WORDS_MAX);
        words[count++] = word;
    }
    va_end(list);
    struct evq_reply *reply = NULL;
    if (evq_conn_call(d->fx->raw, count, words, NULL, 0, &reply, &err) != EVQ_OK) {
        broken(d, "a reply", err.message);
    }
    return reply;
}

static inline const char *word_of(const struct evq_reply *reply)
{
    const struct evq_reply *word = reply->type == EVQ_REPLY_ARRAY ? reply->items[0] : reply;
    return word->text == NULL ? "" : word->text;
}

static inline void expect(struct drive *d, struct evq_reply *reply, const char *want)
{
    if (strcmp(word_of(reply), want) != 0) {
        broken(d, want, word_of(reply));
    }
    evq_reply_free(reply);
    if (strcmp(want, "stale") == 0) {
        d->events[STALE]++;
    }
}

static inline void compare(struct drive *d)
{
    char want[512];
    char got[512];
    if (!fixture_model_compare(d->fx, d->m, want, got)) {
        broken(d, want, got);
    }
}

#endif
