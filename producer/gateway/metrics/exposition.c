#include "producer/gateway/metrics/exposition.h"

#include <math.h>

void evq_exposition_family(struct evq_exposition *exposition, const char *name, const char *type,
                           const char *help)
{
    exposition->family = name;
    evq_buffer_printf(exposition->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Backslash, quote and line end are escaped. */
static void label_put(struct evq_buffer *out, const char *name, const char *value)
{
    evq_buffer_printf(out, "%s=\"", name);
    for (const char *at = value; *at != '\0'; at++) {
        if (*at == '\n') {
            evq_buffer_text(out, "\\n");
        } else {
            evq_buffer_text(out, *at == '\\' || *at == '"' ? "\\" : "");
            evq_buffer_append(out, at, 1);
        }
    }
    evq_buffer_text(out, "\"");
}

void evq_exposition_sample(const struct evq_exposition *exposition, const char *suffix,
                           const struct evq_label labels[EVQ_EXPOSITION_LABELS_MAX], double value)
{
    evq_buffer_printf(exposition->out, "%s%s{", exposition->family, suffix);
    label_put(exposition->out, "queue", exposition->queue);
    for (size_t i = 0; labels != NULL && i < EVQ_EXPOSITION_LABELS_MAX && labels[i].name != NULL;
         i++) {
        evq_buffer_text(exposition->out, ",");
        label_put(exposition->out, labels[i].name, labels[i].value);
    }
    evq_buffer_text(exposition->out, "} ");
    if (isnan(value)) {
        evq_buffer_text(exposition->out, "NaN");
    } else if (isinf(value)) {
        evq_buffer_text(exposition->out, value > 0 ? "+Inf" : "-Inf");
    } else {
        evq_buffer_json_double(exposition->out, value);
    }
    evq_buffer_text(exposition->out, "\n");
}
