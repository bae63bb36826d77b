/*
 * The log of one attempt, as its worker writes it: SCRATCH/logs/ID.aATTEMPT.QUEUE.log, with '_' for
 * each '/' of the id. QUEUE begins as the epoch of the queue's data: all queues of a user's share
 * one scratch, and jobs of the same name. Any thread.
 */
#ifndef EVQ_SHARED_ATTEMPT_LOG_H
#define EVQ_SHARED_ATTEMPT_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* epoch: as info gives it; "": of no queue. false: it does not fit, or the id is longer than one
 * can be. */
bool evq_attempt_log_path(const char *scratch, const char *epoch, const char *id, int64_t attempt,
                          char *out, size_t out_bytes);
/* At most bytes_max bytes of its end, malloc()ed, NUL-terminated past *ret_bytes; NULL when it
 * cannot be read: it is not on this host, or no regular file. */
char *evq_attempt_log_tail(const char *path, size_t bytes_max, size_t *ret_bytes);

#endif
