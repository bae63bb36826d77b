#include "worker/tokenizer/tokenizer_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/utf8.h"
#include "shared/checkpoint/json.h"

#define ADDED_MAX 100000

enum evq_status evq_tokenizer_json_init(struct evq_tokenizer_json *definition, const char *path,
                                        struct evq_error *err)
{
    char shown[260];

    *definition = (struct evq_tokenizer_json){0};
    evq_buffer_init(&definition->file, EVQ_TOKENIZER_FILE_BYTES_MAX);
    definition->arena = evq_arena_new(0);
    definition->path =
        definition->arena == NULL
            ? NULL
            : evq_arena_strdup(definition->arena,
                               evq_error_escape(path, strlen(path), shown, sizeof(shown)));
    return definition->path != NULL ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "a tokenizer");
}

void evq_tokenizer_json_free(struct evq_tokenizer_json *definition)
{
    evq_buffer_free(&definition->file);
    free(definition->entries);
    free(definition->merges);
    free(definition->added);
    evq_arena_free(definition->arena);
    *definition = (struct evq_tokenizer_json){0};
}

/* Makes room for one more item; false: memory ran out. */
static bool grow(void **items, size_t count, size_t *room, size_t item_bytes)
{
    if (count < *room) {
        return true;
    }
    // The counts are limited, so this cannot overflow.
    const size_t wanted = *room == 0 ? 64 : 2 * *room;
    void *grown = realloc(*items, wanted * item_bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *room = wanted;
    return true;
}

static enum evq_status too_many(const struct evq_tokenizer_json *definition, const char *what,
                                size_t count_max, struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_LIMIT, "'%s' has more than %zu %s", definition->path, count_max,
                         what);
}

enum evq_status evq_tokenizer_json_add_entry(struct evq_tokenizer_json *definition,
                                             struct evq_tokenizer_text token, uint64_t id,
                                             struct evq_error *err)
{
    char shown[260];
    void *items = definition->entries;

    if (id >= EVQ_TOKENIZER_IDS_MAX) {
        return evq_error_set(
            err, EVQ_E_LIMIT, "'%s': token '%s' has id %llu, expected less than %d",
            definition->path, evq_tokenizer_text_shown(token, shown, sizeof(shown)),
            (unsigned long long)id, EVQ_TOKENIZER_IDS_MAX);
    }
    if (definition->entry_count == EVQ_TOKENIZER_IDS_MAX) {
        return too_many(definition, "tokens", EVQ_TOKENIZER_IDS_MAX, err);
    }
    if (!grow(&items, definition->entry_count, &definition->entry_room,
              sizeof(*definition->entries))) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", definition->path);
    }
    definition->entries = items;
    definition->entries[definition->entry_count++] =
        (struct evq_vocabulary_entry){token, (int32_t)id};
    return EVQ_OK;
}

enum evq_status evq_tokenizer_json_add_merge(struct evq_tokenizer_json *definition,
                                             struct evq_tokenizer_text left,
                                             struct evq_tokenizer_text right, struct evq_error *err)
{
    void *items = definition->merges;

    if (definition->merge_count == EVQ_TOKENIZER_IDS_MAX) {
        return too_many(definition, "merges", EVQ_TOKENIZER_IDS_MAX, err);
    }
    if (!grow(&items, definition->merge_count, &definition->merge_room,
              sizeof(*definition->merges))) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", definition->path);
    }
    definition->merges = items;
    definition->merges[definition->merge_count++] = (struct evq_vocabulary_merge){left, right};
    return EVQ_OK;
}

enum evq_status evq_tokenizer_json_add_merge_line(struct evq_tokenizer_json *definition,
                                                  struct evq_tokenizer_text line,
                                                  struct evq_error *err)
{
    char shown[260];

    const char *end = line.text + line.bytes;
    const char *space = memchr(line.text, ' ', line.bytes);
    if (space == NULL || space == line.text || space + 1 == end ||
        memchr(space + 1, ' ', (size_t)(end - space - 1)) != NULL) {
        return evq_tokenizer_json_bad(
            definition, err, "merge %zu is '%s', expected two tokens with one space between",
            definition->merge_count, evq_tokenizer_text_shown(line, shown, sizeof(shown)));
    }
    const struct evq_tokenizer_text left = {line.text, (size_t)(space - line.text)};
    const struct evq_tokenizer_text right = {space + 1, (size_t)(end - space - 1)};
    return evq_tokenizer_json_add_merge(definition, left, right, err);
}

enum evq_status evq_tokenizer_json_add_token(struct evq_tokenizer_json *definition,
                                             const struct evq_added_token *added,
                                             struct evq_error *err)
{
    void *items = definition->added;

    if (definition->added_count == ADDED_MAX) {
        return too_many(definition, "added tokens", ADDED_MAX, err);
    }
    if (!grow(&items, definition->added_count, &definition->added_room,
              sizeof(*definition->added))) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", definition->path);
    }
    definition->added = items;
    definition->added[definition->added_count++] = *added;
    return EVQ_OK;
}

enum evq_status evq_tokenizer_json_check_text(const struct evq_buffer *file, const char *path,
                                              struct evq_error *err)
{
    const size_t valid = evq_utf8_valid((const char *)file->data, file->bytes);

    if (file->bytes == 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%s' is empty", path);
    }
    if (valid < file->bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%s': byte %zu is not UTF-8", path, valid);
    }
    return EVQ_OK;
}

enum evq_status evq_tokenizer_json_refuse(const struct evq_tokenizer_json *definition,
                                          struct evq_error *err, const char *format, ...)
{
    char what[360];
    va_list arguments;

    va_start(arguments, format);
    // A long text is truncated, because it is for people.
    (void)vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return evq_error_set(err, EVQ_E_UNSUPPORTED,
                         "'%s' %s; 'python -m evalq.tokenize' can prepare tokens "
                         "(docs/tokenizers.md)",
                         definition->path, what);
}

enum evq_status evq_tokenizer_json_bad(const struct evq_tokenizer_json *definition,
                                       struct evq_error *err, const char *format, ...)
{
    char what[400];
    va_list arguments;

    va_start(arguments, format);
    // A long text is truncated, because it is for people.
    (void)vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return evq_error_set(err, EVQ_E_CORRUPT, "'%s': %s", definition->path, what);
}

char *evq_tokenizer_text_shown(struct evq_tokenizer_text text, char *out, size_t out_bytes)
{
    return evq_error_escape(text.text, text.bytes < 60 ? text.bytes : 60, out, out_bytes);
}

bool evq_tokenizer_text_is(struct evq_tokenizer_text text, const char *word)
{
    return text.text != NULL && strlen(word) == text.bytes &&
           memcmp(text.text, word, text.bytes) == 0;
}
