#include "shared/config/config_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/byte_size.h"
#include "shared/base/nearest.h"

#define PAIRS_MAX 1024 // Limit for the values of one flattened map.

EVQ_PRINTF(4, 0)
static enum evq_status fail_at(const struct evq_config_reader *reader, size_t line, size_t column,
                               const char *format, va_list args)
{
    struct evq_error *err = reader->err;
    if (err != NULL) {
        char sentence[400];
        if (vsnprintf(sentence, sizeof sentence, format, args) < 0) {
            sentence[0] = '\0';
        }
        char safe[480]; // It quotes the file, and is shown on a terminal.
        (void)evq_error_escape(sentence, strlen(sentence), safe, sizeof safe);
        (void)evq_error_set(err, EVQ_E_INVALID, "%s:%zu:%zu: %s", reader->file_name, line, column,
                            safe);
    }
    return EVQ_E_INVALID;
}

enum evq_status evq_read_fail(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *format, ...)
{
    va_list args;
    va_start(args, format);
    enum evq_status status = fail_at(reader, node->line, node->column, format, args);
    va_end(args);
    return status;
}

enum evq_status evq_read_fail_key(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *format, ...)
{
    bool keyed = node->key != NULL;
    va_list args;
    va_start(args, format);
    enum evq_status status = fail_at(reader, keyed ? node->key_line : node->line,
                                     keyed ? node->key_column : node->column, format, args);
    va_end(args);
    return status;
}

enum evq_status evq_read_nomem(const struct evq_config_reader *reader)
{
    return evq_error_set(reader->err, EVQ_E_NOMEM, "%s", reader->file_name);
}

enum evq_status evq_read_kind(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *where, enum evq_node_kind kind)
{
    if (node->kind == kind) {
        return EVQ_OK;
    }
    return evq_read_fail(reader, node, "%s is %s, expected %s",
                         where[0] != '\0' ? where : "the file", evq_node_kind_name(node->kind),
                         evq_node_kind_name(kind));
}

enum evq_status evq_read_bool(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *where, bool *ret)
{
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);
    if (status != EVQ_OK) {
        return status;
    }
    *ret = strcmp(node->text, "true") == 0;
    if (!*ret && strcmp(node->text, "false") != 0) {
        return evq_read_fail(reader, node, "%s is \"%.40s\", expected true or false", where,
                             node->text);
    }
    return EVQ_OK;
}

enum evq_status evq_read_entries(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where,
                                 enum evq_node_kind kind, size_t entries_max, size_t item_bytes,
                                 void **ret_items)
{
    enum evq_status status = evq_read_kind(reader, node, where, kind);

    if (status == EVQ_OK && node->count > entries_max) {
        return evq_read_fail(reader, node, "%s has %zu entries, allowed %zu", where, node->count,
                             entries_max);
    }
    if (status == EVQ_OK) {
        *ret_items = evq_arena_array(reader->arena, node->count, item_bytes);
        status = *ret_items != NULL ? EVQ_OK : evq_read_nomem(reader);
    }
    return status;
}

/* A value for messages: cut, and with control bytes escaped. */
static const char *shown(const char *text, char out[96])
{
    return evq_error_escape(text, strlen(text), out, 96);
}

static enum evq_status fail_unknown(const struct evq_config_reader *reader,
                                    const struct evq_node *entry, const char *where,
                                    const struct evq_key *keys, size_t key_count)
{
    const char *words[64] = {NULL};
    char name[96];
    size_t count = key_count < 64 ? key_count : 64;
    for (size_t i = 0; i < count; i++) {
        words[i] = keys[i].name;
    }
    const char *near = evq_nearest_word(entry->key, words, count);
    if (near != NULL) {
        return evq_read_fail_key(reader, entry, "unknown key \"%s\" in %s, did you mean \"%s\"?",
                                 shown(entry->key, name), where[0] != '\0' ? where : "the file",
                                 near);
    }
    char list[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof list - 40; i++) {
        int wrote = snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? " " : "", words[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return evq_read_fail_key(reader, entry, "unknown key \"%s\" in %s, expected one of: %s",
                             shown(entry->key, name), where[0] != '\0' ? where : "the file", list);
}

static bool parse_integer(const char *text, int64_t *ret)
{
    bool negative = text[0] == '-';
    const char *digits = text + (negative ? 1 : 0);
    size_t count = strspn(digits, "0123456789");
    int64_t value = 0;
    if (count == 0 || digits[count] != '\0') {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, (int64_t)(digits[i] - '0'), &value)) {
            return false;
        }
    }
    *ret = negative ? -value : value;
    return true;
}

