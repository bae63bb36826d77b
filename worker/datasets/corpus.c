#include "worker/datasets/corpus.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "shared/base/file.h"
#include "worker/datasets/corpus_build.h"
#include "worker/tasks/task_options.h"

static const char *const document_keys[] = {"format", "text",  "tokenizer",  "prefix", "limit",
                                            "field",  "split", "detokenize", NULL};
static const char *const token_keys[] = {"format", "tokens", "dtype", "tokenizer",
                                         "prefix", "limit",  NULL};
static const char *const item_keys[] = {
    "format", "text",    "tokenizer",   "prefix", "limit", "labels",           "template",
    "target", "choices", "label_names", "label",  "clean", "target_delimiter", NULL};

static const char *const array_keys[] = {"format", "tokens", "mask", "types",
                                         "labels", "limit",  NULL};

static const char *const labelled_keys[] = {
    "format",      "text",          "tokenizer",     "limit",      "template", "label",
    "class_names", "class_names.#", "pair_template", "max_length", NULL};

/* Whether the key is an entry of the list of choices: "choices.0". */
static bool is_choice(const char *key)
{
    return strncmp(key, "choices.", 8) == 0 && isdigit((unsigned char)key[8]);
}

static enum evq_status check_keys(const struct evq_task_config *task, const char *const *known,
                                  struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < task->data_count && status == EVQ_OK; i++) {
        if (known != item_keys || !is_choice(task->data[i].key)) {
            status = evq_task_options_check(&task->data[i], 1, known, "data", err);
        }
    }
    return status;
}

bool evq_corpus_needs_tokenizer(const struct evq_task_config *task)
{
    return strcmp(evq_corpus_option(task, "format", ""), "tokens") != 0;
}

static enum evq_status need_path(const struct evq_task_config *task, const char *key,
                                 struct evq_error *err)
{
    return evq_corpus_option(task, key, "")[0] != '\0'
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_INVALID, "data: %s is missing, which format %s needs",
                               key, evq_corpus_option(task, "format", ""));
}

struct numbers {
    int64_t limit, prefix;
};

static enum evq_status read_numbers(const struct evq_task_config *task, struct numbers *numbers,
                                    struct evq_error *err)
{
    const enum evq_status status =
        evq_task_options_integer(task->data, task->data_count, "limit", "data", 1, INT64_MAX,
                                 INT64_MAX, &numbers->limit, err);

    return status != EVQ_OK
               ? status
               : evq_task_options_integer(task->data, task->data_count, "prefix", "data", 0,
                                          EVQ_TOKENIZER_IDS_MAX - 1, -1, &numbers->prefix, err);
}

static const char *const *known_keys(enum evq_corpus_kind kind, bool tokens)
{
    if (kind == EVQ_CORPUS_LABELS) {
        return tokens ? array_keys : labelled_keys;
    }
    return tokens ? token_keys : kind == EVQ_CORPUS_DOCUMENTS ? document_keys : item_keys;
}

enum evq_status evq_corpus_check(const struct evq_task_config *task, enum evq_corpus_kind kind,
                                 struct evq_error *err)
{
    static const char *const formats[] = {"text", "jsonl", "tokens"};
    const char *format = evq_corpus_option(task, "format", "");
    const bool tokens = strcmp(format, "tokens") == 0;
    const bool documents = kind == EVQ_CORPUS_DOCUMENTS;
    const bool labels = kind == EVQ_CORPUS_LABELS;
    struct numbers numbers;

    if (!tokens && strcmp(format, "jsonl") != 0 && strcmp(format, "text") != 0) {
        return evq_task_options_unknown("data: format", format, formats, 3, err);
    }
    if (!documents && strcmp(format, "jsonl") != 0 && !(labels && tokens)) {
        return evq_error_set(err, EVQ_E_INVALID, "data: format is %s, but this task needs jsonl%s",
                             format, labels ? " or tokens" : "");
    }
    enum evq_status status = check_keys(task, known_keys(kind, tokens), err);
    if (status == EVQ_OK) {
        status = need_path(task, tokens ? "tokens" : "text", err);
    }
    if (status == EVQ_OK) {
        status = read_numbers(task, &numbers, err);
    }
    if (status == EVQ_OK && labels) {
        return tokens ? evq_labelled_tokens_check(task, err) : evq_labelled_text_check(task, err);
    }
    if (status != EVQ_OK || tokens) {
        return status;
    }
    return documents ? evq_documents_check(task, err) : evq_prompt_items_check(task, kind, err);
}

