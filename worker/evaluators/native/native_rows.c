/* Runs a task over the rows of a data set: batches of inputs through the model, whose results are
 * compared with the answers. */
#include "worker/evaluators/native/native_run.h"

#include <stdlib.h>

#include "shared/base/clock.h"
#include "worker/evaluators/native/native_images.h"

#define BATCH_ROWS_MAX   8192
#define BATCH_INPUTS_MAX ((int64_t)1 << 24) // Values; this is 64 MiB.
#define BATCH_ROWS_STEP  256
#define IMAGE_ROWS       2048 // Patches of the images of a batch.

struct wanted { // The data set that a task needs.
    const struct evq_task_config *config;
    enum evq_answer_kind answers;
    const char *directory;
};

static bool same_dataset(const void *thing, const void *key)
{
    const struct wanted *wanted = key;

    return evq_dataset_current(thing, wanted->config, wanted->answers, wanted->directory);
}

/* Finds the data set in the cache, or reads its files. */
static enum evq_status find_dataset(struct evq_native_run *run, struct evq_dataset **ret_dataset,
                                    struct evq_error *err)
{
    struct evq_native_cache *warm = &run->native->datasets;
    struct evq_arena *arena = evq_arena_new(0);
    struct evq_dataset *dataset = NULL;
    enum evq_status status = EVQ_OK;

    const struct wanted wanted = {
        run->config,
        run->task->samples->answers,
        arena != NULL ? evq_native_directory(run, arena) : NULL,
    };
    if (wanted.directory == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "data set");
        goto out;
    }
    dataset = evq_native_cache_find(warm, same_dataset, &wanted);
    if (dataset == NULL) {
        status = evq_dataset_open(run->config, wanted.answers, wanted.directory, &dataset, err);
        if (status == EVQ_OK) {
            evq_native_cache_keep(warm, dataset, evq_dataset_bytes(dataset));
        }
    }
out:
    evq_arena_free(arena);
    if (status == EVQ_OK) {
        *ret_dataset = dataset;
        run->data_digest = dataset->digest;
    }
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

/* Rows of the plan that a sample takes. */
static int32_t rows_of_sample(const struct evq_model *model)
{
    return model->patches.channels > 0 ? 1 + evq_patches_count(&model->patches) : 1;
}

/* Checks that the model reads the samples, and sizes the batches of a model of images. */
static enum evq_status check_model(struct evq_model *model, const struct evq_dataset *dataset,
                                   struct evq_error *err)
{
    const int32_t rows = rows_of_sample(model);
    const int32_t samples = IMAGE_ROWS / rows > 0 ? IMAGE_ROWS / rows : 1;

    if (model->context > 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "a %s model reads texts, expected a task of type text_classification",
                             model->family);
    }
    if (model->patches.channels > 0) {
        model->plan.length_max = rows;
        model->plan.rows_max = samples * rows;
        return evq_native_images_check(dataset, &model->patches, err);
    }
    if (dataset->channels > 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "data: mean and std are for models of images, not for %s",
                             model->family);
    }
    return model->inputs == dataset->columns
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_INVALID,
                               "the model takes %d inputs, but a sample of '%s' has %d values",
                               (int)model->inputs, dataset->inputs_name, (int)dataset->columns);
}

static enum evq_status build_model(struct evq_native_run *run, const struct evq_dataset *dataset,
                                   struct evq_model **ret_model, struct evq_error *err)
{
    struct evq_model_request request = {
        .checkpoint = run->checkpoint, .task = run->config, .rows_max = batch_rows(dataset)};
    struct evq_model *model = NULL;

    enum evq_status status = run->task->head(run->config, &request.head, err);
    if (status == EVQ_OK) {
        status = evq_model_build(&request, &model, err);
    }
    if (status == EVQ_OK) {
        status = check_model(model, dataset, err);
    }
    if (status == EVQ_OK) {
        status = run->task->samples->check(dataset, model->outputs, err);
    }
    if (status != EVQ_OK) {
        evq_model_free(model);
        return status;
    }
    *ret_model = model;
    return EVQ_OK;
}

static enum evq_status grow_inputs(struct evq_native *native, size_t values, struct evq_error *err)
{
    // This is at most BATCH_INPUTS_MAX values, or 256 rows of int32 columns.
    const size_t bytes = values * sizeof(float);

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

struct batch { // The answers of a batch, and its results.
    struct evq_dataset *dataset;
    int32_t *labels;
    float *targets;
    struct evq_row_result *results;
    int32_t step;                    // Rows of the plan that a sample takes.
    struct evq_native_images images; // For a model of images.
};

static enum evq_status batch_alloc(struct batch *batch, size_t rows, struct evq_error *err)
{
    if (batch->dataset->kind == EVQ_ANSWER_LABELS) {
        batch->labels = calloc(rows, sizeof(*batch->labels));
    } else {
        batch->targets =
            calloc(rows * (size_t)batch->dataset->answer_columns, sizeof(*batch->targets));
    }
    batch->results = calloc(rows, sizeof(*batch->results));
    if (batch->results == NULL || (batch->labels == NULL && batch->targets == NULL)) {
        return evq_error_set(err, EVQ_E_NOMEM, "a batch of %zu rows", rows);
    }
    return EVQ_OK;
}

static void batch_free(struct batch *batch)
{
    evq_native_images_free(&batch->images);
    free(batch->labels);
    free(batch->targets);
    free(batch->results);
}

/* Allocates the inputs of a batch. If memory is short, it frees the loader's memory, and then takes
 * fewer rows. */
static enum evq_status make_room(struct evq_native_run *run, struct batch *batch,
                                 struct evq_error *err)
{
    const size_t columns = (size_t)batch->dataset->columns;
    const struct evq_model *model = run->native->model;
    enum evq_status status = EVQ_OK;

