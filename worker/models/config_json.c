#include "worker/models/config_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/utf8.h"
#include "shared/checkpoint/json.h"

#define VALUES_MAX     100000
#define LEVELS_MAX     4
#define NAME_BYTES_MAX 256

struct level {
    size_t name_bytes; // Length of the path up to here.
    int64_t index;     // Index of the next item of an array; -1: an object.
};

struct flat { // The list while it grows.
    struct evq_arena *arena;
    struct evq_json json;
    struct evq_model_value *values;
    size_t count, capacity;
    char name[NAME_BYTES_MAX];
    struct level levels[LEVELS_MAX];
    int depth;
};

/* Appends one part to the path of the present level; false: the path is too long. */
static bool name_part(struct flat *flat, const char *part)
{
    const size_t at = flat->depth == 0 ? 0 : flat->levels[flat->depth - 1].name_bytes;
    const int length =
        snprintf(flat->name + at, NAME_BYTES_MAX - at, "%s%s", at > 0 ? "." : "", part);

    return length >= 0 && (size_t)length < NAME_BYTES_MAX - at;
}

static enum evq_status add(struct flat *flat, enum evq_model_value_kind kind, const char *text,
                           size_t bytes, struct evq_error *err)
{
    if (flat->count == VALUES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "more than %d values", VALUES_MAX);
    }
    if (flat->count == flat->capacity) {
        const size_t capacity = flat->capacity == 0 ? 64 : 2 * flat->capacity;
        struct evq_model_value *grown = realloc(flat->values, capacity * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "%zu values", capacity);
        }
        flat->values = grown;
        flat->capacity = capacity;
    }
    const struct evq_model_value value = {.name = evq_arena_strdup(flat->arena, flat->name),
                                          .kind = kind,
                                          .text = evq_arena_strndup(flat->arena, text, bytes)};
    if (value.name == NULL || value.text == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "its values");
    }
    flat->values[flat->count++] = value;
    return EVQ_OK;
}

static enum evq_status take_value(struct flat *flat, const struct evq_json_token *token,
                                  struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    switch (token->kind) {
    case EVQ_JSON_OBJECT:
    case EVQ_JSON_ARRAY:
        if (flat->depth > 0) { // The top-level value has no name.
            status = add(flat, EVQ_MODEL_VALUE_GROUP,
                         token->kind == EVQ_JSON_ARRAY ? "[...]" : "{...}", 5, err);
        }
        if (status != EVQ_OK || flat->depth == LEVELS_MAX) {
            return status != EVQ_OK ? status : evq_json_skip(&flat->json, token, err);
        }
        flat->levels[flat->depth++] = (struct level){
            .name_bytes = strlen(flat->name), .index = token->kind == EVQ_JSON_ARRAY ? 0 : -1};
        return EVQ_OK;
    case EVQ_JSON_NUMBER:
        return add(flat, EVQ_MODEL_VALUE_NUMBER, token->text, token->bytes, err);
    case EVQ_JSON_STRING:
        return add(flat, EVQ_MODEL_VALUE_TEXT, token->text, token->bytes, err);
    case EVQ_JSON_TRUE:
        return add(flat, EVQ_MODEL_VALUE_FLAG, "true", 4, err);
    case EVQ_JSON_FALSE:
        return add(flat, EVQ_MODEL_VALUE_FLAG, "false", 5, err);
    default:
        return add(flat, EVQ_MODEL_VALUE_NULL, "null", 4, err);
    }
}

/* Handles one token inside an object or array. */
static enum evq_status step(struct flat *flat, struct evq_error *err)
{
    struct level *level = &flat->levels[flat->depth - 1];
    struct evq_json_token token;
    char index[24];

    enum evq_status status = evq_json_next(&flat->json, &token, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (token.kind == EVQ_JSON_OBJECT_END || token.kind == EVQ_JSON_ARRAY_END) {
        flat->depth--;
        return EVQ_OK;
    }
    (void)snprintf(index, sizeof(index), "%lld", (long long)level->index);
    const bool named = name_part(flat, level->index < 0 ? token.text : index);
    if (level->index < 0) {
        status = evq_json_next(&flat->json, &token, err);
    } else {
        level->index++;
    }
    if (status != EVQ_OK) {
        return status;
    }
    return named ? take_value(flat, &token, err) : evq_json_skip(&flat->json, &token, err);
}

enum evq_status evq_model_config_json(struct evq_arena *arena, char *text, size_t bytes,
                                      struct evq_model_value **ret_values, size_t *ret_count,
                                      struct evq_error *err)
{
    struct flat flat = {.arena = arena};
    struct evq_json_token token;
    const size_t valid = evq_utf8_valid(text, bytes);

    if (valid < bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "byte %zu is not UTF-8", valid);
    }
    evq_json_init(&flat.json, text, bytes);
    flat.json.python = true;
    enum evq_status status = evq_json_next(&flat.json, &token, err);
    if (status == EVQ_OK && token.kind != EVQ_JSON_OBJECT) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "expected a JSON object");
    }
    if (status == EVQ_OK) {
        status = take_value(&flat, &token, err);
    }
    while (status == EVQ_OK && flat.depth > 0) {
        status = step(&flat, err);
    }
    if (status == EVQ_OK) {
        status = evq_json_next(&flat.json, &token, err); // Nothing may follow the value.
    }
    struct evq_model_value *copy =
        evq_arena_array(arena, flat.count > 0 ? flat.count : 1, sizeof(*copy));
    if (status == EVQ_OK && copy == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "its values");
    }
    if (status == EVQ_OK) {
        if (flat.count > 0) {
            memcpy(copy, flat.values, flat.count * sizeof(*copy));
        }
        *ret_values = copy;
        *ret_count = flat.count;
    }
    free(flat.values);
    return status;
}