static enum evq_status read_number(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where,
                                   const struct evq_key *key, void *base)
{
    char text[96];
    int64_t value = 0;
    bool bytes = key->type == EVQ_KEY_BYTES;
    bool good = bytes ? evq_byte_size_parse(node->text, &value) : parse_integer(node->text, &value);
    if (!good || value < key->min || value > key->max) {
        return evq_read_fail(reader, node, "%s is \"%s\", expected %s from %jd to %jd", where,
                             shown(node->text, text),
                             bytes ? "bytes (as 1048576, 512MiB or 24GiB)" : "an integer",
                             (intmax_t)key->min, (intmax_t)key->max);
    }
    int32_t narrow = (int32_t)value;
    if (key->type == EVQ_KEY_INT32) {
        memcpy((unsigned char *)base + key->offset, &narrow, sizeof narrow);
    } else {
        memcpy((unsigned char *)base + key->offset, &value, sizeof value);
    }
    return EVQ_OK;
}

static enum evq_status read_text(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where,
                                 const struct evq_key *key, void *base)
{
    const char *text = node->text;
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);

    if (status != EVQ_OK) {
        return status;
    }
    if (key->type == EVQ_KEY_NAME && !evq_job_name_valid(text, (size_t)key->max)) {
        return evq_read_fail(reader, node,
                             "%s is \"%.80s\", expected 1 to %jd of the bytes [A-Za-z0-9._-]",
                             where, text, (intmax_t)key->max);
    }
    if (key->type == EVQ_KEY_PATH && text[0] != '\0') {
        text = evq_read_path(reader, text);
    }
    if (text == NULL) {
        return evq_read_nomem(reader);
    }
    memcpy((unsigned char *)base + key->offset, &text, sizeof text);
    return EVQ_OK;
}

static enum evq_status read_value(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where,
                                  const struct evq_key *key, void *base)
{
    unsigned char *at = (unsigned char *)base + key->offset;
    enum evq_status status;

    switch (key->type) {
    case EVQ_KEY_ANY:
        return EVQ_OK;
    case EVQ_KEY_CALL:
        return key->call(reader, node, where, base);
    case EVQ_KEY_BOOL:
        return evq_read_bool(reader, node, where, (bool *)(void *)at);
    case EVQ_KEY_TEXTS:
        return evq_read_texts(reader, node, where, (size_t)key->max,
                              (const char *const **)(void *)at,
                              (size_t *)(void *)((unsigned char *)base + key->count_offset));
    case EVQ_KEY_TEXT:
    case EVQ_KEY_NAME:
    case EVQ_KEY_PATH:
        return read_text(reader, node, where, key, base);
    default:
        status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);
        return status == EVQ_OK ? read_number(reader, node, where, key, base) : status;
    }
}

enum evq_status evq_read_map(const struct evq_config_reader *reader, const struct evq_node *node,
                             const char *where, const struct evq_key *keys, size_t key_count,
                             void *base)
{
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_MAP);
    for (const struct evq_node *entry = node->first; entry != NULL && status == EVQ_OK;
         entry = entry->next) {
        const struct evq_key *key = NULL;
        for (size_t i = 0; i < key_count && key == NULL; i++) {
            key = strcmp(keys[i].name, entry->key) == 0 ? &keys[i] : NULL;
        }
        if (key == NULL) {
            return fail_unknown(reader, entry, where, keys, key_count);
        }
        if (entry->kind != EVQ_NODE_NULL) {
            char inner[160];
            (void)snprintf(inner, sizeof inner, "%s%s%s", where, where[0] != '\0' ? "." : "",
                           key->name);
            status = read_value(reader, entry, inner, key, base);
        }
    }
    return status;
}

