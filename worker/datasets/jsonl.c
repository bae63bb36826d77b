#include "worker/datasets/jsonl.h"

#include <inttypes.h>
#include <string.h>

#include "shared/json_memory.h"
#include "worker/datasets/words.h"

bool evq_lines_next(struct evq_lines *lines, const char **ret_line, size_t *ret_bytes)
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

enum evq_status evq_jsonl_next(struct evq_lines *lines, json_t **ret_object, struct evq_error *err)
{
    const char *line = NULL;
    size_t bytes = 0;
    json_error_t fault;

    do {
        if (!evq_lines_next(lines, &line, &bytes)) {
            *ret_object = NULL;
            return EVQ_OK;
        }
    } while (evq_words_end(line, bytes) == 0);
    if (bytes > EVQ_JSONL_LINE_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s', line %" PRId64 ": %zu bytes, allowed %zu",
                             lines->name, lines->number, bytes, EVQ_JSONL_LINE_BYTES_MAX);
    }
    evq_json_memory_clear();
    json_t *object = json_loadb(line, bytes, JSON_ALLOW_NUL, &fault);
    if (evq_json_memory_failed()) {
        json_decref(object);
        return evq_error_set(err, EVQ_E_NOMEM, "'%s', line %" PRId64, lines->name, lines->number);
    }
    if (object == NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "'%s', line %" PRId64 ", column %d: %.150s",
                             lines->name, lines->number, fault.column, fault.text);
    }
    if (!json_is_object(object)) {
        json_decref(object);
        return evq_error_set(err, EVQ_E_INVALID, "'%s', line %" PRId64 " is no JSON object",
                             lines->name, lines->number);
    }
    *ret_object = object;
    return EVQ_OK;
}
