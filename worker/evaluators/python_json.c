#include "worker/evaluators/python_json.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/file.h"
#include "shared/base/json_memory.h"

/* Puts quotes around NaN, Infinity and -Infinity outside strings. */
static void words_quote(const char *text, size_t bytes, struct evq_buffer *out)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    bool in_string = false;
    size_t copied = 0;

    for (size_t i = 0; i < bytes; i++) {
        if (in_string && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            in_string = !in_string;
        } else if (!in_string && (text[i] == 'N' || text[i] == 'I' || text[i] == '-')) {
            for (size_t w = 0; w < sizeof(words) / sizeof(words[0]); w++) {
                const size_t length = strlen(words[w]);
                if (length <= bytes - i && memcmp(text + i, words[w], length) == 0) {
                    evq_buffer_append(out, text + copied, i - copied);
                    evq_buffer_printf(out, "\"%s\"", words[w]);
                    i += length - 1;
                    copied = i + 1;
                    break;
                }
            }
        }
    }
    evq_buffer_append(out, text + copied, bytes - copied);
}

enum evq_status evq_python_json_object(const char *text, size_t bytes, const char *where,
                                       json_t **ret_json, struct evq_error *err)
{
    struct evq_buffer quoted;
    json_error_t fault;
    enum evq_status status = EVQ_OK;

    evq_buffer_init(&quoted, 0);
    words_quote(text, bytes, &quoted);
    const char *source = evq_buffer_string(&quoted);
    if (source == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "%s", where);
        goto out;
    }
    evq_json_memory_clear();
    // Python has integers of any size. Read as reals, an integer above 64 bits does not make the
    // whole file invalid.
    json_t *json =
        json_loadb(source, quoted.bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &fault);
    if (evq_json_memory_failed()) {
        json_decref(json);
        status = evq_error_set(err, EVQ_E_NOMEM, "%s", where);
        goto out;
    }
    if (json == NULL) {
        char escaped[JSON_ERROR_TEXT_LENGTH * 4];
        status = evq_error_set(
            err, EVQ_E_CORRUPT, "%s: line %d column %d: %s", where, fault.line, fault.column,
            evq_error_escape(fault.text, strlen(fault.text), escaped, sizeof(escaped)));
        goto out;
    }
    if (!json_is_object(json)) {
        json_decref(json);
        status = evq_error_set(err, EVQ_E_CORRUPT, "%s: expected a JSON object", where);
        goto out;
    }
    *ret_json = json;
out:
    evq_buffer_free(&quoted);
    return status;
}

enum evq_status evq_python_json_file(int dir_fd, const char *name, size_t bytes_max,
                                     json_t **ret_json, struct evq_error *err)
{
    struct evq_buffer text;

    evq_buffer_init(&text, 0);
    enum evq_status status = evq_file_read(dir_fd, name, O_NOFOLLOW, bytes_max, &text, err);
    if (status == EVQ_OK && text.bytes == 0) {
        status = evq_error_set(err, EVQ_E_LIMIT, "'%s' is empty", name);
    }
    if (status == EVQ_OK) {
        status = evq_python_json_object((const char *)text.data, text.bytes, name, ret_json, err);
    }
    evq_buffer_free(&text);
    return status;
}

bool evq_python_json_number(const json_t *json, double *ret_value)
{
    if (json_is_number(json)) {
        *ret_value = json_number_value(json);
        return true;
    }
    const char *word = json_string_value(json);
    if (word == NULL) {
        return false;
    }
    if (strcmp(word, "NaN") == 0) {
        *ret_value = (double)NAN;
    } else if (strcmp(word, "Infinity") == 0) {
        *ret_value = (double)INFINITY;
    } else if (strcmp(word, "-Infinity") == 0) {
        *ret_value = -(double)INFINITY;
    } else {
        return false;
    }
    return true;
}
