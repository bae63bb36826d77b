/* GET /healthz, /readyz, /v1/queue and others: the state of the gateway and the queue. POST
 * /v1/pause: pauses and resumes. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/api/body.h"
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

void evq_api_access(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply)
{
    (void)api;
    evq_buffer_text(&reply->body, "{\"user\": ");
    evq_buffer_json_text(&reply->body, request->user);
    evq_buffer_printf(&reply->body, ", \"write\": %s}\n",
                      (request->rights & EVQ_HTTP_WRITE) != 0 ? "true" : "false");
}

void evq_api_pause(struct evq_api *api, struct evq_http_request *request,
                   struct evq_http_reply *reply)
{
    static const char *const known[] = {"kind", "name", "paused", NULL};
    static const char *const kinds[] = {
        [EVQ_PAUSE_QUEUE] = "queue", [EVQ_PAUSE_SUITE] = "suite", [EVQ_PAUSE_RUN] = "run"};
    struct evq_error err = {EVQ_OK, ""};
    struct evq_body body;
    if (!evq_body_open(&body, request, reply, known)) {
        return;
    }
    const int kind = evq_body_word(&body, "kind", kinds, 3, EVQ_PAUSE_QUEUE);
    const char *name = evq_body_text(&body, "name", "");
    const bool paused = evq_body_bool(&body, "paused", true);
    const size_t bytes_max = kind == EVQ_PAUSE_RUN ? EVQ_JOB_RUN_BYTES_MAX : EVQ_JOB_NAME_BYTES_MAX;
    if (!body.failed &&
        (kind == EVQ_PAUSE_QUEUE ? name[0] != '\0' : !evq_job_name_valid(name, bytes_max))) {
        evq_body_fail(&body,
                      "'name' is '%.80s', expected the name of a suite or run, and none "
                      "for the queue",
                      name);
    }
    if (!body.failed) {
        const enum evq_status status =
            evq_queue_pause(api->queue, (enum evq_pause_kind)kind, name, paused, &err);
        if (status == EVQ_OK) {
            evq_buffer_printf(&reply->body, "{\"kind\": \"%s\", \"name\": \"%s\", ", kinds[kind],
                              name); // A valid name needs no escapes.
            evq_buffer_printf(&reply->body, "\"paused\": %s}\n", paused ? "true" : "false");
        } else {
            evq_http_reply_fail(reply, status, &err);
        }
    }
    evq_body_close(&body);
}
