/* Names of runs, variants and suites, and the ids of jobs that they form. Any thread. */
#ifndef EVQ_SHARED_QUEUE_JOB_ID_H
#define EVQ_SHARED_QUEUE_JOB_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_JOB_RUN_BYTES_MAX  64  // Names of runs.
#define EVQ_JOB_NAME_BYTES_MAX 32  // Names of variants, suites, tasks.
#define EVQ_JOB_ID_BYTES_MAX   192 // RUN/STEP/VARIANT/SUITE[~G][@SHARD] and the NUL.
#define EVQ_JOB_STEP_MAX       ((int64_t)1 << 40)

/* Whether text is 1 to bytes_max bytes of [A-Za-z0-9._-], and not "." or "..". */
bool evq_job_name_valid(const char *text, size_t bytes_max);

/* The parts of an id. They point into scratch, which must hold EVQ_JOB_ID_BYTES_MAX. */
struct evq_job_name {
    const char *run;
    int64_t step;
    const char *variant;
    const char *suite;
    int32_t generation; // 1 for none given.
    int32_t shard;      // -1: not a shard.
};
enum evq_status evq_job_id_parse(const char *id, char scratch[EVQ_JOB_ID_BYTES_MAX],
                                 struct evq_job_name *ret_name,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Maps any text to a legal name of at most bytes_max bytes of [A-Za-z0-9._-]; a name that had to be
 * changed gets "-" and 8 hex digits of its hash, so that different texts stay different. out holds
 * bytes_max + 1.
 */
void evq_job_map_name(const char *text, size_t bytes_max, char *out);

#endif
