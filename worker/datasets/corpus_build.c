#include "worker/datasets/corpus_build.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "worker/datasets/python_text.h"

enum evq_status evq_corpus_read_file(const char *path, struct evq_buffer *out,
                                     struct evq_error *err)
{
    const enum evq_status status =
        evq_file_read(AT_FDCWD, path, 0, EVQ_CORPUS_FILE_BYTES_MAX, out, err);

    if (status == EVQ_OK && out->bytes == 0) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is empty", path);
    }
    return status;
}

/* Converts the progress within a text into the progress within the file. */
static enum evq_status tell_text(void *context, int64_t done, int64_t total)
{
    struct evq_corpus_build *build = context;
    const struct evq_progress *progress = build->source->progress;
    const int64_t at = build->file_done + done;

    (void)total; // It is the size of the text; the size of the file is reported.
    return progress->tell(progress->context, at < build->file_bytes ? at : build->file_bytes,
                          build->file_bytes);
}

void evq_corpus_watch(struct evq_corpus_build *build)
{
    build->text = (struct evq_progress){.tell = tell_text, .context = build};
    evq_tokenizer_scratch_watch(build->scratch,
                                build->source->progress != NULL ? &build->text : NULL);
}

enum evq_status evq_corpus_report_left(struct evq_corpus_build *build, size_t bytes)
{
    build->file_done = build->file_bytes - (int64_t)bytes;
    if (build->source->progress == NULL ||
        build->file_done - build->file_told < (int64_t)EVQ_TOKENIZER_TOLD_BYTES) {
        return EVQ_OK;
    }
    build->file_told = build->file_done;
    return tell_text(build, 0, 0);
}

/* Makes room for one more item in an array that grows by doubling. */
static bool grow(void **items, size_t count, size_t *room, size_t item_bytes, size_t most)
{
    if (count < *room) {
        return true;
    }
    const size_t wanted = *room > 0 ? *room * 2 : 256;
    void *grown = count < most ? reallocarray(*items, wanted, item_bytes) : NULL;
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *room = wanted;
    return true;
}

enum evq_status evq_corpus_add_passage(struct evq_corpus_build *build, struct evq_passage passage,
                                       const char *counted, size_t counted_bytes,
                                       struct evq_error *err)
{
    struct evq_corpus *corpus = build->corpus;
    void *passages = corpus->passages;

    if (corpus->tokens.count > EVQ_CORPUS_TOKENS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s' has more than %zu tokens", corpus->name,
                             EVQ_CORPUS_TOKENS_MAX);
    }
    if (!grow(&passages, corpus->passage_count, &corpus->passage_room, sizeof(passage),
              EVQ_CORPUS_PASSAGES_MAX)) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s': passage %zu", corpus->name,
                             corpus->passage_count);
    }
    corpus->passages = passages;
    passage.count = (int64_t)corpus->tokens.count - passage.first;
    if (counted != NULL) {
        passage.words = evq_python_text_words(counted, counted_bytes);
        passage.characters = evq_python_text_characters(counted, counted_bytes);
        passage.bytes = (int64_t)counted_bytes;
    }
    corpus->passages[corpus->passage_count++] = passage;
    return EVQ_OK;
}

/* lm-evaluation-harness adds no template around a text that begins with the prefix. */
static bool begins_itself(const struct evq_corpus_build *build, const char *text, size_t bytes)
{
    return evq_tokenizer_text_begins_with(build->source->tokenizer, build->corpus->prefix, text,
                                          bytes);
}

enum evq_status evq_corpus_add_document(struct evq_corpus_build *build, const char *text,
                                        size_t bytes, const char *original, size_t original_bytes,
                                        struct evq_error *err)
{
    struct evq_corpus *corpus = build->corpus;
    const struct evq_tokenizer *tokenizer = build->source->tokenizer;
    struct evq_passage passage = {.first = (int64_t)corpus->tokens.count};

    if (begins_itself(build, text, bytes)) {
        evq_tokenizer_count_around(tokenizer, &passage.context, &passage.after);
    }
    const enum evq_status status =
        evq_tokenizer_encode(tokenizer, build->scratch, text, bytes, true, &corpus->tokens, err);
    return status == EVQ_OK ? evq_corpus_add_passage(build, passage, original, original_bytes, err)
                            : status;
}

static enum evq_status append(const struct evq_corpus *corpus, struct evq_tokens *tokens,
                              const int32_t *ids, size_t count, struct evq_error *err)
{
    if (tokens->capacity - tokens->count < count) {
        const size_t wanted = 2 * tokens->capacity + count;
        int32_t *grown = reallocarray(tokens->ids, wanted, sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "'%s': %zu tokens", corpus->name, wanted);
        }
        tokens->ids = grown;
        tokens->capacity = wanted;
    }
    if (count > 0) {
        memcpy(tokens->ids + tokens->count, ids, count * sizeof(*ids));
        tokens->count += count;
    }
    return EVQ_OK;
}

enum evq_status evq_corpus_append_tokens(struct evq_corpus *corpus, const int32_t *ids,
                                         size_t count, struct evq_error *err)
{
    return append(corpus, &corpus->tokens, ids, count, err);
}