static const char *resolve(struct evq_arena *arena, const char *directory, const char *path)
{
    return path[0] == '/' || path[0] == '\0' || directory[0] == '\0'
               ? evq_arena_strdup(arena, path)
               : evq_arena_printf(arena, "%s/%s", directory, path);
}

/* Makes one text of everything that decides what is read. */
static const char *make_key(struct evq_arena *arena, const struct evq_corpus_source *source)
{
    struct evq_buffer text;

    evq_buffer_init(&text, 0);
    evq_buffer_printf(&text, "%d\n%s\n%s\n", (int)source->kind, source->directory,
                      source->tokenizer != NULL ? evq_tokenizer_digest(source->tokenizer) : "");
    for (size_t i = 0; i < source->task->data_count; i++) {
        evq_buffer_printf(&text, "%s=%zu:%s\n", source->task->data[i].key,
                          strlen(source->task->data[i].value), source->task->data[i].value);
    }
    const char *whole = evq_buffer_string(&text);
    const char *key = whole != NULL ? evq_arena_strdup(arena, whole) : NULL;
    evq_buffer_free(&text);
    return key;
}

static void note_file(const char *path, struct stat *info)
{
    if (path[0] == '\0' || stat(path, info) != 0) {
        memset(info, 0, sizeof(*info)); // Reading the file later reports why.
    }
}

static enum evq_status make_digest(struct evq_corpus *corpus, struct evq_error *err)
{
    static const char digits[] = "0123456789abcdef";
    XXH3_state_t *state = XXH3_createState();
    XXH128_canonical_t canonical;

    if (state == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "digest of '%s'", corpus->name);
    }
    (void)XXH3_128bits_reset(state); // This fails only for a NULL state, and so do the updates.
    (void)XXH3_128bits_update(state, &corpus->prefix, sizeof(corpus->prefix));
    (void)XXH3_128bits_update(state, corpus->tokens.ids,
                              corpus->tokens.count * sizeof(*corpus->tokens.ids));
    if (corpus->types.count > 0) {
        (void)XXH3_128bits_update(state, corpus->types.ids,
                                  corpus->types.count * sizeof(*corpus->types.ids));
    }
    for (size_t i = 0; i < corpus->passage_count; i++) {
        (void)XXH3_128bits_update(state, &corpus->passages[i], offsetof(struct evq_passage, after));
    }
    if (corpus->item_count > 0) {
        (void)XXH3_128bits_update(state, corpus->items,
                                  corpus->item_count * sizeof(*corpus->items));
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    (void)XXH3_freeState(state);
    for (size_t i = 0; i < sizeof(canonical.digest); i++) {
        corpus->digest[2 * i] = digits[canonical.digest[i] >> 4];
        corpus->digest[2 * i + 1] = digits[canonical.digest[i] & 15];
    }
    corpus->digest[32] = '\0';
    return EVQ_OK;
}

static enum evq_status read_text(struct evq_corpus_build *build, struct evq_error *err)
{
    const struct evq_corpus_source *source = build->source;
    enum evq_status status = EVQ_OK;

    if (source->tokenizer == NULL) {
        return evq_error_set(err, EVQ_E_BUG, "text without a tokenizer");
    }
    build->scratch = evq_tokenizer_scratch_new();
    if (build->scratch == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "tokenizer");
    }
    evq_corpus_watch(build);
    build->corpus->counted = true;
    evq_buffer_init(&build->joined, 0);
    status = source->kind == EVQ_CORPUS_DOCUMENTS ? evq_documents_read(build, err)
             : source->kind == EVQ_CORPUS_LABELS  ? evq_labelled_text_read(build, err)
                                                  : evq_prompt_items_read(build, err);
    evq_buffer_free(&build->joined);
    evq_tokens_free(&build->context);
    evq_tokenizer_scratch_free(build->scratch);
    return status;
}

static enum evq_status read_files(struct evq_corpus_build *build, struct evq_error *err)
{
    struct evq_corpus *corpus = build->corpus;
    struct stat after;

