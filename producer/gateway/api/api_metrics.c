/* GET /metrics. */
#include <stdlib.h>

#include "producer/gateway/api/events.h"
#include "producer/gateway/api/routes.h"
#include "producer/gateway/metrics/exposition.h"
#include "producer/gateway/metrics/metrics.h"
#include "shared/base/clock.h"

void evq_api_metrics(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    char *stats = NULL;
    struct evq_metrics_registry *registry = evq_events_metrics_registry(api->events);
    const int64_t before = evq_clock_mono_us();
    (void)request;

    // A queue that cannot be reached is something to scrape too: stats stays NULL.
    enum evq_status status = evq_queue_stats(api->queue, &stats, &err);
    status = evq_metrics_write(evq_queue_name(api->queue), status == EVQ_OK ? stats : NULL,
                               (double)(evq_clock_mono_us() - before) / 1e6, registry, &reply->body,
                               &err);
    free(stats);
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        return;
    }
    evq_metrics_registry_write(registry, evq_queue_name(api->queue), &reply->body);
    reply->content_type = EVQ_EXPOSITION_TYPE;
}
