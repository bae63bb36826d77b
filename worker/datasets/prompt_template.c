#include "worker/datasets/prompt_template.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const json_t *evq_prompt_template_field(const json_t *object, const char *path, size_t path_bytes)
{
    const json_t *value = object;

    for (size_t at = 0; at <= path_bytes && value != NULL;) {
        const char *dot = memchr(path + at, '.', path_bytes - at);
        const size_t bytes = (dot != NULL ? (size_t)(dot - path) : path_bytes) - at;
        value = json_object_getn(value, path + at, bytes); // NULL if value is not an object.
        at += bytes + 1;
    }
    return value;
}

/* Writes a number as Python does: the fewest digits that identify it, with a point or an exponent.
 */
static void append_real(struct evq_buffer *out, double value)
{
    char text[40];
    int digits = 1;

    (void)snprintf(text, sizeof(text), "%.*e", digits - 1, value);
    while (digits < 17 && strtod(text, NULL) != value) {
        digits++;
        (void)snprintf(text, sizeof(text), "%.*e", digits - 1, value);
    }
    const int exponent = atoi(strchr(text, 'e') + 1); // %e always writes an "e".
    if (exponent >= -4 && exponent < 16) {
        const int behind = digits - 1 - exponent;
        (void)snprintf(text, sizeof(text), "%.*f", behind > 1 ? behind : 1, value);
    }
    evq_buffer_text(out, text);
}

/* Appends text with its first letter in upper case and the others in lower case. The locale is "C",
 * so only ASCII letters change. */
static void append_capitalized(struct evq_buffer *out, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        const int byte = (unsigned char)text[i];
        const char changed = (char)(i == 0 ? toupper(byte) : tolower(byte));
        evq_buffer_append(out, &changed, 1);
    }
}

static enum evq_status append_field(const char *name, size_t bytes, const json_t *object,
                                    struct evq_buffer *out, struct evq_error *err)
{
    static const char filter[] = "|capitalize";
    const size_t tail = sizeof(filter) - 1;
    const bool capitalize = bytes > tail && memcmp(name + bytes - tail, filter, tail) == 0;

    bytes -= capitalize ? tail : 0;
    const json_t *value = evq_prompt_template_field(object, name, bytes);
    if (json_is_string(value)) {
        if (capitalize) {
            append_capitalized(out, json_string_value(value), json_string_length(value));
        } else {
            evq_buffer_append(out, json_string_value(value), json_string_length(value));
        }
    } else if (json_is_integer(value)) {
        evq_buffer_printf(out, "%" PRId64, (int64_t)json_integer_value(value));
    } else if (json_is_real(value)) {
        append_real(out, json_real_value(value));
    } else {
        return evq_error_set(
            err, EVQ_E_INVALID, "field '%.*s' %s", (int)(bytes < 80 ? bytes : 80), name,
            value == NULL ? "is missing" : "is neither text nor a number of 64 bits");
    }
    return EVQ_OK;
}

/* Handles one brace pair, one field or one run of plain text. object NULL: only checks. */
static enum evq_status step(const char *pattern, size_t *at, const json_t *object,
                            struct evq_buffer *out, struct evq_error *err)
{
    const char *from = pattern + *at;
    const char brace = from[0];

    if (brace != '{' && brace != '}') {
        const size_t bytes = strcspn(from, "{}");
        *at += bytes;
        if (out != NULL) {
            evq_buffer_append(out, from, bytes);
        }
        return EVQ_OK;
    }
    if (from[1] == brace) {
        *at += 2;
        if (out != NULL) {
            evq_buffer_append(out, from, 1);
        }
        return EVQ_OK;
    }
    const size_t bytes = strcspn(from + 1, "{}");
    if (brace == '}' || from[1 + bytes] != '}' || bytes == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "template '%.60s' has a brace without its partner at byte %zu, "
                             "expected {field}, {{ or }}",
                             pattern, *at);
    }
    *at += bytes + 2;
    return out != NULL ? append_field(from + 1, bytes, object, out, err) : EVQ_OK;
}

enum evq_status evq_prompt_template_expand(const char *pattern, const json_t *object,
                                           struct evq_buffer *out, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t at = 0; pattern[at] != '\0' && status == EVQ_OK;) {
        status = step(pattern, &at, object, out, err);
    }
    return status;
}

enum evq_status evq_prompt_template_check(const char *pattern, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t at = 0; pattern[at] != '\0' && status == EVQ_OK;) {
        status = step(pattern, &at, NULL, NULL, err);
    }
    return status;
}
