/*
 * The state of one evq_native_eval() call and its present task, shared by the native*.c files. One
 * thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_RUN_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_RUN_H

#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/native/native_cache.h"
#include "worker/evaluators/sample_store.h"
#include "worker/loader/backend.h"
#include "worker/loader/loader.h"
#include "worker/models/model.h"
#include "worker/tasks/task.h"

struct evq_native {
    struct evq_backend backend;
    void *state;
    struct evq_backend_caps caps;
    struct evq_loader *loader;
    struct evq_native_cache datasets, corpora, tokenizers;
    struct evq_model *model; // The model whose plan is prepared; NULL: none.
    void *inputs;            // One batch of samples, in the backend's host memory.
    size_t input_bytes;
};

struct evq_native_run {
    struct evq_native *native;
    const struct evq_eval_request *request;
    const struct evq_eval_report *report;
    struct evq_checkpoint *checkpoint;
    const struct evq_task_config *opened; // The task for which the checkpoint was opened.
    const struct evq_task_config *config; // The present task.
    const struct evq_task *task;
    // The model of this checkpoint whose weights the backend holds; NULL: none.
    struct evq_model *loaded;
    // The checkpoint has an own head that differs from the embedding it is tied to.
    bool tied_differ;
    char weights_digest[33];
    const char *data_digest; // Digest of the task's data; valid while the data are cached.
    struct evq_timing timing;
    int32_t rows;        // Most rows of a batch.
    int32_t rows_wanted; // Rows that were wanted but did not fit into memory; 0: all fitted.
    int64_t loaded_us;   // When data and weights were loaded; 0: not yet.
    int64_t done, total; // Windows or samples of the present task.
    struct evq_sample_store *kept; // The present task's samples; NULL: not wanted.
    int64_t told_ms;               // When evq_native_tell() last reported them.
};

/* Whether bf16 is faster than fp32 on this device. */
static inline bool evq_native_fast_bf16(const struct evq_native *native)
{
    return native->backend.module != NULL && native->caps.bf16;
}

/* Read the data, load the model, run this shard's part and add to sums: one for tasks over samples,
 * one for tasks over tokens. */
enum evq_status evq_native_rows(struct evq_native_run *run, struct evq_task_sum *sums,
                                struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_native_tokens(struct evq_native_run *run, struct evq_task_sum *sums,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Builds the model of a task over tokens. Any thread. The plan's `compute` follows the task. `auto`
 * means bf16 for weights in bf16 or fp16 if fast_bf16 (a GPU that multiplies bf16), otherwise fp32.
 * *ret_length: length of the sequences; 0: as the model has it.
 */
enum evq_status evq_native_model_build(const struct evq_task *task,
                                       const struct evq_task_config *config,
                                       const struct evq_checkpoint *checkpoint, bool fast_bf16,
                                       int32_t *ret_length, struct evq_model **ret_model,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether sequences of tokens can be so long. EVQ_E_INVALID: the model reads no tokens.
 * EVQ_E_LIMIT.
 */
enum evq_status evq_native_check_length(const struct evq_model *model, int32_t length,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Scores windows->corpus with the present task, whose windows it makes. The weights are loaded
 * first, unless the backend holds them. The caller frees the windows. */
enum evq_status evq_native_score_corpus(struct evq_native_run *run, struct evq_windows *windows,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Keeps the samples of a batch of rows: the samples first, first + stride and so on. labels NULL:
 * the task has none. */
void evq_native_keep_rows(struct evq_native_run *run, struct evq_dataset *dataset, int64_t first,
                          int64_t stride, int32_t rows, const int32_t *labels,
                          const struct evq_row_result *results);
/* Keeps the samples of all windows, once they are scored. */
void evq_native_keep_windows(struct evq_native_run *run, const struct evq_windows *windows);

/* Opens the checkpoint that the task reads, unless the previous task read the same one. */
enum evq_status evq_native_open_checkpoint(struct evq_native_run *run,
                                           struct evq_error *err) EVQ_CHECK_RESULT;
void evq_native_close_checkpoint(struct evq_native_run *run);

/* Makes the backend ready: the plan is prepared and the weights are loaded. Takes over the model in
 * any case. If memory is short, the rows of a batch are halved, but not below rows_least. Sets
 * run->rows to the rows that fit, and run->rows_wanted to those that were asked for. */
enum evq_status evq_native_load(struct evq_native_run *run, struct evq_model *model,
                                int32_t rows_least, struct evq_error *err) EVQ_CHECK_RESULT;

/* Call it if exec() had no memory for a batch. Prepares the plan again for at most half the rows.
 * The weights stay. EVQ_E_NOMEM: fewer than rows_least rows would be left. */
enum evq_status evq_native_shrink(struct evq_native_run *run, int32_t rows_least,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Reports how far the present task is. doing: "" for its windows or samples, otherwise a text such
 * as ", reading data". EVQ_E_STOPPED: return at once. */
enum evq_status evq_native_progress(const struct evq_native_run *run, const char *doing,
                                    int64_t done, int64_t total) EVQ_CHECK_RESULT;

/* A running batch calls it to show that it makes progress. listener is the run. */
void evq_native_tell(void *listener);

/* The directory of the configuration, to which relative paths of data refer: "" or a path in arena;
 * NULL: out of memory. */
const char *evq_native_directory(const struct evq_native_run *run, struct evq_arena *arena);

#endif
