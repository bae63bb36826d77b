/* Runs tasks over tokens. Windows of a corpus are packed into batches, the longest first, so that
 * every batch is full. */
#include "worker/evaluators/native/native_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "worker/evaluators/native/native_tokenizer.h"

#define CPU_BATCH_ROWS    2048  // Most rows of a batch on the CPU,
#define DEVICE_BATCH_ROWS 32768 // and on a GPU.

struct place { // Where a window is in the order of execution.
    int32_t rows;
    int64_t window;
};

struct packing {
    const struct evq_windows *windows;
    struct place *order;
    int32_t rows_max, scores_max;
    bool typed;             // The model reads the types of tokens.
    struct evq_batch batch; // Its arrays are the ones below.
    int32_t *tokens, *types, *starts, *score_rows, *score_targets;
    int64_t *score_windows;
    struct evq_row_result *results;
};

static bool same_corpus(const void *thing, const void *wanted)
{
    return evq_corpus_current(thing, wanted);
}

static enum evq_status tell_reading(void *context, int64_t done, int64_t total)
{
    return evq_native_progress(context, ", reading data", done, total);
}

/* Finds the corpus in the cache, or reads it. */
static enum evq_status find_corpus(struct evq_native_run *run, const struct evq_corpus **ret_corpus,
                                   struct evq_error *err)
{
    struct evq_native_cache *warm = &run->native->corpora;
    struct evq_arena *arena = evq_arena_new(0);
    const struct evq_progress progress = {tell_reading, run};
    struct evq_corpus_source source = {
        .task = run->config, .kind = run->task->tokens->kind, .progress = &progress};
    struct evq_corpus *corpus = NULL;

    enum evq_status status = evq_corpus_check(run->config, source.kind, err);
    source.directory = arena != NULL ? evq_native_directory(run, arena) : NULL;
    if (status == EVQ_OK && source.directory == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "data set");
    }
    if (status == EVQ_OK) {
        status = evq_native_tokenizer(run, source.directory, &source.tokenizer, err);
    }
    if (status == EVQ_OK) {
        corpus = evq_native_cache_find(warm, same_corpus, &source);
    }
    if (status == EVQ_OK && corpus == NULL) {
        status = evq_corpus_open(&source, &corpus, err);
        if (status == EVQ_OK) {
            evq_native_cache_keep(warm, corpus, evq_corpus_bytes(corpus));
        }
    }
    evq_arena_free(arena);
    if (status == EVQ_OK) {
        *ret_corpus = corpus;
        run->data_digest = corpus->digest;
    }
    return status;
}

static enum evq_status check_vocabulary(const struct evq_corpus *corpus, int32_t vocabulary,
                                        struct evq_error *err)
{
    const int32_t most = corpus->most > corpus->prefix ? corpus->most : corpus->prefix;

    if (most < vocabulary) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_INVALID,
                         "'%s' has token id %d, but the model's vocabulary ends at %d%s",
                         corpus->name, (int)most, (int)(vocabulary - 1),
                         corpus->counted ? ": the tokenizer does not fit the model" : "");
}

