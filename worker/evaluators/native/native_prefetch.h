/*
 * The weights of the job that may come next, loaded into a second set of the device's memory by a
 * thread of its own while the present job computes. Whether they are that job's is decided when it
 * comes: by its files. Where the device has one set of weights, or no memory for two, nothing is
 * loaded ahead. The evaluator's thread calls.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_PREFETCH_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_PREFETCH_H

#include "worker/evaluators/evaluator.h"
#include "worker/loader/loader.h"
#include "worker/models/model.h"

struct evq_native_prefetch;

/* backend: as evq_backend_load() gave it, not opened; threads: as for evq_loader_new().
 * patience_ms: how long a load in which nothing moves is waited for where something waits; the
 * present job is never held longer by one that hangs (a dead file system). *ret_prefetch NULL:
 * nothing can be loaded ahead there. EVQ_E_NOMEM. */
enum evq_status evq_native_prefetch_new(const struct evq_backend *backend, int32_t threads,
                                        int64_t patience_ms,
                                        struct evq_native_prefetch **ret_prefetch,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
/* Accepts NULL. False: a load hangs and is left to itself; it keeps its memory, and uses the
 * backend and what its request points to, until it ends. */
bool evq_native_prefetch_free(struct evq_native_prefetch *prefetch);

/* As evq_native_load_prefetch(), in place of what was loaded for another job; for the first task of
 * the suite. What cannot be loaded is not missed; nor is what comes while the load before it,
 * told to stop, does not end within a twentieth of patience. fast_bf16: as for
 * evq_native_model_build(). */
void evq_native_prefetch_begin(struct evq_native_prefetch *prefetch, struct evq_job *job,
                               const struct evq_eval_request *request, bool fast_bf16);

/* What is loaded for another job than the request's is given up. Does not wait. */
void evq_native_prefetch_meet(struct evq_native_prefetch *prefetch,
                              const struct evq_eval_request *request);

/*
 * Waits until the weights of the request's job are there, telling `progress` as they come, but no
 * longer than patience where nothing moves; where
 * they are those of the checkpoint just opened for the task of config, exchanges them for those of
 * `state`, and this checkpoint for the one they were loaded from: *checkpoint is that one then,
 * *ret_model (whose plan is not prepared) and *ret_loaded say what `state` holds, the caller's.
 * Else *ret_model is NULL. EVQ_E_STOPPED as progress says; EVQ_E_DEVICE.
 */
enum evq_status evq_native_prefetch_take(
    struct evq_native_prefetch *prefetch, const struct evq_eval_request *request,
    const struct evq_task_config *config, const struct evq_progress *progress, void *state,
    struct evq_checkpoint **checkpoint, struct evq_model **ret_model, struct evq_loaded *ret_loaded,
    struct evq_error *err) EVQ_CHECK_RESULT;

/* The present job lacks memory: frees the second set, for good. False: there was none, or a load
 * that hangs has it. */
bool evq_native_prefetch_drop(struct evq_native_prefetch *prefetch); // Accepts NULL.

#endif
