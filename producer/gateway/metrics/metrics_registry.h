/*
 * What the results of the stream add up to, for Prometheus: how jobs ended, how long their parts
 * took, and the newest value of each metric. Counted since this gateway began to follow the stream
 * (counters of Prometheus may begin anew). Bounded: at most EVQ_TALLY_SUITES_MAX suites and
 * EVQ_TALLY_SERIES_MAX series; a new series takes the place of the one that was longest without a
 * value. Any thread.
 */
#ifndef EVQ_GATEWAY_TALLY_H
#define EVQ_GATEWAY_TALLY_H

#include "shared/base/buffer.h"
#include "shared/queue/result.h"

#define EVQ_TALLY_SUITES_MAX 64
#define EVQ_TALLY_SERIES_MAX 2000

struct evq_metrics_registry;

struct evq_metrics_registry *evq_metrics_registry_new(void);        // NULL: no memory.
void evq_metrics_registry_free(struct evq_metrics_registry *tally); // Accepts NULL.

/*
 * One entry of the stream, the result of a task or the end of a job; each once, in order. before:
 * of before the gateway began; its metrics are values, and nothing of it is counted.
 */
void evq_metrics_registry_take(struct evq_metrics_registry *tally, const struct evq_result *result,
                               bool before);

/* A suite of the queue: counted from 0, so that its first end is an increase to Prometheus. */
void evq_metrics_registry_suite(struct evq_metrics_registry *tally, const char *name);

/* Appends families in the text format of metrics.h. */
void evq_metrics_registry_write(struct evq_metrics_registry *tally, const char *queue,
                                struct evq_buffer *out);

#endif