    for (size_t i = 0; i < EVQ_CORPUS_PATHS; i++) {
        note_file(corpus->paths[i], &corpus->files[i]);
    }
    const enum evq_status status =
        evq_corpus_needs_tokenizer(build->source->task) ? read_text(build, err)
        : build->source->kind == EVQ_CORPUS_LABELS      ? evq_labelled_tokens_read(build, err)
                                                        : evq_corpus_read_tokens(build, err);
    for (size_t i = 0; i < EVQ_CORPUS_PATHS && status == EVQ_OK; i++) {
        note_file(corpus->paths[i], &after);
        if (!evq_file_unchanged(&after, &corpus->files[i])) {
            return evq_error_set(err, EVQ_E_IO, "data set '%s' changed while it was read",
                                 corpus->paths[i]);
        }
    }
    return status;
}

static enum evq_status fill(struct evq_corpus *corpus, const struct evq_corpus_source *source,
                            struct evq_error *err)
{
    struct evq_corpus_build build = {.corpus = corpus, .source = source};
    const char *const keys[EVQ_CORPUS_PATHS] = {
        evq_corpus_needs_tokenizer(source->task) ? "text" : "tokens", "labels", "mask", "types"};
    struct numbers numbers = {0};

    enum evq_status status = evq_corpus_check(source->task, source->kind, err);
    if (status == EVQ_OK) {
        status = read_numbers(source->task, &numbers, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    build.limit = numbers.limit;
    corpus->prefix = numbers.prefix >= 0 ? (int32_t)numbers.prefix
                     : source->tokenizer != NULL && source->kind != EVQ_CORPUS_LABELS
                         ? evq_tokenizer_prefix(source->tokenizer)
                         : -1;
    corpus->key = make_key(corpus->arena, source);
    for (size_t i = 0; i < EVQ_CORPUS_PATHS; i++) {
        corpus->paths[i] =
            resolve(corpus->arena, source->directory, evq_corpus_option(source->task, keys[i], ""));
        if (corpus->key == NULL || corpus->paths[i] == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "data");
        }
    }
    corpus->name = corpus->paths[0];
    status = read_files(&build, err);
    if (status == EVQ_OK && corpus->passage_count == 0) {
        status = evq_error_set(err, EVQ_E_INVALID, "'%s' holds no %s", corpus->name,
                               source->kind == EVQ_CORPUS_DOCUMENTS ? "documents" : "items");
    }
    corpus->most = -1;
    for (size_t i = 0; i < corpus->tokens.count; i++) {
        corpus->most = corpus->tokens.ids[i] > corpus->most ? corpus->tokens.ids[i] : corpus->most;
    }
    return status == EVQ_OK ? make_digest(corpus, err) : status;
}

enum evq_status evq_corpus_open(const struct evq_corpus_source *source,
                                struct evq_corpus **ret_corpus, struct evq_error *err)
{
    struct evq_arena *arena = evq_arena_new(0);
    struct evq_corpus *corpus = arena != NULL ? evq_arena_alloc(arena, sizeof(*corpus)) : NULL;

    if (corpus == NULL) {
        evq_arena_free(arena);
        return evq_error_set(err, EVQ_E_NOMEM, "data set");
    }
    corpus->arena = arena;
    const enum evq_status status = fill(corpus, source, err);
    if (status != EVQ_OK) {
        evq_corpus_free(corpus);
        return status;
    }
    *ret_corpus = corpus;
    return EVQ_OK;
}

void evq_corpus_free(struct evq_corpus *corpus)
{
    if (corpus != NULL) {
        evq_tokens_free(&corpus->tokens);
        evq_tokens_free(&corpus->types);
        free(corpus->passages);
        free(corpus->items);
        evq_arena_free(corpus->arena);
    }
}

bool evq_corpus_current(const struct evq_corpus *corpus, const struct evq_corpus_source *source)
{
    struct evq_arena *arena = evq_arena_new(0);
    struct stat now;
    bool current = false;

    if (arena != NULL) {
        const char *key = make_key(arena, source);
        current = key != NULL && strcmp(key, corpus->key) == 0;
        for (size_t i = 0; i < EVQ_CORPUS_PATHS && current; i++) {
            note_file(corpus->paths[i], &now);
            current = evq_file_unchanged(&now, &corpus->files[i]);
        }
    }
    evq_arena_free(arena);
    return current;
}

size_t evq_corpus_bytes(const struct evq_corpus *corpus)
{
    return (corpus->tokens.capacity + corpus->types.capacity) * sizeof(*corpus->tokens.ids) +
           corpus->passage_room * sizeof(*corpus->passages) +
           corpus->item_room * sizeof(*corpus->items);
}
