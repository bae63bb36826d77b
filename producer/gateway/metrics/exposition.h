/*
 * The text format of Prometheus, 0.0.4: families and their samples. Every sample has the label
 * `queue`.
 */
#ifndef EVQ_PRODUCER_GATEWAY_METRICS_EXPOSITION_H
#define EVQ_PRODUCER_GATEWAY_METRICS_EXPOSITION_H

#include "shared/base/buffer.h"

#define EVQ_EXPOSITION_LABELS_MAX 6
#define EVQ_EXPOSITION_TYPE       "text/plain; version=0.0.4; charset=utf-8"

struct evq_label {
    const char *name;  // NULL: no more.
    const char *value; // Valid UTF-8; escaped when it is written.
};

struct evq_exposition {
    struct evq_buffer *out;
    const char *queue;
    const char *family; // Whose samples are written; set by evq_exposition_family().
};

/* type: gauge, counter or histogram. */
void evq_exposition_family(struct evq_exposition *exposition, const char *name, const char *type,
                           const char *help);
/* One sample. suffix: "", or "_bucket", "_sum", "_count" of a histogram. labels NULL: none. NaN is
 * written as such. */
void evq_exposition_sample(const struct evq_exposition *exposition, const char *suffix,
                           const struct evq_label labels[EVQ_EXPOSITION_LABELS_MAX], double value);

#endif
