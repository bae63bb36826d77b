/*
 * One call of evq_native_eval() at work on one task: what the files native*.c share. One thread.
 */
#ifndef EVQ_WORKER_NATIVE_RUN_H
#define EVQ_WORKER_NATIVE_RUN_H

#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/native/native_cache.h"
#include "worker/evaluators/native/native_prefetch.h"
#include "worker/loader/loader.h"
#include "worker/models/model.h"
#include "worker/tasks/task.h"

struct evq_native {
    struct evq_backend backend;
    void *state;
    struct evq_backend_caps caps;
    struct evq_loader *loader;
    struct evq_native_prefetch *prefetch; // NULL: nothing is loaded ahead.
    struct evq_warm datasets, corpora, tokenizers;
    struct evq_model *model; // Whose plan is prepared; NULL: none.
    void *inputs;            // One batch of samples, in the backend's host memory.
    size_t input_bytes;
};

struct evq_native_run {
    struct evq_native *native;
    const struct evq_eval_request *request;
    const struct evq_eval_report *report;
    struct evq_checkpoint *checkpoint;
    const struct evq_task_config *opened; // The task that the checkpoint was opened for.
    const struct evq_task_config *config; // The task at work.
    const struct evq_task *task;
    struct evq_model *loaded; // Whose weights the backend holds, of this checkpoint; NULL: none.
    bool tied_differ;         // A head of its own lies beside the embedding that it is tied to.
    char weights_digest[33];
    const char *data_digest; // Of the task's data, as long as these are warm.
    struct evq_timing timing;
    int32_t rows;        // Of a batch, at most.
    int32_t rows_wanted; // Had there been memory for them; 0: there was.
    int64_t loaded_us;   // When data and weights were in place; 0: not yet.
    int64_t done, total; // Of the task's windows or samples.
    int64_t told_ms;     // When evq_native_tell() told of them last.
};

/* Whether bf16 is faster than fp32 here: on a GPU that has it. */
static inline bool evq_native_fast_bf16(const struct evq_native *native)
{
    return native->backend.devices > 0 && native->caps.bf16;
}

/* Reads the data, loads the model, runs this shard's part, adds to sums: for tasks over samples and
 * over tokens. */
enum evq_status evq_native_samples(struct evq_native_run *run, struct evq_task_sum *sums,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_native_tokens(struct evq_native_run *run, struct evq_task_sum *sums,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Opens the checkpoint that the task reads, unless the task before it read the same one. */
enum evq_status evq_native_open_checkpoint(struct evq_native_run *run,
                                           struct evq_error *err) EVQ_CHECK_RESULT;
void evq_native_close_checkpoint(struct evq_native_run *run);

/* Makes the backend ready: plan prepared, weights in place. Takes the model over, whatever happens.
 * Where plan or loader need more memory than there is, rows_max is halved, down to rows_least;
 * run->rows says what it became and run->rows_wanted what it was. */
enum evq_status evq_native_load(struct evq_native_run *run, struct evq_model *model,
                                int32_t rows_least, struct evq_error *err) EVQ_CHECK_RESULT;

/* When exec() had no memory for a batch: what is loaded ahead is freed or, if nothing is, the plan
 * prepared anew for half as many rows or fewer; the weights stay. EVQ_E_NOMEM: fewer than
 * rows_least would be left. */
enum evq_status evq_native_shrink(struct evq_native_run *run, int32_t rows_least,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Tells how far the task at work is; doing: "" for its windows or samples, else such as ", reading
 * data". EVQ_E_STOPPED: give up. */
enum evq_status evq_native_progress(const struct evq_native_run *run, const char *doing,
                                    int64_t done, int64_t total) EVQ_CHECK_RESULT;

/* For a batch to tell that it moves; listener is the run. */
void evq_native_tell(void *listener);

/* The directory of the configuration, from which relative paths of the data start: "" or a path in
 * arena; NULL: out of memory. */
const char *evq_native_directory(const struct evq_native_run *run, struct evq_arena *arena);

#endif
