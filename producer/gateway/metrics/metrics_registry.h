/*
 * Metrics of the stream of results for Prometheus: how jobs ended, how long their parts took, and
 * the newest value of each metric. Counters start when this gateway starts. At most
 * EVQ_METRICS_REGISTRY_SUITES_MAX suites and EVQ_METRICS_REGISTRY_SERIES_MAX series; a new series
 * replaces the one that has had no value for longest. Any thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_METRICS_METRICS_REGISTRY_H
#define EVQ_PRODUCER_GATEWAY_METRICS_METRICS_REGISTRY_H

#include "shared/base/buffer.h"
#include "shared/queue/result.h"

#define EVQ_METRICS_REGISTRY_SUITES_MAX 64
#define EVQ_METRICS_REGISTRY_SERIES_MAX 2000

struct evq_metrics_registry;

struct evq_metrics_registry *evq_metrics_registry_new(void);           // NULL: no memory.
void evq_metrics_registry_free(struct evq_metrics_registry *registry); // Accepts NULL.

/*
 * Takes the result of a task or the end of a job. Pass each entry of the stream once. before: the
 * entry is older than this gateway, so it is not counted and replaces no series. Such an entry may
 * be passed again.
 */
void evq_metrics_registry_take(struct evq_metrics_registry *registry,
                               const struct evq_result *result, bool before);

/* Starts the counters of a suite at 0, so that Prometheus sees its first end as an increase. */
void evq_metrics_registry_add_suite(struct evq_metrics_registry *registry, const char *name);

/* Appends families in the text format of metrics.h. */
void evq_metrics_registry_write(struct evq_metrics_registry *registry, const char *queue,
                                struct evq_buffer *out);

#endif
