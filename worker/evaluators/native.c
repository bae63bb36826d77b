#include "worker/evaluators/native.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/clock.h"
#include "worker/loader/loader.h"
#include "worker/models/model.h"
#include "worker/tasks/task.h"

#define DATASETS_MAX       8
#define DATASETS_BYTES_MAX ((size_t)4 << 30) // Kept between jobs; the one in use may be larger.
#define BATCH_ROWS_MAX     8192
#define BATCH_INPUTS_MAX   ((int64_t)1 << 24) // Values: 64 MiB.
#define BATCH_ROWS_STEP    256

struct evq_native {
    struct evq_backend backend;
    void *state;
    struct evq_backend_caps caps;
    struct evq_dataset *datasets[DATASETS_MAX]; // The one used last comes first.
    struct evq_model *model;                    // Whose plan is prepared; NULL: none.
    void *inputs;                               // One batch, in the backend's host memory.
    size_t input_bytes;
};

struct eval { // One call of evq_native_eval().
    struct evq_native *native;
    const struct evq_eval_request *request;
    const struct evq_eval_report *report;
    struct evq_checkpoint *checkpoint;
    const char *key;                      // What it was opened with.
    const struct evq_task_config *config; // The task at work.
    const struct evq_task *task;
    struct evq_dataset *dataset;
    struct evq_model *loaded; // Whose weights the backend holds, of this checkpoint; NULL: none.
    char weights_digest[33];
    struct evq_timing timing;
};

enum evq_status evq_native_open(int32_t device, int32_t threads, struct evq_native **ret_native,
                                char *ret_note, size_t note_bytes, struct evq_error *err)
{
    struct evq_native *native = calloc(1, sizeof(*native));

    if (native == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "native evaluator");
    }
    evq_backend_load(device, &native->backend, ret_note, note_bytes);
    const struct evq_backend_config config = {.device = device < 0 ? 0 : device,
                                              .threads = threads};
    const enum evq_status status = native->backend.ops->open(&config, &native->state, err);
    if (status != EVQ_OK) {
        evq_native_close(native);
        return status;
    }
    native->backend.ops->caps(native->state, &native->caps);
    *ret_native = native;
    return EVQ_OK;
}

enum evq_status evq_native_check(const struct evq_suite *suite, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (suite->task_count == 0) {
        return evq_error_set(err, EVQ_E_INVALID, "suite '%s' has no tasks, which native needs",
                             suite->name);
    }
    for (size_t i = 0; i < suite->task_count && status == EVQ_OK; i++) {
        const struct evq_task_config *config = &suite->tasks[i];
        const struct evq_task *task = NULL;
        struct evq_op head = {0};
        status = evq_task_find(config, &task, err);
        if (status == EVQ_OK) {
            status = task->head(config, &head, err);
        }
        if (status == EVQ_OK) {
            status = evq_model_check(config, err);
        }
        if (status == EVQ_OK) {
            status = evq_dataset_check(config, task->answers, err);
        }
        if (status != EVQ_OK) {
            status = evq_error_prefix(err, "suite '%s', task '%s'", suite->name, config->name);
        }
    }
    return status;
}

void evq_native_close(struct evq_native *native)
{
    if (native == NULL) {
        return;
    }
    if (native->inputs != NULL) {
        native->backend.ops->free(native->state, native->inputs);
    }
    native->backend.ops->close(native->state);
    evq_backend_unload(&native->backend);
    evq_model_free(native->model);
    for (size_t i = 0; i < DATASETS_MAX; i++) {
        evq_dataset_free(native->datasets[i]);
    }
    free(native);
}

/* Drops what was used longest ago until the rest is small enough; never the first. */
static void datasets_trim(struct evq_native *native)
{
    size_t bytes = 0;

    for (size_t i = 0; i < DATASETS_MAX && native->datasets[i] != NULL; i++) {
        bytes += evq_dataset_bytes(native->datasets[i]);
        if (i > 0 && bytes > DATASETS_BYTES_MAX) {
            bytes -= evq_dataset_bytes(native->datasets[i]);
            evq_dataset_free(native->datasets[i]);
            for (size_t j = i; j + 1 < DATASETS_MAX; j++) {
                native->datasets[j] = native->datasets[j + 1];
            }
            native->datasets[DATASETS_MAX - 1] = NULL;
            i--;
        }
    }
}