/* Checks the labels of texts and the types of their tokens. */
static enum evq_status check_texts(const struct evq_corpus *corpus, const struct evq_model *model,
                                   struct evq_error *err)
{
    for (size_t i = 0; i < corpus->item_count; i++) {
        if (corpus->items[i].gold >= model->outputs) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "item %zu of '%s' has label %d, expected 0 to %d", i, corpus->name,
                                 (int)corpus->items[i].gold, (int)(model->outputs - 1));
        }
    }
    // A tokenizer may give types that the model does not read.
    const int32_t types = model->types > 0 ? model->types : corpus->counted ? INT32_MAX : 1;
    for (size_t i = 0; i < corpus->types.count; i++) {
        if (corpus->types.ids[i] >= types) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "'%s' has a token of type %d, but the model's types end at %d",
                                 corpus->name, (int)corpus->types.ids[i], (int)(types - 1));
        }
    }
    for (size_t i = 0; i < corpus->tokens.count && model->padding >= 0; i++) {
        if (corpus->tokens.ids[i] == model->padding) {
            return evq_error_set(err, EVQ_E_UNSUPPORTED,
                                 "'%s' has the padding token %d inside a text, which gets no "
                                 "position of its own in this model",
                                 corpus->name, (int)model->padding);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_native_check_length(const struct evq_model *model, int32_t length,
                                        struct evq_error *err)
{
    if (model->context < 1) {
        return evq_error_set(err, EVQ_E_INVALID, "the model (%s) reads samples, not tokens",
                             model->family);
    }
    return length <= model->context
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_LIMIT,
                               "length is %d tokens, but the model takes sequences of at most %d",
                               (int)length, (int)model->context);
}

/* Makes the windows of this shard, as long as the model or the task allows. */
static enum evq_status cut_windows(struct evq_native_run *run, const struct evq_model *model,
                                   int32_t length, struct evq_windows *windows,
                                   struct evq_error *err)
{
    const bool sharded = run->request->shard_count > 0 && run->request->shard >= 0;

    enum evq_status status = evq_native_check_length(model, length, err);
    if (status == EVQ_OK) {
        status = check_vocabulary(windows->corpus, model->vocabulary, err);
    }
    if (status == EVQ_OK && run->task->tokens->kind == EVQ_CORPUS_LABELS) {
        status = check_texts(windows->corpus, model, err);
    }
    windows->config = run->config;
    windows->length_max = length > 0 ? length : model->context;
    windows->shard = sharded ? run->request->shard : 0;
    windows->shard_count = sharded ? run->request->shard_count : 1;
    return status == EVQ_OK ? run->task->tokens->windows(windows, err) : status;
}

static int longest_first(const void *left, const void *right)
{
    const struct place *a = left;
    const struct place *b = right;

    if (a->rows != b->rows) {
        return a->rows > b->rows ? -1 : 1;
    }
    return a->window < b->window ? -1 : a->window > b->window;
}

static enum evq_status order_windows(struct packing *packing, struct evq_error *err)
{
    const struct evq_windows *windows = packing->windows;

    packing->order = calloc((size_t)windows->count + 1, sizeof(*packing->order));
    if (packing->order == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "the order of %lld windows",
                             (long long)windows->count);
    }
    for (int64_t i = 0; i < windows->count; i++) {
        packing->order[i] =
            (struct place){.rows = evq_window_rows(&windows->items[i]), .window = i};
    }
    qsort(packing->order, (size_t)windows->count, sizeof(*packing->order), longest_first);
    return EVQ_OK;
}

static enum evq_status load_model(struct evq_native_run *run, struct packing *packing,
                                  struct evq_model *model, struct evq_error *err)
{
    const int32_t longest = packing->windows->count > 0 ? packing->order[0].rows : 1;
    const bool gpu = run->native->backend.module != NULL;
    const int32_t rows = gpu ? DEVICE_BATCH_ROWS : CPU_BATCH_ROWS;

    packing->typed = model->types > 0;
    model->plan.length_max = longest;
    model->plan.rows_max = rows > longest ? rows : longest;
    const enum evq_status status = evq_native_load(run, model, longest, err);
    packing->rows_max = run->rows;
    return status;
}

static enum evq_status packing_alloc(struct packing *packing, struct evq_error *err)
{
    const size_t rows = (size_t)packing->rows_max;
    const size_t scores = 2 * rows; // Several scores may belong to one row.

    packing->scores_max = 2 * packing->rows_max;
    packing->tokens = calloc(rows, sizeof(*packing->tokens));
    packing->types = calloc(rows, sizeof(*packing->types));
    packing->starts = calloc(rows + 1, sizeof(*packing->starts));
    packing->score_rows = calloc(scores, sizeof(*packing->score_rows));
    packing->score_targets = calloc(scores, sizeof(*packing->score_targets));
    packing->score_windows = calloc(scores, sizeof(*packing->score_windows));
    packing->results = calloc(scores, sizeof(*packing->results));
    if (packing->tokens == NULL || packing->types == NULL || packing->starts == NULL ||
        packing->score_rows == NULL || packing->score_targets == NULL ||
        packing->score_windows == NULL || packing->results == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a batch of %zu tokens", rows);
    }
    packing->batch = (struct evq_batch){.tokens = packing->tokens,
                                        .types = packing->types,
                                        .starts = packing->starts,
                                        .score_rows = packing->score_rows,
                                        .score_targets = packing->score_targets};
    return EVQ_OK;
}

