#include "worker/datasets/jsonl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json_memory.h"
#include "worker/datasets/python_text.h"

bool evq_jsonl_line(struct evq_jsonl *lines, const char **ret_line, size_t *ret_bytes)
{
    if (lines->at == lines->end) {
        return false;
    }
    const char *newline = memchr(lines->at, '\n', (size_t)(lines->end - lines->at));
    size_t bytes = (size_t)((newline != NULL ? newline : lines->end) - lines->at);
    *ret_line = lines->at;
    lines->at = newline != NULL ? newline + 1 : lines->end;
    lines->number++;
    bytes -= bytes > 0 && (*ret_line)[bytes - 1] == '\r';
    *ret_bytes = bytes;
    return true;
}

/* Replaces integers that do not fit into 64 bits by null of the same length. Returns whether there
 * were any. */
static bool integers_blank(char *text, size_t bytes)
{
    bool in_string = false;
    bool any = false;

    for (size_t i = 0; i < bytes; i++) {
        if (in_string && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            in_string = !in_string;
        } else if (!in_string && (text[i] == '-' || (text[i] >= '0' && text[i] <= '9'))) {
            const size_t sign = text[i] == '-';
            const size_t length = strspn(text + i, "0123456789+-.eE");
            errno = 0;
            (void)strtoll(text + i, NULL, 10);
            if (errno == ERANGE && strspn(text + i + sign, "0123456789") == length - sign &&
                text[i + sign] != '0') {
                memset(text + i, ' ', length);
                memcpy(text + i, "null", 4);
                any = true;
            }
            i += length - 1;
        }
    }
    return any;
}

/* Reads one object. Python has integers of any size, and one in an unused field must not make the
 * data set unusable. If the field is used, null is refused as neither text nor number. *ret_short:
 * memory ran out. */
static json_t *object_read(const char *line, size_t bytes, json_error_t *fault, bool *ret_short)
{
    struct evq_buffer copy;

    evq_json_memory_clear();
    evq_buffer_init(&copy, bytes);
    json_t *object = json_loadb(line, bytes, JSON_ALLOW_NUL, fault);
    if (object == NULL && json_error_code(fault) == json_error_numeric_overflow) {
        evq_buffer_append(&copy, line, bytes);
        if (!copy.failed && integers_blank((char *)copy.data, bytes)) {
            object = json_loadb((const char *)copy.data, bytes, JSON_ALLOW_NUL, fault);
        }
    }
    *ret_short = copy.failed || evq_json_memory_failed();
    evq_buffer_free(&copy);
    return object;
}

enum evq_status evq_jsonl_next(struct evq_jsonl *lines, json_t **ret_object, struct evq_error *err)
{
    const char *line = NULL;
    size_t bytes = 0;
    bool without_memory = false;
    json_error_t fault;

    do {
        if (!evq_jsonl_line(lines, &line, &bytes)) {
            *ret_object = NULL;
            return EVQ_OK;
        }
    } while (evq_python_text_trim_end(line, bytes) == 0);
    if (bytes > EVQ_JSONL_LINE_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s', line %" PRId64 ": %zu bytes, allowed %zu",
                             lines->name, lines->number, bytes, EVQ_JSONL_LINE_BYTES_MAX);
    }
    json_t *object = object_read(line, bytes, &fault, &without_memory);
    if (without_memory) {
        json_decref(object);
        return evq_error_set(err, EVQ_E_NOMEM, "'%s', line %" PRId64, lines->name, lines->number);
    }
    if (object == NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%s', line %" PRId64 ", column %d: %.150s",
                             lines->name, lines->number, fault.column, fault.text);
    }
    if (!json_is_object(object)) {
        json_decref(object);
        return evq_error_set(err, EVQ_E_INVALID, "'%s', line %" PRId64 " is not a JSON object",
                             lines->name, lines->number);
    }
    *ret_object = object;
    return EVQ_OK;
}