/* From the data sets kept warm, or from its files. */
static enum evq_status find_dataset(struct eval *eval, struct evq_error *err)
{
    struct evq_native *native = eval->native;
    const char *file = eval->request->config != NULL ? eval->request->config->file : "";
    const char *slash = strrchr(file, '/');
    struct evq_dataset *found = NULL;
    size_t at = 0;

    char *directory = strndup(file, slash != NULL ? (size_t)(slash - file) : 0);
    if (directory == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "data set");
    }
    while (
        at < DATASETS_MAX && native->datasets[at] != NULL &&
        !evq_dataset_current(native->datasets[at], eval->config, eval->task->answers, directory)) {
        at++;
    }
    if (at < DATASETS_MAX && native->datasets[at] != NULL) {
        found = native->datasets[at];
    } else {
        const enum evq_status status =
            evq_dataset_open(eval->config, eval->task->answers, directory, &found, err);
        if (status != EVQ_OK) {
            free(directory);
            return status;
        }
        at = at < DATASETS_MAX ? at : DATASETS_MAX - 1;
        evq_dataset_free(native->datasets[at]);
    }
    free(directory);
    memmove(native->datasets + 1, native->datasets, at * sizeof(native->datasets[0]));
    native->datasets[0] = found;
    datasets_trim(native);
    eval->dataset = found;
    return EVQ_OK;
}

static void forget_checkpoint(struct eval *eval)
{
    evq_checkpoint_close(eval->checkpoint);
    eval->checkpoint = NULL;
    eval->loaded = NULL; // Its tensors are gone; the backend's memory is used again.
}

/* Opens what the task reads, unless the task before read the same. */
static enum evq_status open_checkpoint(struct eval *eval, struct evq_error *err)
{
    const struct evq_eval_request *request = eval->request;
    const struct evq_checkpoint_options options = {
        .key = evq_pair_get(eval->config->model, eval->config->model_count, "key", ""),
        .variant = request->job != NULL ? request->job->variant : NULL,
    };

    if (eval->checkpoint != NULL && strcmp(eval->key, options.key) == 0) {
        return EVQ_OK;
    }
    forget_checkpoint(eval);
    eval->key = options.key;
    if (request->prepared == NULL || request->prepared[0] == '\0') {
        return evq_checkpoint_open(request->root_fd, request->path, &options, &eval->checkpoint,
                                   err);
    }
    const int fd = open(request->prepared, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open prepared checkpoint '%s': %s", request->prepared,
                             strerror(errno));
    }
    const enum evq_status status = evq_checkpoint_open(fd, ".", &options, &eval->checkpoint, err);
    (void)close(fd); // Opened for reading: nothing to lose.
    return status;
}

static int32_t batch_rows(const struct evq_dataset *dataset)
{
    const int64_t fitting = BATCH_INPUTS_MAX / dataset->columns / BATCH_ROWS_STEP * BATCH_ROWS_STEP;

    if (fitting < BATCH_ROWS_STEP) {
        return BATCH_ROWS_STEP;
    }
    return fitting < BATCH_ROWS_MAX ? (int32_t)fitting : BATCH_ROWS_MAX;
}

static enum evq_status build_model(struct eval *eval, struct evq_model **ret_model,
                                   struct evq_error *err)
{
    struct evq_model_request request = {.checkpoint = eval->checkpoint,
                                        .task = eval->config,
                                        .rows_max = batch_rows(eval->dataset)};
    struct evq_model *model = NULL;

    enum evq_status status = eval->task->head(eval->config, &request.head, err);
    if (status == EVQ_OK) {
        status = evq_model_build(&request, &model, err);
    }
    if (status == EVQ_OK && model->inputs != eval->dataset->columns) {
        status = evq_error_set(
            err, EVQ_E_INVALID, "the model takes %d inputs, but a sample of '%s' has %d values",
            (int)model->inputs, eval->dataset->inputs_name, (int)eval->dataset->columns);
    }
    if (status == EVQ_OK) {
        status = eval->task->check(eval->dataset, model->outputs, err);
    }
    if (status != EVQ_OK) {
        evq_model_free(model);
        return status;
    }
    *ret_model = model;
    return EVQ_OK;
}

/* Makes the backend ready for the task: plan prepared, weights in place. */
static enum evq_status load_model(struct eval *eval, struct evq_error *err)
{
    struct evq_native *native = eval->native;
    const struct evq_backend_ops *ops = native->backend.ops;
    struct evq_model *model = NULL;

