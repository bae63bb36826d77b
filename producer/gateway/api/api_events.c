/* GET /v1/events: sends events of the queue when they happen. */
#include <string.h>

#include "producer/gateway/api/events.h"
#include "producer/gateway/api/routes.h"

void evq_api_events(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply)
{
    const char *run = evq_http_query(request, "run", "");
    const char *last_id = request->last_event_id[0] != '\0' ? request->last_event_id
                                                            : evq_http_query(request, "after", "");
    if (run[0] != '\0' && !evq_http_run_valid(run, reply)) {
        return;
    }
    struct evq_listener *listener = evq_events_listen(api->events, last_id, run);
    if (listener == NULL) {
        evq_http_reply_error(reply, 400, "invalid",
                             "Last-Event-ID is '%.60s', expected the id of an event", last_id);
        return;
    }
    reply->content_type = "text/event-stream";
    reply->stream = (struct evq_http_stream){
        .pull = evq_listener_pull, .close = evq_listener_close, .context = listener};
}
