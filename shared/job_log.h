/*
 * The log of one attempt, as its worker writes it: SCRATCH/logs/ID.aATTEMPT.log, with '_' for each
 * '/' of the id. Any thread.
 */
#ifndef EVQ_SHARED_JOB_LOG_H
#define EVQ_SHARED_JOB_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* false: it does not fit, or the id is longer than one can be. */
bool evq_job_log_path(const char *scratch, const char *id, int64_t attempt, char *out,
                      size_t out_bytes);
/* At most bytes_max bytes of its end, malloc()ed, NUL-terminated past *ret_bytes; NULL when it
 * cannot be read: it is not on this host, or no regular file. */
char *evq_job_log_tail(const char *path, size_t bytes_max, size_t *ret_bytes);

#endif