enum evq_status evq_read_texts(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, size_t name_bytes_max,
                               const char *const **ret_texts, size_t *ret_count)
{
    char text[96];
    size_t count = 0;
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_LIST);
    if (status != EVQ_OK) {
        return status;
    }
    const char **texts = evq_arena_array(reader->arena, node->count + 1, sizeof *texts);
    if (texts == NULL) {
        return evq_read_nomem(reader);
    }
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
        if (entry->kind != EVQ_NODE_SCALAR) {
            return evq_read_fail(reader, entry, "%s: entry %zu is %s, expected text", where,
                                 count + 1, evq_node_kind_name(entry->kind));
        }
        if (name_bytes_max > 0 && !evq_job_name_valid(entry->text, name_bytes_max)) {
            return evq_read_fail(reader, entry,
                                 "%s: \"%s\" is not a name of 1 to %zu of the bytes [A-Za-z0-9._-]",
                                 where, shown(entry->text, text), name_bytes_max);
        }
        texts[count++] = entry->text;
    }
    *ret_texts = texts;
    *ret_count = count;
    return EVQ_OK;
}

static size_t count_scalars(const struct evq_node *node)
{
    size_t count = 0;
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
        count += entry->first != NULL ? count_scalars(entry) : 1;
    }
    return count;
}

static bool named_in(const char *key, const char *const *words)
{
    for (size_t i = 0; words != NULL && words[i] != NULL; i++) {
        if (strcmp(key, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The depth of the tree is bounded. */
static bool flatten(const struct evq_config_reader *reader, const struct evq_node *node,
                    const char *prefix, const char *const *except, struct evq_pair *pairs,
                    size_t *used)
{
    size_t index = 0;
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next, index++) {
        char number[24];
        (void)snprintf(number, sizeof number, "%zu", index);
        const char *name = entry->key != NULL ? entry->key : number;
        if (entry->key != NULL && named_in(entry->key, except)) {
            continue;
        }
        const char *key =
            evq_arena_printf(reader->arena, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", name);
        if (key == NULL) {
            return false;
        }
        if (entry->kind == EVQ_NODE_MAP || entry->kind == EVQ_NODE_LIST) {
            if (!flatten(reader, entry, key, NULL, pairs, used)) {
                return false;
            }
            continue;
        }
        pairs[*used].key = key;
        pairs[*used].value = entry->kind == EVQ_NODE_SCALAR ? entry->text : "";
        (*used)++;
    }
    return true;
}

enum evq_status evq_read_pairs(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, const char *const *except,
                               struct evq_pair **ret_pairs, size_t *ret_count)
{
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_MAP);
    if (status != EVQ_OK) {
        return status;
    }
    size_t used = 0;
    size_t count = count_scalars(node);
    struct evq_pair *pairs = evq_arena_array(reader->arena, count, sizeof *pairs);
    if (pairs == NULL || !flatten(reader, node, "", except, pairs, &used)) {
        return evq_read_nomem(reader);
    }
    if (used > PAIRS_MAX) {
        return evq_read_fail(reader, node, "%s has %zu values, allowed %d", where, used, PAIRS_MAX);
    }
    for (size_t i = 0; i < used; i++) {
        for (size_t j = 0; j < i; j++) {
            if (strcmp(pairs[i].key, pairs[j].key) == 0) { // {"a.b": 1, a: {b: 2}}
                return evq_read_fail(reader, node, "%s has \"%.60s\" twice", where, pairs[i].key);
            }
        }
    }
    *ret_pairs = pairs;
    *ret_count = used;
    return EVQ_OK;
}

enum evq_status evq_read_name(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *what)
{
    char text[96];
    if (evq_job_name_valid(node->key, EVQ_JOB_NAME_BYTES_MAX)) {
        return EVQ_OK;
    }
    return evq_read_fail_key(reader, node,
                             "%s name \"%s\" is not 1 to %d of the bytes [A-Za-z0-9._-]", what,
                             shown(node->key, text), EVQ_JOB_NAME_BYTES_MAX);
}

const char *evq_read_path(const struct evq_config_reader *reader, const char *path)
{
    if (path[0] == '/') {
        size_t bytes = strlen(path);
        while (bytes > 1 && path[bytes - 1] == '/') {
            bytes--;
        }
        return evq_arena_strndup(reader->arena, path, bytes);
    }
    while (path[0] == '.' && path[1] == '/') {
        path += 2;
        path += strspn(path, "/");
    }
    if (path[0] == '\0' || strcmp(path, ".") == 0) {
        return reader->directory;
    }
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/') {
        bytes--;
    }
    const char *slash = strcmp(reader->directory, "/") == 0 ? "" : "/";
    return evq_arena_printf(reader->arena, "%s%s%.*s", reader->directory, slash, (int)bytes, path);
}
