/* Loads the weights of a task and reports progress. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/evaluators/native/native_run.h"
#include "worker/evaluators/native/native_tokenizer.h"

#define TELL_MS 200 // The shortest time between two reports of a batch.

static enum evq_status tell_loading(void *context, int64_t done, int64_t total)
{
    return evq_native_progress(context, ", loading weights", done, total);
}

/* Transformers 5 uses an own head of a tied model, and Transformers 4 uses the embedding instead.
 * evalq does not guess: it refuses if both differ. */
static enum evq_status check_tied(const struct evq_native_run *run, const struct evq_model *model,
                                  struct evq_error *err)
{
    const struct evq_task_config *config = run->config;
    const char *told =
        evq_pair_get(config->model, config->model_count, "tie_word_embeddings", NULL);

    if (told == NULL) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "tensor '%s' of '%s' differs from '%s', but the configuration ties the two: choose "
            "with model: {tie_word_embeddings: false}, which uses both as they are, as "
            "Transformers 5 does, or true, which uses the second for both",
            model->unused->name, run->checkpoint->path, model->tied->name);
    }
    evq_log(EVQ_LOG_WARN, "tensor_unused", "checkpoint=%s tensor=%s used=%s reason=%s",
            run->checkpoint->path, model->unused->name, model->tied->name,
            "their values differ, and the model options tie them");
    return EVQ_OK;
}

static enum evq_status note_loaded(struct evq_native_run *run, const struct evq_model *model,
                                   const struct evq_loaded *loaded, struct evq_error *err)
{
    memcpy(run->weights_digest, loaded->digest, sizeof(loaded->digest));
    run->timing.bytes = loaded->bytes;
    run->tied_differ = loaded->tied_differ;
    return loaded->tied_differ ? check_tied(run, model, err) : EVQ_OK;
}

static enum evq_status load_weights(struct evq_native_run *run, const struct evq_model *model,
                                    struct evq_error *err)
{
    const struct evq_progress progress = {tell_loading, run};
    struct evq_loader *loader = run->native->loader;
    struct evq_loaded loaded;

    evq_loader_watch(loader, &progress);
    const enum evq_status status = evq_loader_fill(loader, run->checkpoint, model, &loaded, err);
    evq_loader_watch(loader, NULL);
    return status == EVQ_OK ? note_loaded(run, model, &loaded, err) : status;
}

static enum evq_status prepare(struct evq_native_run *run, const struct evq_model *model, bool load,
                               struct evq_error *err)
{
    const enum evq_status status =
        run->native->backend.ops->prepare(run->native->state, &model->plan, err);

    return status == EVQ_OK && load ? load_weights(run, model, err) : status;
}

/* Halves the batch until there is enough memory for it and for loading, down to rows_least rows. */
static enum evq_status fit(struct evq_native_run *run, struct evq_model *model, bool load,
                           int32_t rows_least, struct evq_error *err)
{
    const int32_t wanted = model->plan.rows_max;

    enum evq_status status = prepare(run, model, load, err);
    while (status == EVQ_E_NOMEM && model->plan.rows_max / 2 >= rows_least) {
        model->plan.rows_max /= 2;
        run->rows_wanted = wanted;
        status = prepare(run, model, load, err);
    }
    return status;
}

enum evq_status evq_native_load(struct evq_native_run *run, struct evq_model *model,
                                int32_t rows_least, struct evq_error *err)
{
    struct evq_native *native = run->native;
    // The weights are loaded in the form for this way to compute.
    const bool loaded = run->loaded != NULL && evq_model_same_weights(run->loaded, model) &&
                        run->loaded->plan.compute == model->plan.compute;

    run->loaded = NULL; // Until the load has succeeded, the content of the memory is not known.
    enum evq_status status = fit(run, model, !loaded, rows_least, err);
    if (status == EVQ_OK && loaded && run->tied_differ) {
        status = check_tied(run, model, err); // Each task has its own options about tied heads.
    }
    evq_model_free(native->model); // The backend no longer uses its plan.
    native->model = model;
    run->rows = model->plan.rows_max;
    if (status == EVQ_OK) {
        run->loaded = model;
    }
    if (status == EVQ_OK && model->ignored[0] != '\0') {
        evq_log(EVQ_LOG_WARN, "tensors_ignored", "checkpoint=%s task=%s tensors=%s",
                run->checkpoint->path, run->config->name, model->ignored);
    }
    return status;
}

enum evq_status evq_native_shrink(struct evq_native_run *run, int32_t rows_least,
                                  struct evq_error *err)
{
    struct evq_model *model = run->native->model;
    const int32_t wanted = run->rows_wanted > 0 ? run->rows_wanted : run->rows;

    if (run->rows / 2 < rows_least) {
        return evq_error_set(err, EVQ_E_NOMEM, "batches of %d rows do not fit into memory",
                             (int)run->rows);
    }
    model->plan.rows_max = run->rows / 2;
    const enum evq_status status = fit(run, model, false, rows_least, err);
    run->rows = model->plan.rows_max;
    run->rows_wanted = wanted;
    return status;
}

enum evq_status evq_native_progress(const struct evq_native_run *run, const char *doing,
                                    int64_t done, int64_t total)
{
    char text[96];

    (void)snprintf(text, sizeof(text), "task %.64s%s", run->config->name, doing);
    return run->report->progress != NULL
               ? run->report->progress(run->report->context, done, total, text)
               : EVQ_OK;
}

const char *evq_native_directory(const struct evq_native_run *run, struct evq_arena *arena)
{
    const char *file = run->request->config != NULL ? run->request->config->file : "";
    const char *slash = strrchr(file, '/');

    return evq_arena_strndup(arena, file, slash != NULL ? (size_t)(slash - file) : 0);
}

void evq_native_tell(void *listener)
{
    struct evq_native_run *run = listener;
    const int64_t now_ms = evq_clock_mono_ms();

    if (now_ms - run->told_ms >= TELL_MS) {
        run->told_ms = now_ms;
        const enum evq_status ignored = evq_native_progress(run, "", run->done, run->total);
        (void)ignored; // A request to stop is repeated when the batch ends.
    }
}
