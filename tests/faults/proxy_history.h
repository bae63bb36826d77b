/*
 * What real programs asked of the queue and what Redis answered, as lines of a history
 * (history.py): the proxy writes them in the place of programs that do not.
 */
#ifndef EVQ_TESTS_FAULTS_PROXY_HISTORY_H
#define EVQ_TESTS_FAULTS_PROXY_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/faults/proxy_resp.h"

struct proxy_history;
/* Appends to path; name stands before the connection's number in each line. NULL: it cannot be
 * opened, said on standard error. */
struct proxy_history *proxy_history_open(const char *path, const char *name);
void proxy_history_close(struct proxy_history *history); // Accepts NULL.

/* Whether the replies of this verb are wanted with their requests. */
bool proxy_history_wants(const struct proxy_history *history, const char *verb);

/* A request is forwarded. link and call name it. */
void proxy_history_asked(struct proxy_history *history, uint64_t link, uint64_t call,
                         const char *verb, struct proxy_word request);
/* Its reply has come from Redis, whatever becomes of it; reply.bytes 0: the server went before. */
void proxy_history_answered(struct proxy_history *history, uint64_t link, uint64_t call,
                            const char *verb, struct proxy_word request, struct proxy_word reply);

#endif
