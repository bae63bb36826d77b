#include "producer/gateway/api/body.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/json_memory.h"
#include "shared/base/nearest.h"
#include "shared/config/config.h"

void evq_body_fail(struct evq_body *body, const char *format, ...)
{
    char sentence[500];
    va_list args;
    if (body->failed) {
        return; // The reply has only the first error.
    }
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    body->failed = true;
    evq_http_reply_error(body->reply, 400, "invalid", "%s", sentence);
}

static void check_members(struct evq_body *body, const char *const *known)
{
    size_t count = 0;
    const char *key = NULL;
    json_t *value = NULL;
    while (known[count] != NULL) {
        count++;
    }
    json_object_foreach(body->object, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < count; i++) {
            found = found || strcmp(known[i], key) == 0;
        }
        const char *near = found ? NULL : evq_nearest_word(key, known, count);
        if (!found) {
            evq_body_fail(body, "unknown member '%.60s'%s%s%s", key,
                          near != NULL ? ", did you mean '" : "", near != NULL ? near : "",
                          near != NULL ? "'?" : "");
        }
    }
}

bool evq_body_open(struct evq_body *body, const struct evq_http_request *request,
                   struct evq_http_reply *reply, const char *const *known)
{
    json_error_t fault;
    *body = (struct evq_body){.reply = reply};
    if (request->body_len == 0) {
        body->object = json_object();
    } else {
        body->object = json_loadb(request->body, request->body_len, JSON_REJECT_DUPLICATES, &fault);
        if (evq_json_memory_failed()) {
            json_decref(body->object);
            body->object = NULL;
        } else if (body->object == NULL) {
            evq_body_fail(body, "the body is not JSON: %s (line %d, column %d)", fault.text,
                          fault.line, fault.column);
        } else if (!json_is_object(body->object)) {
            evq_body_fail(body, "the body is not a JSON object");
        }
    }
    if (body->object != NULL && !body->failed) {
        check_members(body, known);
    }
    if (body->object == NULL && !body->failed) {
        body->failed = true;
        evq_http_reply_error(reply, 500, "nomem", "no memory for the body");
    }
    if (body->failed) {
        evq_body_close(body);
    }
    return !body->failed;
}

void evq_body_close(struct evq_body *body)
{
    json_decref(body->object);
    body->object = NULL;
}

/* Returns the member; NULL: it is absent or null, or there was a fault. */
static const json_t *member(const struct evq_body *body, const char *key)
{
    const json_t *value = body->failed ? NULL : json_object_get(body->object, key);
    return json_is_null(value) ? NULL : value;
}

const char *evq_body_text(struct evq_body *body, const char *key, const char *fallback)
{
    const json_t *value = member(body, key);
    if (value != NULL && !json_is_string(value)) {
        evq_body_fail(body, "'%s' is not text", key);
    }
    return json_is_string(value) ? json_string_value(value) : fallback;
}

int64_t evq_body_integer(struct evq_body *body, const char *key, int64_t max, int64_t fallback)
{
    const json_t *value = member(body, key);
    if (value == NULL) {
        return fallback;
    }
    const int64_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || number > max) {
        evq_body_fail(body, "'%s' is not a whole number of 0 to %" PRId64, key, max);
        return fallback;
    }
    return number;
}

double evq_body_number(struct evq_body *body, const char *key, double fallback)
{
    const json_t *value = member(body, key);
    if (value != NULL && !json_is_number(value)) {
        evq_body_fail(body, "'%s' is not a number", key);
    }
    return json_is_number(value) ? json_number_value(value) : fallback;
}

bool evq_body_bool(struct evq_body *body, const char *key, bool fallback)
{
    const json_t *value = member(body, key);
    if (value != NULL && !json_is_boolean(value)) {
        evq_body_fail(body, "'%s' is neither true nor false", key);
    }
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

int evq_body_word(struct evq_body *body, const char *key, const char *const *words, int count,
                  int fallback)
{
    char list[160] = "";
    size_t used = 0;
    const char *text = evq_body_text(body, key, NULL);
    for (int i = 0; text != NULL && i < count; i++) {
        if (strcmp(text, words[i]) == 0) {
            return i;
        }
        const int wrote =
            snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", words[i]);
        used += wrote > 0 && (size_t)wrote < sizeof list - used ? (size_t)wrote : 0;
    }
    if (text != NULL) {
        evq_body_fail(body, "'%s' is '%.40s', expected one of: %s", key, text, list);
    }
    return fallback;
}

/* Converts a scalar to text. NULL: it is not a scalar, or memory ran out. */
static const char *scalar_text(const json_t *value, struct evq_arena *arena)
{
    if (json_is_string(value)) {
        return evq_arena_strdup(arena, json_string_value(value));
    }
    if (json_is_integer(value)) {
        return evq_arena_printf(arena, "%" PRId64, (int64_t)json_integer_value(value));
    }
    if (json_is_real(value)) {
        return evq_arena_printf(arena, "%.17g", json_real_value(value));
    }
    return json_is_boolean(value) ? (json_is_true(value) ? "true" : "false") : NULL;
}

void evq_body_pairs(struct evq_body *body, const char *key, struct evq_arena *arena,
                    const struct evq_pair **ret_pairs, size_t *ret_count)
{
    json_t *object = body->failed ? NULL : json_object_get(body->object, key);
    const size_t room = json_object_size(object);
    size_t count = 0;
    const char *name = NULL;
    json_t *value = NULL;
    if (object == NULL || json_is_null(object)) {
        return;
    }
    if (!json_is_object(object) || room > EVQ_JOB_PAIRS_MAX) {
        evq_body_fail(body, "'%s' is not an object of at most %d members", key, EVQ_JOB_PAIRS_MAX);
        return;
    }
    struct evq_pair *pairs = evq_arena_array(arena, room, sizeof *pairs);
    json_object_foreach(object, name, value)
    {
        const char *text = pairs != NULL ? scalar_text(value, arena) : NULL;
        if (text == NULL) {
            evq_body_fail(body, "'%s.%.60s' is neither text, number, true nor false", key, name);
            return;
        }
        pairs[count].key = evq_arena_strdup(arena, name);
        pairs[count].value = text;
        if (pairs[count++].key == NULL) {
            evq_body_fail(body, "no memory for '%s'", key);
            return;
        }
    }
    *ret_pairs = pairs;
    *ret_count = count;
}

size_t evq_body_texts(struct evq_body *body, const char *key, const char **texts, size_t texts_max)
{
    const json_t *list = member(body, key);
    if (list == NULL) {
        return 0;
    }
    if (json_is_string(list)) {
        texts[0] = json_string_value(list);
        return 1;
    }
    const size_t count = json_array_size(list);
    if (!json_is_array(list) || count > texts_max) {
        evq_body_fail(body, "'%s' is neither text nor an array of at most %zu texts", key,
                      texts_max);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        texts[i] = json_string_value(json_array_get(list, i));
        if (texts[i] == NULL) {
            evq_body_fail(body, "'%s' holds something that is not text", key);
            return 0;
        }
    }
    return count;
}