static void packing_free(struct packing *packing)
{
    free(packing->order);
    free(packing->tokens);
    free(packing->types);
    free(packing->starts);
    free(packing->score_rows);
    free(packing->score_targets);
    free(packing->score_windows);
    free(packing->results);
}

/* Appends the only score of a window with a label. */
static void pack_label(struct packing *packing, const struct evq_window *window, int64_t at)
{
    const struct evq_corpus *corpus = packing->windows->corpus;
    struct evq_batch *batch = &packing->batch;
    const int32_t start = batch->rows - window->length;

    for (int32_t i = 0; i < window->length; i++) {
        packing->types[start + i] =
            packing->typed && corpus->types.count > 0 ? corpus->types.ids[window->first + i] : 0;
    }
    packing->score_rows[batch->scores] = start;
    packing->score_targets[batch->scores] = window->label;
    packing->score_windows[batch->scores++] = at;
}

/* Token i of a window, including the prefix. */
static int32_t token_at(const struct evq_windows *windows, const struct evq_window *window,
                        int32_t i)
{
    const int32_t at = i - (window->prefixed ? 1 : 0);

    return at < 0 ? windows->corpus->prefix : windows->corpus->tokens.ids[window->first + at];
}

/* Whether the window has the same inputs as the sequence packed last, and each has one score. */
static bool shares_inputs(const struct packing *packing, const struct evq_window *window)
{
    const struct evq_batch *batch = &packing->batch;
    const int32_t rows = evq_window_rows(window);

    if (batch->sequences == 0 || window->scored != 1 || window->labelled ||
        batch->score_rows[batch->scores - 1] != batch->rows - 1) {
        return false;
    }
    const int32_t start = batch->starts[batch->sequences - 1];
    bool same = batch->rows - start == rows;
    for (int32_t i = 0; i < rows && same; i++) {
        same = packing->tokens[start + i] == token_at(packing->windows, window, i);
    }
    return same;
}

/* Adds a window to the batch. False: the batch is full, and nothing was added. */
static bool pack(struct packing *packing, int64_t at)
{
    const struct evq_window *window = &packing->windows->items[at];
    struct evq_batch *batch = &packing->batch;
    const int32_t rows = evq_window_rows(window);
    const bool shares = shares_inputs(packing, window);

    if (batch->scores + window->scored > packing->scores_max ||
        (!shares && batch->rows + rows > packing->rows_max)) {
        return false;
    }
    if (!shares) {
        packing->starts[batch->sequences++] = batch->rows;
        for (int32_t i = 0; i < rows; i++) {
            packing->tokens[batch->rows++] = token_at(packing->windows, window, i);
        }
        packing->starts[batch->sequences] = batch->rows;
    }
    if (window->labelled) {
        pack_label(packing, window, at);
        return true;
    }
    for (int32_t i = rows - window->scored; i < rows; i++) {
        packing->score_rows[batch->scores] = batch->rows - rows + i;
        packing->score_targets[batch->scores] = token_at(packing->windows, window, i + 1);
        packing->score_windows[batch->scores++] = at;
    }
    return true;
}

/* The scores of a window are adjacent, so they are added in registers while the device waits. */
static void collect(const struct packing *packing)
{
    const int64_t *windows = packing->score_windows;

    for (int32_t i = 0; i < packing->batch.scores;) {
        const int64_t window = windows[i];
        struct evq_window_result sum = packing->windows->results[window];
        for (; i < packing->batch.scores && windows[i] == window; i++) {
            sum.loss += packing->results[i].loss;
            sum.greedy += packing->results[i].predicted == packing->score_targets[i];
            sum.nans += isnan(packing->results[i].loss) != 0;
            sum.predicted = packing->results[i].predicted;
            sum.in_top_k = packing->results[i].in_top_k;
        }
        packing->windows->results[window] = sum;
    }
}

static enum evq_status run_windows(struct evq_native_run *run, struct packing *packing,
                                   struct evq_error *err)
{
    const struct evq_native *native = run->native;
    const int64_t total = packing->windows->count;
    enum evq_status status = EVQ_OK;

