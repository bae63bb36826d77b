/* How the gateway and the queue are. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/api/routes.h"
#include "producer/gateway/openapi.h"
#include "shared/base/json_memory.h"

void evq_api_health(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply)
{
    (void)api;
    (void)request;
    evq_buffer_text(&reply->body, "{\"status\": \"ok\", \"version\": \"" EVQ_VERSION "\"}\n");
}

void evq_api_openapi(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    (void)api;
    (void)request;
    evq_buffer_text(&reply->body, evq_openapi_text);
}

void evq_api_ready(struct evq_api *api, struct evq_http_request *request,
                   struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_queue_info info;
    (void)request;
    const enum evq_status status = evq_queue_info(api->queue, &info, &err);
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        return;
    }
    evq_buffer_text(&reply->body, "{\"status\": \"ready\", \"queue\": ");
    evq_buffer_json_text(&reply->body, evq_queue_name(api->queue));
    evq_buffer_printf(&reply->body, ", \"build\": %lld}\n", (long long)info.build);
}

void evq_api_queue(struct evq_api *api, struct evq_http_request *request,
                   struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    char *json = NULL;
    (void)request;
    const enum evq_status status = evq_queue_stats(api->queue, &json, &err);
    evq_http_reply_answer(reply, status, json, &err);
}

void evq_api_workers(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    char *json = NULL;
    (void)request;
    const enum evq_status status = evq_queue_stats(api->queue, &json, &err);
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        return;
    }
    json_t *stats = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    json_t *workers = json_object_get(stats, "workers");
    free(json);
    json = json_is_array(workers) ? evq_json_memory_dumps(workers, JSON_COMPACT) : NULL;
    if (json == NULL) {
        evq_http_reply_error(reply, 500, "corrupt", "the queue's answer has no workers");
    } else {
        evq_buffer_text(&reply->body, "{\"workers\": ");
        evq_buffer_text(&reply->body, json);
        evq_buffer_text(&reply->body, "}\n");
    }
    free(json);
    json_decref(stats);
}
