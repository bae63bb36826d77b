/* GET /v1/runs...: the runs, their results and their best checkpoints. */
#include <inttypes.h>
#include <string.h>

#include "producer/gateway/api/routes.h"
#include "shared/verify/saved_weights.h"

#define RUN_OF(request) ((request)->params[0])

void evq_api_runs(struct evq_api *api, struct evq_http_request *request,
                  struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    char *json = NULL;
    const char *cursor = evq_http_query(request, "cursor", "");
    const enum evq_status status = evq_queue_runs(api->queue, cursor, &json, &err);
    evq_http_reply_answer(reply, status, json, &err);
}

void evq_api_run(struct evq_api *api, struct evq_http_request *request,
                 struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_run_counts counts = {.open = 0};
    if (!evq_http_run_valid(RUN_OF(request), reply)) {
        return;
    }
    const enum evq_status status = evq_queue_run_counts(api->queue, RUN_OF(request), &counts, &err);
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        return;
    }
    if (evq_run_counts_total(&counts) == 0) {
        evq_http_reply_error(reply, 404, "not_found", "no run '%s'", RUN_OF(request));
        return;
    }
    evq_buffer_text(&reply->body, "{\"run\": ");
    evq_buffer_json_text(&reply->body, RUN_OF(request));
    evq_buffer_text(&reply->body, ", \"counts\": {");
    for (size_t i = 0; i < EVQ_JOB_STATE_COUNT; i++) {
        evq_buffer_printf(&reply->body, "%s\"%s\": %" PRId64, i > 0 ? ", " : "",
                          evq_job_state_name((enum evq_job_state)i), counts.by_state[i]);
    }
    evq_buffer_printf(&reply->body, "}, \"open\": %" PRId64 "}\n", counts.open);
}

struct page {
    struct evq_buffer *out;
    size_t count;
};

static void on_result(void *context, const struct evq_result *result)
{
    struct page *page = context;
    evq_buffer_text(page->out, page->count++ > 0 ? ", " : "");
    evq_result_json(result, page->out);
}

void evq_api_run_results(struct evq_api *api, struct evq_http_request *request,
                         struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct page page = {.out = &reply->body};
    int64_t cursor = 0;
    if (!evq_http_run_valid(RUN_OF(request), reply) ||
        !evq_http_query_integer(request, reply, "cursor", 0, INT64_C(1) << 53, &cursor)) {
        return;
    }
    evq_buffer_text(&reply->body, "{\"results\": [");
    const enum evq_status status =
        evq_queue_run_results(api->queue, RUN_OF(request), &cursor, on_result, &page, &err);
    evq_buffer_printf(&reply->body, "], \"cursor\": %" PRId64 "}\n", cursor);
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
    }
}

void evq_api_run_best(struct evq_api *api, struct evq_http_request *request,
                      struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_best best;
    if (!evq_http_run_valid(RUN_OF(request), reply)) {
        return;
    }
    const enum evq_status status = evq_queue_best_find(
        api->queue, RUN_OF(request), evq_http_query(request, "metric", ""), &best, &err);
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        return;
    }
    const enum evq_status same = evq_saved_weights_verify(api->queue, api->config, api->verify,
                                                          best.job, best.checkpoint, &err);
    if (same != EVQ_OK && !evq_saved_weights_lost(same)) {
        evq_http_reply_fail(reply, same, &err);
        return;
    }
    struct evq_buffer *out = &reply->body;
    evq_buffer_text(out, "{\"run\": ");
    evq_buffer_json_text(out, RUN_OF(request));
    evq_buffer_text(out, ", \"metric\": ");
    evq_buffer_json_text(out, best.metric);
    evq_buffer_text(out, ", \"value\": ");
    evq_buffer_json_double(out, best.value);
    evq_buffer_printf(out, ", \"step\": %" PRId64 ", \"job\": ", best.step);
    evq_buffer_json_text(out, best.job);
    evq_buffer_text(out, ", \"checkpoint\": ");
    if (same == EVQ_OK) {
        evq_buffer_json_text(out, best.checkpoint);
    } else {
        evq_buffer_text(out, "null");
    }
    evq_buffer_text(out, "}\n");
}
