#include "worker/evaluators/native/native_scores.h"

#include <stdio.h>
#include <stdlib.h>

#include "worker/datasets/corpus_build.h"
#include "worker/evaluators/checkpoint_location.h"
#include "worker/evaluators/native/native_run.h"
#include "worker/evaluators/native/native_tokenizer.h"
#include "worker/tasks/task_options.h"

enum kind { CONTINUATIONS, WHOLE_TEXTS, KIND_COUNT };

static const char *const kind_tasks[KIND_COUNT] = {"loglikelihood", "perplexity"};

struct evq_native_scorer {
    struct evq_eval_request request;
    const struct evq_eval_report *report;
    struct evq_native_run run; // run.checkpoint NULL: nothing is loaded.
    struct evq_task_config configs[KIND_COUNT];
    struct evq_checkpoint_location place;
    int32_t prefix; // The token before a text without context that the caller chose; -1: none.
    char no_tokenizer[sizeof(((struct evq_error *)NULL)->message)];
    enum kind kind;           // Of the requests that wait.
    struct evq_corpus corpus; // Their tokens.
    struct evq_corpus_source source;
    struct evq_corpus_build build;
    struct evq_native_score *scores;
};

static void drop_requests(struct evq_native_scorer *scorer)
{
    scorer->corpus.tokens.count = 0;
    scorer->corpus.passage_count = 0;
    scorer->corpus.item_count = 0;
}

static void unload(struct evq_native_scorer *scorer)
{
    drop_requests(scorer);
    evq_native_close_checkpoint(&scorer->run);
    evq_checkpoint_location_close(&scorer->place);
    scorer->source.tokenizer = NULL;
}

enum evq_status evq_native_scorer_new(struct evq_native *native, const struct evq_config *config,
                                      const struct evq_eval_report *report,
                                      struct evq_native_scorer **ret_scorer, struct evq_error *err)
{
    struct evq_native_scorer *scorer = calloc(1, sizeof(*scorer));

    if (scorer == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "scorer");
    }
    scorer->place.root_fd = -1;
    scorer->request = (struct evq_eval_request){.config = config, .prepared = "", .shard = -1};
    scorer->report = report;
    scorer->run = (struct evq_native_run){
        .native = native, .request = &scorer->request, .report = scorer->report};
    scorer->corpus.name = "the requests";
    scorer->build.corpus = &scorer->corpus;
    scorer->build.source = &scorer->source;
    evq_buffer_init(&scorer->build.joined, 0);
    scorer->build.scratch = evq_tokenizer_scratch_new();
    if (scorer->build.scratch == NULL) {
        evq_native_scorer_free(scorer);
        return evq_error_set(err, EVQ_E_NOMEM, "tokenizer");
    }
    *ret_scorer = scorer;
    return EVQ_OK;
}

void evq_native_scorer_free(struct evq_native_scorer *scorer)
{
    if (scorer == NULL) {
        return;
    }
    unload(scorer);
    evq_buffer_free(&scorer->build.joined);
    evq_tokens_free(&scorer->build.context);
    evq_tokenizer_scratch_free(scorer->build.scratch);
    evq_corpus_free(&scorer->corpus); // Its arena, which would own it, is NULL.
    free(scorer->scores);
    free(scorer);
}

static enum evq_status read_options(struct evq_native_scorer *scorer,
                                    const struct evq_task_config *how, struct evq_error *err)
{
    static const char *const data_keys[] = {"tokenizer", "prefix", NULL};
    int64_t prefix = -1;

    for (enum kind kind = CONTINUATIONS; kind < KIND_COUNT; kind++) {
        scorer->configs[kind] = *how;
        scorer->configs[kind].name = scorer->corpus.name;
        scorer->configs[kind].type = kind_tasks[kind];
    }
    scorer->run.config = &scorer->configs[CONTINUATIONS];
    enum evq_status status = evq_task_find(scorer->run.config, &scorer->run.task, err);
    if (status == EVQ_OK) {
        status = evq_model_check(how, err);
    }
    if (status == EVQ_OK) {
        status = evq_task_options_check(how->data, how->data_count, data_keys, "data", err);
    }
    if (status == EVQ_OK) {
        status = evq_task_options_integer(how->data, how->data_count, "prefix", "data", 0,
                                          EVQ_TOKENIZER_IDS_MAX - 1, -1, &prefix, err);
    }
    scorer->prefix = (int32_t)prefix;
    return status;
}

