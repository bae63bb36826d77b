/*
 * What every kind of evaluator takes and reports when it turns a checkpoint and a suite into
 * results. An evaluator lives in the child of one slot; one thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_EVALUATOR_H
#define EVQ_WORKER_EVALUATORS_EVALUATOR_H

#include <string.h>

#include "shared/config/config.h"
#include "shared/queue/job.h"
#include "shared/queue/result.h"

struct evq_eval_request {
    const struct evq_config *config;
    const struct evq_suite *suite;
    const struct evq_job *job; // NULL for `evalq-worker eval`.
    const char *id;            // The job's id with its generation; NULL: there is no job.
    const char *variant;       // Which weights, if job is NULL; NULL: regular.
    int root_fd;               // The directory that contains the checkpoint.
    const char *root_path;     // Its absolute path, for commands and messages.
    const char *path;          // Relative to root_fd.
    // The job's fingerprint is that of a remote listing. The fetch has compared it already.
    bool is_fetched;
    // "", or the absolute path of the directory that `prepare` made; it is evaluated instead of
    // path.
    const char *prepared;
    int32_t shard;       // -1: all data.
    int32_t shard_count; // 0: not sharded. Shard s takes samples i with i mod shard_count == s.
    const char *const *tasks_done; // Names of tasks that are already published.
    size_t task_done_count;
    const char *scratch; // Directory of this attempt; removed by the supervisor.
    int32_t attempt;
    // Id of the keyspace in Redis that the job comes from (Redis calls it epoch); NULL: no queue.
    // It is used in the name of the log.
    const char *keyspace;
};

/* Which weights are evaluated; never NULL. */
static inline const char *evq_eval_variant(const struct evq_eval_request *request)
{
    const char *variant = request->job != NULL ? request->job->variant : request->variant;

    return variant != NULL ? variant : "regular";
}

/* Whether an earlier attempt published this task. */
static inline bool evq_eval_task_is_done(const struct evq_eval_request *request, const char *name)
{
    for (size_t i = 0; i < request->task_done_count; i++) {
        if (strcmp(request->tasks_done[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* How an evaluator reports to the main loop of its child. Each call may return EVQ_E_STOPPED: the
 * job is cancelled, so return at once. Any other failure of task() is the failure of the
 * evaluation, with its message. */
struct evq_eval_report {
    void *context;
    enum evq_status (*progress)(void *context, int64_t done, int64_t total, const char *status);
    /* result has task, metrics, sums, n, timing, digests, backend and device set. The caller adds
     * the rest. */
    enum evq_status (*task)(void *context, const struct evq_result *result, struct evq_error *err);
};

#endif
