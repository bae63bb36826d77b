/*
 * The log of one attempt, as its worker writes it: SCRATCH/logs/ID.aATTEMPT.QUEUE.log, with '_' for
 * each '/' of the id. QUEUE is the beginning of the queue's epoch, because all queues of a user
 * share one scratch directory and may have jobs of the same name. Any thread.
 */
#ifndef EVQ_SHARED_QUEUE_ATTEMPT_LOG_H
#define EVQ_SHARED_QUEUE_ATTEMPT_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* epoch as evq_queue_info() returns it; "": no queue. False: the path does not fit, or the id is
 * too long. */
bool evq_attempt_log_path(const char *scratch, const char *epoch, const char *id, int64_t attempt,
                          char *out, size_t out_bytes);
/* Returns the last bytes of a log, at most bytes_max, NUL-terminated after *ret_bytes; the caller
 * frees it. NULL: it cannot be read, because it is on another host or not a regular file. */
char *evq_attempt_log_tail(const char *path, size_t bytes_max, size_t *ret_bytes);

#endif