/* Opens the tokenizer. If evalq cannot read it, the caller can still send tokens. */
static enum evq_status open_tokenizer(struct evq_native_scorer *scorer, struct evq_error *err)
{
    struct evq_error fault = {.status = EVQ_OK};

    scorer->no_tokenizer[0] = '\0';
    const enum evq_status status =
        evq_native_tokenizer(&scorer->run, "", &scorer->source.tokenizer, &fault);
    if (status == EVQ_E_UNSUPPORTED || status == EVQ_E_NOT_FOUND) {
        (void)snprintf(scorer->no_tokenizer, sizeof(scorer->no_tokenizer), "%s", fault.message);
    } else if (status != EVQ_OK) {
        return evq_error_set(err, status, "%s", fault.message);
    }
    scorer->corpus.counted = scorer->source.tokenizer != NULL;
    scorer->corpus.prefix = scorer->prefix;
    if (scorer->prefix < 0 && scorer->source.tokenizer != NULL) {
        scorer->corpus.prefix = evq_tokenizer_prefix(scorer->source.tokenizer);
    }
    return EVQ_OK;
}

static enum evq_status describe(struct evq_native_scorer *scorer,
                                struct evq_native_scorer_model *ret_model, struct evq_error *err)
{
    const struct evq_native *native = scorer->run.native;
    struct evq_model *model = NULL;
    int32_t length = 0;

    enum evq_status status =
        evq_native_model_build(scorer->run.task, scorer->run.config, scorer->run.checkpoint,
                               evq_native_fast_bf16(native), &length, &model, err);
    if (status != EVQ_OK) {
        return status;
    }
    status = evq_native_check_length(model, length, err);
    *ret_model = (struct evq_native_scorer_model){
        .vocabulary = model->outputs,
        .context = length > 0 ? length : model->context,
        .compute = model->plan.compute == EVQ_COMPUTE_BF16 ? "bf16" : "fp32",
        .device = native->caps.device,
        .no_tokenizer = scorer->no_tokenizer,
        .family = model->family}; // The family's name is static.
    evq_model_free(model);
    return status;
}

enum evq_status evq_native_scorer_load(struct evq_native_scorer *scorer, const char *path,
                                       const char *variant, const struct evq_task_config *how,
                                       struct evq_native_scorer_model *ret_model,
                                       struct evq_error *err)
{
    unload(scorer);
    enum evq_status status = read_options(scorer, how, err);
    if (status == EVQ_OK) {
        status = evq_checkpoint_location_open(path, &scorer->place, err);
    }
    if (status == EVQ_OK) {
        scorer->request.root_fd = scorer->place.root_fd;
        scorer->request.root_path = scorer->place.root;
        scorer->request.path = scorer->place.path;
        scorer->request.variant = variant;
        status = evq_native_open_checkpoint(&scorer->run, err);
    }
    if (status == EVQ_OK) {
        status = describe(scorer, ret_model, err);
    }
    if (status == EVQ_OK) {
        status = open_tokenizer(scorer, err);
    }
    if (status != EVQ_OK) {
        unload(scorer);
    }
    return status;
}

static enum evq_status check_addition(const struct evq_native_scorer *scorer, enum kind kind,
                                      const struct evq_native_scorer_text *context,
                                      const struct evq_native_scorer_text *text,
                                      struct evq_error *err)
{
    const bool tokens = text->text == NULL;

    if (scorer->run.checkpoint == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "a request came before a checkpoint was loaded");
    }
    if (scorer->corpus.passage_count > 0 && scorer->kind != kind) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "continuations and whole texts wait together, expected one kind");
    }
    if (!tokens && scorer->source.tokenizer == NULL) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "only tokens can be scored: %s",
                             scorer->no_tokenizer);
    }
    if (context != NULL && (context->text == NULL) != tokens) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "a context and its continuation are a text and tokens, expected the "
                             "same of both");
    }
    if (context != NULL && tokens && (context->count == 0 || text->count == 0)) {
        return evq_error_set(err, EVQ_E_INVALID, "a %s has no tokens, expected at least one",
                             context->count == 0 ? "context" : "continuation");
    }
    return EVQ_OK;
}

