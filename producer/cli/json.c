#include "producer/cli/json.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/json_memory.h"

enum evq_status evq_json_take(char *text, json_t **ret, struct evq_error *err)
{
    json_error_t fault;
    json_t *value = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
    free(text);
    if (evq_json_memory_failed()) {
        json_decref(value);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the queue's answer");
    }
    if (value == NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "the queue's answer is not JSON: %s", fault.text);
    }
    if (!json_is_object(value)) {
        json_decref(value);
        return evq_error_set(err, EVQ_E_CORRUPT, "the queue's answer is not a JSON object");
    }
    *ret = value;
    return EVQ_OK;
}

const char *evq_json_text(const json_t *object, const char *key, const char *fallback)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : fallback;
}

int64_t evq_json_integer(const json_t *object, const char *key, int64_t fallback)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_integer(value)) {
        return json_integer_value(value);
    }
    if (json_is_real(value)) {
        double real = json_real_value(value);
        return real >= -9e15 && real <= 9e15 ? (int64_t)real : fallback;
    }
    const char *text = json_string_value(value);
    char *end = NULL;
    long long number = text != NULL ? strtoll(text, &end, 10) : 0;
    return text != NULL && end != text && *end == '\0' ? number : fallback;
}

bool evq_json_true(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_true(value) || evq_json_integer(object, key, 0) != 0;
}

void evq_json_set_time(json_t *object, const char *key, int64_t unix_ms)
{
    char iso[EVQ_CLOCK_ISO_BYTES];
    if (unix_ms > 0) {
        evq_clock_iso(unix_ms, iso);
        (void)json_object_set_new(object, key,
                                  json_string(iso)); // Out of memory shows when printing.
    }
}

enum evq_status evq_json_print(json_t *document, struct evq_error *err)
{
    const bool failed = document == NULL || evq_json_memory_failed() ||
                        json_dumpf(document, stdout, JSON_INDENT(2)) != 0;
    json_decref(document);
    if (failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the JSON document");
    }
    (void)fputc('\n', stdout);
    return EVQ_OK;
}