enum evq_status evq_corpus_append_types(struct evq_corpus *corpus, const int32_t *types,
                                        size_t count, struct evq_error *err)
{
    return append(corpus, &corpus->types, types, count, err);
}

/* Adds a continuation without context after the prefix, unless it begins with the prefix. */
static enum evq_status add_after_prefix(struct evq_corpus_build *build, const char *continuation,
                                        size_t bytes, struct evq_error *err)
{
    struct evq_corpus *corpus = build->corpus;
    struct evq_tokens *found = &build->context;

    found->count = 0;
    enum evq_status status = evq_tokenizer_encode(build->source->tokenizer, build->scratch,
                                                  continuation, bytes, false, found, err);
    if (status == EVQ_OK && corpus->prefix < 0) {
        status = evq_error_set(err, EVQ_E_INVALID,
                               "an empty context needs a first token, but '%s' has neither BOS nor "
                               "EOS: set data: {prefix: TEXT}",
                               evq_tokenizer_name(build->source->tokenizer));
    }
    if (status == EVQ_OK && (found->count == 0 || found->ids[0] != corpus->prefix)) {
        status = evq_corpus_append_tokens(corpus, &corpus->prefix, 1, err);
    }
    return status == EVQ_OK ? evq_corpus_append_tokens(corpus, found->ids, found->count, err)
                            : status;
}

/* Appends the tokens of the context, and then those tokens of the joined text that are beyond them.
 */
static enum evq_status add_after_context(struct evq_corpus_build *build, const char *context,
                                         size_t context_bytes, const char *continuation,
                                         size_t bytes, size_t *ret_context, struct evq_error *err)
{
    const struct evq_tokenizer *tokenizer = build->source->tokenizer;
    struct evq_tokens *whole = &build->context;
    struct evq_tokens *tokens = &build->corpus->tokens;
    const size_t before = tokens->count;
    const bool special = !begins_itself(build, context, context_bytes);

    enum evq_status status = evq_tokenizer_encode(tokenizer, build->scratch, context, context_bytes,
                                                  special, tokens, err);
    if (status != EVQ_OK) {
        return status;
    }
    const size_t lead = tokens->count - before;
    evq_buffer_clear(&build->joined);
    evq_buffer_append(&build->joined, context, context_bytes);
    evq_buffer_append(&build->joined, continuation, bytes);
    if (build->joined.failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "a context of %zu bytes", context_bytes);
    }
    whole->count = 0;
    status = evq_tokenizer_encode(tokenizer, build->scratch, (const char *)build->joined.data,
                                  build->joined.bytes, special, whole, err);
    *ret_context = lead;
    return status == EVQ_OK && whole->count > lead
               ? evq_corpus_append_tokens(build->corpus, whole->ids + lead, whole->count - lead,
                                          err)
               : status;
}

enum evq_status evq_corpus_add_pair(struct evq_corpus_build *build, const char *context,
                                    size_t context_bytes, const char *continuation,
                                    size_t continuation_bytes, const char *counted,
                                    size_t counted_bytes, struct evq_error *err)
{
    struct evq_corpus *corpus = build->corpus;
    struct evq_passage passage = {.first = (int64_t)corpus->tokens.count};
    const size_t end = evq_python_text_trim_end(context, context_bytes);
    struct evq_buffer moved;
    size_t lead = 1;

    evq_buffer_init(&moved, 0);
    evq_buffer_append(&moved, context + end, context_bytes - end);
    evq_buffer_append(&moved, continuation, continuation_bytes);
    enum evq_status status =
        moved.failed ? evq_error_set(err, EVQ_E_NOMEM, "a continuation")
        : end == 0   ? add_after_prefix(build, (const char *)moved.data, moved.bytes, err)
                     : add_after_context(build, context, end, (const char *)moved.data, moved.bytes,
                                         &lead, err);
    evq_buffer_free(&moved);
    passage.context = (int64_t)lead;
    if (status == EVQ_OK && (int64_t)corpus->tokens.count - passage.first <= passage.context) {
        status = evq_error_set(err, EVQ_E_INVALID, "nothing to score: '%.40s' gives no token",
                               continuation);
    }
    return status == EVQ_OK ? evq_corpus_add_passage(build, passage, counted, counted_bytes, err)
                            : status;
}

enum evq_status evq_corpus_add_item(struct evq_corpus_build *build, int32_t passages, int32_t gold,
                                    struct evq_error *err)
{
    struct evq_corpus *corpus = build->corpus;
    void *items = corpus->items;

    if (!grow(&items, corpus->item_count, &corpus->item_room, sizeof(*corpus->items),
              EVQ_CORPUS_PASSAGES_MAX)) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s': item %zu", corpus->name, corpus->item_count);
    }
    corpus->items = items;
    corpus->items[corpus->item_count++] = (struct evq_item){
        .first = (int64_t)corpus->passage_count - passages, .passages = passages, .gold = gold};
    return EVQ_OK;
}

const char *evq_corpus_option(const struct evq_task_config *task, const char *key,
                              const char *fallback)
{
    return evq_pair_get(task->data, task->data_count, key, fallback);
}