static enum evq_status add_tokens(struct evq_native_scorer *scorer,
                                  const struct evq_native_scorer_text *context,
                                  const struct evq_native_scorer_text *text, struct evq_error *err)
{
    struct evq_corpus *corpus = &scorer->corpus;
    const size_t lead = context != NULL ? context->count : 0;
    const struct evq_passage passage = {.first = (int64_t)corpus->tokens.count,
                                        .context = (int64_t)lead};

    enum evq_status status =
        evq_corpus_append_tokens(corpus, lead > 0 ? context->ids : NULL, lead, err);
    if (status == EVQ_OK) {
        status = evq_corpus_append_tokens(corpus, text->ids, text->count, err);
    }
    return status == EVQ_OK ? evq_corpus_add_passage(&scorer->build, passage, NULL, 0, err)
                            : status;
}

enum evq_status evq_native_scorer_add(struct evq_native_scorer *scorer,
                                      const struct evq_native_scorer_text *context,
                                      const struct evq_native_scorer_text *texts, int32_t count,
                                      struct evq_error *err)
{
    const enum kind kind = context != NULL ? CONTINUATIONS : WHOLE_TEXTS;
    enum evq_status status = EVQ_OK;

    for (int32_t i = 0; i < count && status == EVQ_OK; i++) {
        const struct evq_native_scorer_text *text = &texts[i];
        status = check_addition(scorer, kind, context, text, err);
        if (status != EVQ_OK) {
            break;
        }
        scorer->kind = kind;
        if (text->text == NULL) {
            status = add_tokens(scorer, context, text, err);
        } else if (context != NULL) {
            status = evq_corpus_add_pair(&scorer->build, context->text, context->count, text->text,
                                         text->count, NULL, 0, err);
        } else {
            status = evq_corpus_add_document(&scorer->build, text->text, text->count, NULL, 0, err);
        }
    }
    if (status == EVQ_OK && context != NULL) {
        status = evq_corpus_add_item(&scorer->build, count, 0, err);
    }
    if (status != EVQ_OK) {
        drop_requests(scorer);
    }
    return status;
}

/* Adds the windows of each passage up. */
static enum evq_status keep_scores(struct evq_native_scorer *scorer,
                                   const struct evq_windows *windows, struct evq_error *err)
{
    const size_t count = scorer->corpus.passage_count;
    struct evq_native_score *scores = reallocarray(scorer->scores, count + 1, sizeof(*scores));

    if (scores == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "scores of %zu requests", count);
    }
    scorer->scores = scores;
    for (size_t i = 0; i < count; i++) {
        scores[i] = (struct evq_native_score){.greedy = true};
    }
    for (int64_t i = 0; i < windows->count; i++) {
        struct evq_native_score *score = &scores[windows->items[i].group];
        score->logprob -= windows->results[i].loss;
        score->greedy = score->greedy && windows->results[i].greedy == windows->items[i].scored;
    }
    return EVQ_OK;
}

enum evq_status evq_native_scorer_run(struct evq_native_scorer *scorer,
                                      const struct evq_native_score **ret_scores, size_t *ret_count,
                                      struct evq_error *err)
{
    struct evq_corpus *corpus = &scorer->corpus;
    struct evq_windows windows = {.corpus = corpus};

    *ret_count = corpus->passage_count;
    if (corpus->passage_count == 0) {
        return EVQ_OK;
    }
    corpus->most = -1;
    for (size_t i = 0; i < corpus->tokens.count; i++) {
        corpus->most = corpus->tokens.ids[i] > corpus->most ? corpus->tokens.ids[i] : corpus->most;
    }
    scorer->run.config = &scorer->configs[scorer->kind];
    enum evq_status status = evq_task_find(scorer->run.config, &scorer->run.task, err);
    if (status == EVQ_OK) {
        status = evq_native_score_corpus(&scorer->run, &windows, err);
    }
    if (status == EVQ_OK) {
        status = keep_scores(scorer, &windows, err);
    }
    evq_windows_free(&windows);
    drop_requests(scorer);
    *ret_scores = scorer->scores;
    return status;
}