    run->total = total;
    packing->batch.tell = evq_native_tell;
    packing->batch.listener = run;
    for (int64_t done = 0; done < total && status == EVQ_OK;) {
        const int64_t began = done;
        run->done = done;
        packing->batch.rows = packing->batch.sequences = packing->batch.scores = 0;
        while (done < total && pack(packing, packing->order[done].window)) {
            done++;
        }
        status = native->backend.ops->exec(native->state, &packing->batch, packing->results, err);
        if (status == EVQ_E_NOMEM) { // The same windows are run again in smaller batches.
            done = began;
            status = evq_native_shrink(run, packing->order[0].rows, err);
            packing->rows_max = run->rows;
            packing->scores_max = 2 * packing->rows_max;
        } else if (status == EVQ_OK) {
            collect(packing);
            run->timing.tokens += packing->batch.rows;
            status = evq_native_progress(run, "", done, total);
        }
    }
    return status;
}

/* Scores all windows. Takes over the model. */
static enum evq_status score_windows(struct evq_native_run *run, struct evq_model *model,
                                     struct evq_windows *windows, struct evq_error *err)
{
    struct packing packing = {.windows = windows};

    enum evq_status status = order_windows(&packing, err);
    if (status != EVQ_OK) {
        evq_model_free(model);
        return status;
    }
    status = load_model(run, &packing, model, err);
    run->loaded_us = evq_clock_mono_us();
    windows->results = calloc((size_t)windows->count + 1, sizeof(*windows->results));
    if (status == EVQ_OK && windows->results == NULL) {
        status =
            evq_error_set(err, EVQ_E_NOMEM, "results of %lld windows", (long long)windows->count);
    }
    if (status == EVQ_OK) {
        status = packing_alloc(&packing, err);
    }
    if (status == EVQ_OK) {
        status = run_windows(run, &packing, err);
    }
    packing_free(&packing);
    return status;
}

/* Whether all matrices are bf16 or fp16. Norms and biases may be fp32. */
static bool has_half_weights(const struct evq_model *model)
{
    bool half = true;

    for (size_t i = 0; i < model->source_count && half; i++) {
        const struct evq_tensor *tensor = model->sources[i].tensor;
        half = tensor == NULL || tensor->rank < 2 || tensor->dtype == EVQ_DTYPE_BF16 ||
               tensor->dtype == EVQ_DTYPE_F16;
    }
    return half;
}

enum evq_status evq_native_model_build(const struct evq_task *task,
                                       const struct evq_task_config *config,
                                       const struct evq_checkpoint *checkpoint, bool fast_bf16,
                                       int32_t *ret_length, struct evq_model **ret_model,
                                       struct evq_error *err)
{
    struct evq_model_request request = {
        .checkpoint = checkpoint, .task = config, .rows_max = CPU_BATCH_ROWS};
    struct evq_token_options options;

    enum evq_status status = task->head(config, &request.head, err);
    if (status == EVQ_OK) {
        status = evq_task_token_options(config, &options, err);
    }
    if (status == EVQ_OK) {
        status = evq_model_build(&request, ret_model, err);
    }
    if (status == EVQ_OK) {
        *ret_length = options.length;
        (*ret_model)->plan.compute =
            options.compute_auto && fast_bf16 && has_half_weights(*ret_model) ? EVQ_COMPUTE_BF16
                                                                              : options.compute;
    }
    return status;
}

enum evq_status evq_native_score_corpus(struct evq_native_run *run, struct evq_windows *windows,
                                        struct evq_error *err)
{
    struct evq_model *model = NULL;
    int32_t length = 0;

    enum evq_status status =
        evq_native_model_build(run->task, run->config, run->checkpoint,
                               evq_native_fast_bf16(run->native), &length, &model, err);
    if (status == EVQ_OK) {
        status = cut_windows(run, model, length, windows, err);
    }
    if (status == EVQ_OK) {
        status = score_windows(run, model, windows, err);
        model = NULL;
    }
    evq_model_free(model);
    return status;
}

enum evq_status evq_native_tokens(struct evq_native_run *run, struct evq_task_sum *sums,
                                  struct evq_error *err)
{
    struct evq_windows windows = {0};

    enum evq_status status = find_corpus(run, &windows.corpus, err);
    if (status == EVQ_OK) {
        status = evq_native_score_corpus(run, &windows, err);
    }
    if (status == EVQ_OK) {
        run->task->tokens->add(sums, &windows);
        evq_native_keep_windows(run, &windows);
        run->timing.samples = sums[0].count;
    }
    evq_windows_free(&windows);
    return status;
}
