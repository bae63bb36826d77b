/*
 * Loads the weights of the job that may come next into a second set of device memory, on a thread
 * of its own, while the present job computes. When that job arrives, its files decide whether the
 * weights are used. If the device supports only one set of weights, or has no memory for two,
 * nothing is prefetched. Only the evaluator's thread calls these functions.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_PREFETCH_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_PREFETCH_H

#include "worker/evaluators/evaluator.h"
#include "worker/loader/loader.h"
#include "worker/models/model.h"

struct evq_native_prefetch;

/* backend: as evq_backend_load() gave it, not opened. threads: as for evq_loader_new().
 * patience_ms: how long to wait for a load that does not move; a hanging load never holds the
 * present job longer. *ret_prefetch NULL: prefetching is not possible. EVQ_E_NOMEM. */
enum evq_status evq_native_prefetch_new(const struct evq_backend *backend, int32_t threads,
                                        int64_t patience_ms,
                                        struct evq_native_prefetch **ret_prefetch,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
/* Accepts NULL. False: a load hangs and is abandoned. Until it ends, it keeps its memory and uses
 * the backend and what its request points to. */
bool evq_native_prefetch_free(struct evq_native_prefetch *prefetch);

/* Like evq_native_load_prefetch(), for the first task of the suite. It replaces a prefetch for
 * another job. Failures are ignored, and so is a request that comes while the previous load, which
 * was told to stop, does not end within a twentieth of patience. fast_bf16: as in
 * evq_native_model_build(). */
void evq_native_prefetch_begin(struct evq_native_prefetch *prefetch, struct evq_job *job,
                               const struct evq_eval_request *request, bool fast_bf16);

/* Discards a prefetch for another job than the request's. Does not wait. */
void evq_native_prefetch_meet(struct evq_native_prefetch *prefetch,
                              const struct evq_eval_request *request);

/*
 * Waits until the weights of the request's job are loaded, and reports their progress. If nothing
 * moves, it waits no longer than patience. If the weights belong to the checkpoint that was just
 * opened for the task of config, they are exchanged with those of `state`, and *checkpoint becomes
 * the one they were loaded from. *ret_model (its plan is not prepared) and *ret_loaded then
 * describe `state` and belong to the caller. Otherwise *ret_model is NULL. EVQ_E_STOPPED: progress
 * says so. EVQ_E_DEVICE.
 */
enum evq_status evq_native_prefetch_take(
    struct evq_native_prefetch *prefetch, const struct evq_eval_request *request,
    const struct evq_task_config *config, const struct evq_progress *progress, void *state,
    struct evq_checkpoint **checkpoint, struct evq_model **ret_model, struct evq_loaded *ret_loaded,
    struct evq_error *err) EVQ_CHECK_RESULT;

/* Frees the second set for good, because the present job lacks memory. Accepts NULL. False: there
 * was none, or a load that hangs uses it. */
bool evq_native_prefetch_drop(struct evq_native_prefetch *prefetch);

#endif
