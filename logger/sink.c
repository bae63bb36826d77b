#include "logger/sink.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct evq_sink_ops *evq_sink_find(const char *kind)
{
    static const struct evq_sink_ops *const all[] = {&evq_sink_jsonl, &evq_sink_tensorboard,
                                                     &evq_sink_best, &evq_sink_exec};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (strcmp(all[i]->kind, kind) == 0) {
            return all[i];
        }
    }
    return NULL;
}

enum evq_status evq_sink_option_number(const struct evq_sink_config *sink, const char *key,
                                       double fallback, double *ret_value, struct evq_error *err)
{
    const char *text = evq_pair_get(sink->options, sink->option_count, key, NULL);
    char *end = NULL;

    if (text == NULL) {
        *ret_value = fallback;
        return EVQ_OK;
    }
    errno = 0;
    double value = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(value >= 0)) {
        return evq_error_set(err, EVQ_E_INVALID, "sink '%s': %s is '%s', expected a number from 0",
                             sink->name, key, text);
    }
    *ret_value = value;
    return EVQ_OK;
}