    enum evq_status status = build_model(eval, &model, err);
    if (status != EVQ_OK) {
        return status;
    }
    const bool loaded = eval->loaded != NULL && evq_model_same_weights(eval->loaded, model);
    eval->loaded = NULL; // Until it is certain again.
    status = ops->prepare(native->state, &model->plan, err);
    evq_model_free(native->model); // The backend let its plan go.
    native->model = model;
    if (status == EVQ_OK && !loaded) {
        status = evq_loader_fill(ops, native->state, eval->checkpoint, model, eval->weights_digest,
                                 &eval->timing.bytes, err);
    }
    if (status == EVQ_OK) {
        eval->loaded = model;
    }
    return status;
}

static enum evq_status grow_inputs(struct evq_native *native, size_t values, struct evq_error *err)
{
    const size_t bytes =
        values * sizeof(float); // At most BATCH_INPUTS_MAX, or 256 rows of int32 columns.

    if (bytes <= native->input_bytes) {
        return EVQ_OK;
    }
    if (native->inputs != NULL) {
        native->backend.ops->free(native->state, native->inputs);
        native->inputs = NULL;
        native->input_bytes = 0;
    }
    const enum evq_status status =
        native->backend.ops->alloc(native->state, bytes, &native->inputs, err);
    if (status == EVQ_OK) {
        native->input_bytes = bytes;
    }
    return status;
}

struct answers { // Of one batch, and what came out.
    int32_t *labels;
    float *targets;
    struct evq_row_result *rows;
};

static enum evq_status answers_alloc(struct answers *answers, const struct eval *eval,
                                     struct evq_error *err)
{
    const size_t rows = (size_t)eval->native->model->plan.rows_max;

    if (eval->task->answers == EVQ_ANSWER_LABELS) {
        answers->labels = calloc(rows, sizeof(*answers->labels));
    } else {
        answers->targets =
            calloc(rows * (size_t)eval->dataset->answer_columns, sizeof(*answers->targets));
    }
    answers->rows = calloc(rows, sizeof(*answers->rows));
    if (answers->rows == NULL || (answers->labels == NULL && answers->targets == NULL)) {
        return evq_error_set(err, EVQ_E_NOMEM, "a batch of %zu rows", rows);
    }
    return EVQ_OK;
}

static void answers_free(struct answers *answers)
{
    free(answers->labels);
    free(answers->targets);
    free(answers->rows);
}

static enum evq_status run_batch(struct eval *eval, const struct answers *answers, int64_t first,
                                 int64_t stride, int32_t rows, struct evq_task_sum *sums,
                                 struct evq_error *err)
{
    struct evq_native *native = eval->native;
    const struct evq_batch batch = {.rows = rows,
                                    .inputs = native->inputs,
                                    .labels = answers->labels,
                                    .targets = answers->targets};

    evq_dataset_inputs(eval->dataset, first, stride, rows, native->inputs);
    if (answers->labels != NULL) {
        evq_dataset_labels(eval->dataset, first, stride, rows, answers->labels);
    } else {
        evq_dataset_targets(eval->dataset, first, stride, rows, answers->targets);
    }
    const enum evq_status status =
        native->backend.ops->exec(native->state, &batch, answers->rows, err);
    if (status == EVQ_OK) {
        eval->task->add(sums, answers->rows, rows, native->model->outputs);
    }
    return status;
}

/* Shard s takes the samples s, s + shard_count, s + 2 * shard_count, ...: none twice, none left
 * out. */
static enum evq_status run_samples(struct eval *eval, struct evq_task_sum *sums,
                                   struct evq_error *err)
{
    const bool sharded = eval->request->shard_count > 0 && eval->request->shard >= 0;
    const int64_t stride = sharded ? eval->request->shard_count : 1;
    const int64_t start = sharded ? eval->request->shard : 0;
    const int64_t left = eval->dataset->count - start;
    const int64_t total = left > 0 ? (left - 1) / stride + 1 : 0;
    const int32_t rows_max = eval->native->model->plan.rows_max;
    struct answers answers = {0};
    char text[96];