    batch->step = rows_of_sample(model);
    if (model->patches.channels > 0) {
        const int32_t samples = run->rows / batch->step;
        status = grow_inputs(run->native, (size_t)samples * columns, err);
        if (status == EVQ_OK) {
            status = evq_native_images_open(&batch->images, batch->dataset, &model->patches,
                                            samples, err);
        }
        return status == EVQ_OK ? batch_alloc(batch, (size_t)samples, err) : status;
    }
    status = grow_inputs(run->native, (size_t)run->rows * columns, err);
    if (status == EVQ_E_NOMEM) {
        evq_loader_drop(run->native->loader);
        status = grow_inputs(run->native, (size_t)run->rows * columns, err);
    }
    while (status == EVQ_E_NOMEM && run->rows / 2 >= BATCH_ROWS_STEP) {
        run->rows_wanted = run->rows_wanted > 0 ? run->rows_wanted : run->rows;
        run->rows /= 2;
        status = grow_inputs(run->native, (size_t)run->rows * columns, err);
    }
    return status == EVQ_OK ? batch_alloc(batch, (size_t)run->rows, err) : status;
}

static enum evq_status run_batch(struct evq_native_run *run, const struct batch *batch,
                                 int64_t first, int64_t stride, int32_t rows,
                                 struct evq_task_sum *sums, struct evq_error *err)
{
    struct evq_native *native = run->native;
    struct evq_batch request = {.rows = rows,
                                .inputs = native->inputs,
                                .labels = batch->labels,
                                .targets = batch->targets,
                                .tell = evq_native_tell,
                                .listener = run};

    evq_dataset_inputs(batch->dataset, first, stride, rows, native->inputs);
    if (batch->labels != NULL) {
        evq_dataset_labels(batch->dataset, first, stride, rows, batch->labels);
    } else {
        evq_dataset_targets(batch->dataset, first, stride, rows, batch->targets);
    }
    if (batch->images.length > 0) {
        evq_native_images_batch(&batch->images, native->inputs, rows, batch->labels, &request);
    }
    const enum evq_status status =
        native->backend.ops->exec(native->state, &request, batch->results, err);
    if (status == EVQ_OK) {
        run->task->samples->add(sums, batch->results, rows, native->model->outputs);
        evq_native_keep_rows(run, batch->dataset, first, stride, rows, batch->labels,
                             batch->results);
    }
    return status;
}

/* Shard s takes the samples s, s + shard_count, s + 2 * shard_count and so on, so that each sample
 * belongs to exactly one shard. */
static enum evq_status run_batches(struct evq_native_run *run, struct evq_dataset *dataset,
                                   struct evq_task_sum *sums, struct evq_error *err)
{
    const bool sharded = run->request->shard_count > 0 && run->request->shard >= 0;
    const int64_t stride = sharded ? run->request->shard_count : 1;
    const int64_t start = sharded ? run->request->shard : 0;
    const int64_t left = dataset->count - start;
    const int64_t total = left > 0 ? (left - 1) / stride + 1 : 0;
    struct batch batch = {.dataset = dataset};

    run->total = total;
    enum evq_status status = make_room(run, &batch, err);
    for (int64_t done = 0; done < total && status == EVQ_OK;) {
        const int32_t most = run->rows / batch.step;
        const int32_t rows = total - done < most ? (int32_t)(total - done) : most;
        run->done = done;
        status = run_batch(run, &batch, start + done * stride, stride, rows, sums, err);
        if (status == EVQ_E_NOMEM) { // The same rows are run again in smaller batches.
            status = evq_native_shrink(run, batch.step > 1 ? batch.step : BATCH_ROWS_STEP, err);
        } else if (status == EVQ_OK) {
            done += rows;
            status = evq_native_progress(run, "", done, total);
        }
    }
    batch_free(&batch);
    run->timing.samples = total;
    return status;
}

enum evq_status evq_native_rows(struct evq_native_run *run, struct evq_task_sum *sums,
                                struct evq_error *err)
{
    struct evq_dataset *dataset = NULL;
    struct evq_model *model = NULL;

    enum evq_status status = find_dataset(run, &dataset, err);
    if (status == EVQ_OK) {
        status = build_model(run, dataset, &model, err);
    }
    if (status == EVQ_OK) {
        const int32_t rows = rows_of_sample(model);
        status = evq_native_load(run, model, rows > 1 ? rows : BATCH_ROWS_STEP, err);
    }
    run->loaded_us = evq_clock_mono_us();
    return status == EVQ_OK ? run_batches(run, dataset, sums, err) : status;
}
