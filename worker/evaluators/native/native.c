#include "worker/evaluators/native/native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/evaluators/native/native_run.h"
#include "worker/evaluators/native/native_tokenizer.h"

static void free_dataset(void *thing)
{
    evq_dataset_free(thing);
}

static void free_corpus(void *thing)
{
    evq_corpus_free(thing);
}

enum evq_status evq_native_open(int32_t gpus, int32_t threads, struct evq_native **ret_native,
                                char *ret_note, size_t note_bytes, struct evq_error *err)
{
    struct evq_native *native = calloc(1, sizeof(*native));

    if (native == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "native evaluator");
    }
    native->datasets.free = free_dataset;
    native->corpora.free = free_corpus;
    native->tokenizers.free = evq_native_tokenizer_free;
    enum evq_status status = evq_backend_load(gpus, &native->backend, ret_note, note_bytes, err);
    if (status == EVQ_OK) {
        status = evq_backend_open(&native->backend, threads, &native->state, err);
    }
    if (status == EVQ_OK) {
        status = evq_loader_new(native->backend.ops, native->state, threads, &native->loader, err);
    }
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
        return evq_error_set(err, EVQ_E_INVALID,
                             "suite '%s' has no tasks, but evalq's own engine needs at least one",
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
            status = task->samples != NULL ? evq_dataset_check(config, task->samples->answers, err)
                                           : evq_corpus_check(config, task->tokens->kind, err);
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
    evq_loader_free(native->loader);
    native->backend.ops->close(native->state);
    evq_backend_unload(&native->backend);
    evq_model_free(native->model);
    evq_native_cache_clear(&native->datasets);
    evq_native_cache_clear(&native->corpora);
    evq_native_cache_clear(&native->tokenizers);
    free(native);
}

/* A note for readers of the numbers about how they were computed; "": none. NULL: out of memory. */
static const char *result_note(const struct evq_native_run *run, struct evq_arena *arena)
{
    const char *ignored = run->native->model->ignored;
    const char *batches = "";

    if (run->rows_wanted > 0) {
        batches =
            evq_arena_printf(arena, "batches of %d rows instead of %d: there is no memory for more",
                             (int)run->rows, (int)run->rows_wanted);
    }
    if (batches == NULL || ignored[0] == '\0') {
        return batches;
    }
    return evq_arena_printf(arena, "%s%stensors of the checkpoint that were ignored: %s", batches,
                            batches[0] != '\0' ? "; " : "", ignored);
}

static enum evq_status publish(struct evq_native_run *run, const struct evq_task_sum *sums,
                               struct evq_error *err)
{
    const struct evq_eval_request *request = run->request;
    struct evq_result *result = evq_result_new();

    if (result == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "result");
    }
    result->task = run->config->name;
    result->suite = request->suite->name;
    result->suite_digest = request->suite->digest;
    result->metric_prefix =
        evq_pair_get(run->config->options, run->config->option_count, "metric_prefix", "");
    result->state = EVQ_JOB_DONE;
    result->timing = run->timing;
    result->n = run->timing.samples;
    result->weights_digest = run->weights_digest;
    result->data_digest = run->data_digest;
    result->backend = run->native->backend.name;
    result->device = run->native->caps.device;
    result->compute = run->native->model->plan.compute == EVQ_COMPUTE_BF16 ? "bf16" : "fp32";
    result->note = result_note(run, result->arena);
    result->attempt = request->attempt;
    if (result->note == NULL) {
        evq_result_free(result);
        return evq_error_set(err, EVQ_E_NOMEM, "result");
    }
    enum evq_status status = evq_task_store(run->task, sums, result, err);
    if (status == EVQ_OK && (request->shard_count == 0 || request->shard < 0)) {
        status = evq_task_metrics(run->task, run->config, result,
                                  err); // The merge forms the metrics of shards.
    }
    const int64_t kept_us = evq_clock_mono_us();
    evq_sample_store_finish(run->kept, result);
    run->kept = NULL;
    result->timing.compute_us += evq_clock_mono_us() - kept_us;
    if (status == EVQ_OK && run->report->task != NULL) {
        status = run->report->task(run->report->context, result, err);
    }
    evq_result_free(result);
    return status;
}

static enum evq_status run_task(struct evq_native_run *run, struct evq_error *err)
{
    struct evq_task_sum sums[EVQ_TASK_SUMS_MAX] = {{0}};
    const int64_t start = evq_clock_mono_us();

    run->timing = (struct evq_timing){0};
    run->rows_wanted = 0;
    run->loaded_us = 0;
    enum evq_status status = evq_task_find(run->config, &run->task, err);
    if (status == EVQ_OK) {
        status = evq_native_open_checkpoint(run, err);
    }
    if (status == EVQ_OK) {
        status = run->task->samples != NULL ? evq_native_rows(run, sums, err)
                                            : evq_native_tokens(run, sums, err);
    }
    if (status != EVQ_OK) {
        evq_sample_store_free(run->kept);
        run->kept = NULL;
        return status;
    }
    run->timing.load_us = run->loaded_us - start;
    run->timing.compute_us = evq_clock_mono_us() - run->loaded_us;
    return publish(run, sums, err);
}

enum evq_status evq_native_eval(struct evq_native *native, const struct evq_eval_request *request,
                                const struct evq_eval_report *report, struct evq_error *err)
{
    struct evq_native_run run = {.native = native, .request = request, .report = report};
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
        run.config = &request->suite->tasks[i];
        if (evq_eval_task_is_done(request, run.config->name)) {
            continue;
        }
        status = run_task(&run, err);
        if (status != EVQ_OK && status != EVQ_E_STOPPED) {
            (void)evq_error_prefix(err, "task '%s'",
                                   run.config->name); // It returns the status that it was given.
        }
    }
    evq_native_close_checkpoint(&run);
    return status;
}

enum evq_status evq_native_merge(const struct evq_task_config *task, struct evq_result *result,
                                 struct evq_error *err)
{
    const struct evq_task *kind = NULL;
    const enum evq_status status = evq_task_find(task, &kind, err);

    return status == EVQ_OK ? evq_task_metrics(kind, task, result, err) : status;
}
