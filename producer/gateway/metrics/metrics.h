/*
 * GET /metrics: the queue by one call of `stats`, in the text format 0.0.4 of Prometheus. One
 * thread.
 *
 * The numbers are of the whole queue, so scrape one gateway, or use `max by (queue)`. No label is
 * unbounded: there are no ids, steps or paths. Values have Prometheus' base units, such as seconds.
 */
#ifndef EVQ_PRODUCER_GATEWAY_METRICS_METRICS_H
#define EVQ_PRODUCER_GATEWAY_METRICS_METRICS_H

#include "producer/gateway/metrics/metrics_registry.h"
#include "shared/base/error.h"

/* stats: the JSON of evq_queue_stats() (docs/protocol.md). NULL: Redis did not answer; only
 * evalq_redis_up is written, as 0. rtt_seconds: the duration of that call. Adds the suites in stats
 * to registry. EVQ_E_INVALID: stats is no such JSON. */
enum evq_status evq_metrics_write(const char *queue, const char *stats, double rtt_seconds,
                                  struct evq_metrics_registry *registry, struct evq_buffer *out,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
