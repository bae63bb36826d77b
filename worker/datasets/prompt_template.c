#include "worker/datasets/prompt_template.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The entry of a list by its decimal number; NULL: this is no number, or there is no such entry. */
static const json_t *entry(const json_t *list, const char *number, size_t bytes)
{
    size_t index = 0;

    if (bytes == 0 || bytes > 9 || (bytes > 1 && number[0] == '0')) {
        return NULL;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (number[i] < '0' || number[i] > '9') {
            return NULL;
        }
        index = index * 10 + (size_t)(number[i] - '0');
    }
    return json_array_get(list, index); // NULL if the index is too large.
}

/* Follows the path as far as it goes. Returns the last value, and in *ret_at where the part that it
 * does not have begins; behind the path: it has all. */
static const json_t *follow(const json_t *object, const char *path, size_t path_bytes,
                            size_t *ret_at)
{
    const json_t *value = object;

    for (*ret_at = 0; *ret_at <= path_bytes;) {
        const char *part = path + *ret_at;
        const char *dot = memchr(part, '.', path_bytes - *ret_at);
        const size_t bytes = dot != NULL ? (size_t)(dot - part) : path_bytes - *ret_at;
        const json_t *next =
            json_is_array(value) ? entry(value, part, bytes) : json_object_getn(value, part, bytes);
        if (next == NULL) {
            return value;
        }
        value = next;
        *ret_at += bytes + 1;
    }
    return value;
}

const json_t *evq_prompt_template_field(const json_t *object, const char *path, size_t path_bytes)
{
    size_t at = 0;
    const json_t *value = follow(object, path, path_bytes, &at);

    return at > path_bytes ? value : NULL;
}

enum evq_status evq_prompt_template_missing(const json_t *object, const char *path,
                                            size_t path_bytes, struct evq_error *err)
{
    const int shown = (int)(path_bytes < 80 ? path_bytes : 80);
    size_t at = 0;
    const json_t *last = follow(object, path, path_bytes, &at);

    if (at > 0 && json_is_array(last)) {
        const size_t parent = at < 81 ? at - 1 : 80; // A list stands behind a dot.
        return evq_error_set(err, EVQ_E_INVALID,
                             "field '%.*s' is missing: '%.*s' is a list with %zu entries, "
                             "which are numbered from 0",
                             shown, path, (int)parent, path, json_array_size(last));
    }
    return evq_error_set(err, EVQ_E_INVALID, "field '%.*s' is missing", shown, path);
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
    } else if (value == NULL) {
        return evq_prompt_template_missing(object, name, bytes, err);
    } else {
        return evq_error_set(err, EVQ_E_INVALID,
                             "field '%.*s' is neither text nor a number of 64 bits",
                             (int)(bytes < 80 ? bytes : 80), name);
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
