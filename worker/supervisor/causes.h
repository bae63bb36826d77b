/*
 * Everything that can go wrong around a job, and what the supervisor does about it, in one table.
 * The waiting times, limits and words of the supervisor's retries stand here and nowhere else.
 * The supervisor's single thread.
 */
#ifndef EVQ_WORKER_SUPERVISOR_CAUSES_H
#define EVQ_WORKER_SUPERVISOR_CAUSES_H

#include "shared/queue/queue.h"

/* If so many different jobs crash in a row, the fault is the worker's and not the jobs'. */
#define EVQ_CAUSE_CRASHED_JOBS_MAX 3

enum evq_cause {
    // Why the supervisor ends a job, or why the end of its job does not count as a failure.
    EVQ_CAUSE_NONE,      // Nothing: what the child reports counts.
    EVQ_CAUSE_TIMEOUT,   // The job ran longer than its suite allows.
    EVQ_CAUSE_HANG,      // The child was silent for EVQ_SLOT_HANG_MS.
    EVQ_CAUSE_CANCELLED, // Somebody cancelled the job.
    EVQ_CAUSE_STALE,     // Another worker owns the job now.
    EVQ_CAUSE_RELEASED,  // The worker drains, or lost the GPU.
    EVQ_CAUSE_DISK_FULL, // Scratch is full or read-only, or no file can be opened.
    // Why something else is tried again later.
    EVQ_CAUSE_FORK_FAILED,   // The child could not be forked.
    EVQ_CAUSE_CHILD_FAILED,  // The child did not start, or its device failed.
    EVQ_CAUSE_SLOT_OUT,      // That happened several times in a row.
    EVQ_CAUSE_JOBS_CRASH,    // Several different jobs crashed in a row.
    EVQ_CAUSE_REDIS_LOADING, // At the start of the worker, Redis is not ready yet.
    EVQ_CAUSE_REDIS_AWAY,    // Redis does not answer, or refuses for a reason that passes.
    EVQ_CAUSE_REDIS_REFUSES, // Redis refuses one command, and will until somebody repairs it.
    EVQ_CAUSE_COUNT
};

enum evq_cause_job {       // What happens to the job.
    EVQ_CAUSE_JOB_KEEP,    // Nothing: the cause ends no job.
    EVQ_CAUSE_JOB_DROP,    // The worker forgets it and tells Redis nothing.
    EVQ_CAUSE_JOB_RELEASE, // It goes back to the queue, and its attempt is not charged.
    EVQ_CAUSE_JOB_FAIL     // It failed, and its attempt is charged.
};

struct evq_cause_rule {
    const char *name; // The word for it in the log.
    enum evq_cause_job job;
    enum evq_fail_kind fail; // If the job fails: the kind and the reason; NULL: the child's reason.
    const char *fail_reason;
    bool suite_ran;     // The suite found what it needs on this machine.
    int64_t first_ms;   // Wait before the first retry; each further wait is twice as long.
    int64_t most_ms;    // The longest wait.
    uint32_t limit;     // Times in a row until the next remedy; 0: no limit.
    const char *status; // What `evalq status` shows as the worker's state; NULL: nothing.
};

/* How often something failed in a row, and when to try it again. Starts as zeros. */
struct evq_backoff {
    uint32_t tries;
    int64_t until_ms; // Monotonic; 0: now.
};

const struct evq_cause_rule *evq_cause_rule(enum evq_cause cause);

/* How long to wait after `tries` earlier failures. seed spreads the waits by 25 %, so that machines
 * do not retry in step; NULL: exact. */
int64_t evq_cause_wait_ms(enum evq_cause cause, uint32_t tries, uint64_t *seed);

/* Counts one more failure and sets until_ms. Returns true for the first in a row: log that one. */
bool evq_cause_count_failure(enum evq_cause cause, struct evq_backoff *backoff, uint64_t *seed);

#endif