    enum evq_status status =
        grow_inputs(eval->native, (size_t)rows_max * (size_t)eval->dataset->columns, err);
    if (status == EVQ_OK) {
        status = answers_alloc(&answers, eval, err);
    }
    (void)snprintf(text, sizeof(text), "task %.64s", eval->config->name);
    for (int64_t done = 0; done < total && status == EVQ_OK;) {
        const int32_t rows = total - done < rows_max ? (int32_t)(total - done) : rows_max;
        status = run_batch(eval, &answers, start + done * stride, stride, rows, sums, err);
        done += rows;
        if (status == EVQ_OK && eval->report->progress != NULL) {
            status = eval->report->progress(eval->report->context, done, total, text);
        }
    }
    answers_free(&answers);
    eval->timing.samples = total;
    return status;
}

static enum evq_status publish(struct eval *eval, const struct evq_task_sum *sums,
                               struct evq_error *err)
{
    const struct evq_eval_request *request = eval->request;
    struct evq_result *result = evq_result_new();

    if (result == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "result");
    }
    result->task = eval->config->name;
    result->suite = request->suite->name;
    result->suite_digest = request->suite->digest;
    result->metric_prefix =
        evq_pair_get(eval->config->options, eval->config->option_count, "metric_prefix", "");
    result->state = EVQ_JOB_DONE;
    result->timing = eval->timing;
    result->n = eval->timing.samples;
    result->weights_digest = eval->weights_digest;
    result->data_digest = eval->dataset->digest;
    result->backend = eval->native->backend.ops->name;
    result->device = eval->native->caps.device;
    result->attempt = request->attempt;
    enum evq_status status = evq_task_store(eval->task, sums, result, err);
    if (status == EVQ_OK && (request->shard_count == 0 || request->shard < 0)) {
        status = evq_task_metrics(eval->task, eval->config, result,
                                  err); // A shard's are formed by the merge.
    }
    if (status == EVQ_OK && eval->report->task != NULL) {
        status = eval->report->task(eval->report->context, result, err);
    }
    evq_result_free(result);
    return status;
}

static enum evq_status run_task(struct eval *eval, struct evq_error *err)
{
    struct evq_task_sum sums[EVQ_TASK_SUMS_MAX] = {{0}};
    const int64_t start = evq_clock_mono_us();

    eval->timing = (struct evq_timing){0};
    enum evq_status status = evq_task_find(eval->config, &eval->task, err);
    if (status == EVQ_OK) {
        status = open_checkpoint(eval, err);
    }
    if (status == EVQ_OK) {
        status = find_dataset(eval, err);
    }
    if (status == EVQ_OK) {
        status = load_model(eval, err);
    }
    const int64_t loaded = evq_clock_mono_us();
    if (status == EVQ_OK) {
        status = run_samples(eval, sums, err);
    }
    eval->timing.load_us = loaded - start;
    eval->timing.compute_us = evq_clock_mono_us() - loaded;
    return status == EVQ_OK ? publish(eval, sums, err) : status;
}

static bool task_done(const struct evq_eval_request *request, const char *name)
{
    for (size_t i = 0; i < request->task_done_count; i++) {
        if (strcmp(request->tasks_done[i], name) == 0) {
            return true;
        }
    }
    return false;
}

enum evq_status evq_native_eval(struct evq_native *native, const struct evq_eval_request *request,
                                const struct evq_eval_report *report, struct evq_error *err)
{
    struct eval eval = {.native = native, .request = request, .report = report};
    enum evq_status status = EVQ_OK;

    if (request->shard_count < 0 ||
        request->shard >= (request->shard_count > 0 ? request->shard_count : 1)) {
        return evq_error_set(err, EVQ_E_INVALID, "shard %d of %d does not exist",
                             (int)request->shard, (int)request->shard_count);
    }
    if (request->suite->task_count == 0) {
        return evq_error_set(err, EVQ_E_INVALID, "suite '%s' has no tasks", request->suite->name);
    }
    for (size_t i = 0; i < request->suite->task_count && status == EVQ_OK; i++) {
        eval.config = &request->suite->tasks[i];
        if (task_done(request, eval.config->name)) {
            continue;
        }
        status = run_task(&eval, err);
        if (status != EVQ_OK && status != EVQ_E_STOPPED) {
            (void)evq_error_prefix(err, "task '%s'",
                                   eval.config->name); // Returns what status already is.
        }
    }
    forget_checkpoint(&eval);
    return status;
}

enum evq_status evq_native_merge(const struct evq_task_config *task, struct evq_result *result,
                                 struct evq_error *err)
{
    const struct evq_task *kind = NULL;
    const enum evq_status status = evq_task_find(task, &kind, err);

    return status == EVQ_OK ? evq_task_metrics(kind, task, result, err) : status;
}
