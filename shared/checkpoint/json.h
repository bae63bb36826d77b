/*
 * A strict JSON reader for file headers: one pass, no allocation, no recursion. Strings are
 * unescaped in place, so the text is changed. Not for sharing between threads.
 */
#ifndef EVQ_SHARED_CHECKPOINT_JSON_H
#define EVQ_SHARED_CHECKPOINT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_JSON_DEPTH_MAX 64

enum evq_json_kind {
    EVQ_JSON_OBJECT,
    EVQ_JSON_OBJECT_END,
    EVQ_JSON_ARRAY,
    EVQ_JSON_ARRAY_END,
    EVQ_JSON_KEY, // Always followed by a value.
    EVQ_JSON_STRING,
    EVQ_JSON_NUMBER,
    EVQ_JSON_TRUE,
    EVQ_JSON_FALSE,
    EVQ_JSON_NULL,
    EVQ_JSON_END // The text is used up: one value and white space.
};

struct evq_json_token {
    enum evq_json_kind kind;
    // KEY, STRING: unescaped, NUL-terminated, without NUL inside. NUMBER: as written.
    const char *text;
    size_t bytes;
};

struct evq_json {
    char *text;
    size_t bytes;
    size_t at;
    size_t depth;
    uint64_t arrays; // One bit a level: set when that level is an array.
    int expect;
    bool ended;  // The error is that the text ends too early.
    bool python; // Set after init: NaN, Infinity and -Infinity are numbers too, as Python writes.
};

/* text stays the caller's, is changed by reading, and must be UTF-8 (evq_utf8_valid()). */
void evq_json_init(struct evq_json *json, char *text, size_t bytes);

/* EVQ_E_CORRUPT names the byte and what was expected there. */
enum evq_status evq_json_next(struct evq_json *json, struct evq_json_token *ret_token,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Skips the rest of the value that began with token. */
enum evq_status evq_json_skip(struct evq_json *json, const struct evq_json_token *token,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* True when token is a NUMBER that is a plain integer of 64 bits: digits only, no sign, point or
 * exponent. */
bool evq_json_u64(const struct evq_json_token *token, uint64_t *ret_value);

#endif
