#include "producer/gateway/api/routes.h"

#include <stdio.h>
#include <string.h>

#define JOB     "/v1/jobs/{run}/{step}/{variant}/{suite}" // The four parts of a job's id.
#define SAMPLES "/v1/samples/{run}/{step}"

/* HELD routes are those of LMMS-Eval whose clients lose the job after the first error. */
enum { DIRECT = 0, PROMPT = 5000, HELD = 10000, HELD_LONG = 60000, FILES = EVQ_ROUTE_SAMPLES_MS };

const struct evq_route evq_routes[] = {
    {"GET", "/healthz", EVQ_HTTP_OPEN, DIRECT, evq_api_health},
    {"GET", "/readyz", EVQ_HTTP_OPEN, PROMPT, evq_api_ready},
    {"GET", "/openapi.json", EVQ_HTTP_OPEN, DIRECT, evq_api_openapi},
    {"GET", "/", EVQ_HTTP_OPEN, DIRECT, evq_api_page},
    {"GET", "/page/{name}", EVQ_HTTP_OPEN, DIRECT, evq_api_page},
    {"GET", "/metrics", EVQ_HTTP_READ, PROMPT, evq_api_metrics},
    {"GET", "/v1/queue", EVQ_HTTP_READ, PROMPT, evq_api_queue},
    {"POST", "/v1/pause", EVQ_HTTP_WRITE, PROMPT, evq_api_pause},
    {"GET", "/v1/access", EVQ_HTTP_READ, DIRECT, evq_api_access},
    {"GET", "/v1/events", EVQ_HTTP_READ, DIRECT, evq_api_events},
    {"GET", "/v1/workers", EVQ_HTTP_READ, PROMPT, evq_api_workers},
    {"POST", "/v1/jobs", EVQ_HTTP_WRITE, PROMPT, evq_api_submit},
    {"GET", "/v1/jobs", EVQ_HTTP_READ, PROMPT, evq_api_jobs},
    {"GET", JOB, EVQ_HTTP_READ, PROMPT, evq_api_job},
    {"GET", JOB "/log", EVQ_HTTP_READ, PROMPT, evq_api_job_log},
    {"POST", JOB "/cancel", EVQ_HTTP_WRITE, PROMPT, evq_api_job_cancel},
    {"POST", JOB "/retry", EVQ_HTTP_WRITE, PROMPT, evq_api_job_retry},
    {"GET", "/v1/runs", EVQ_HTTP_READ, PROMPT, evq_api_runs},
    {"GET", "/v1/runs/{run}", EVQ_HTTP_READ, PROMPT, evq_api_run},
    {"GET", "/v1/runs/{run}/results", EVQ_HTTP_READ, PROMPT, evq_api_run_results},
    {"GET", "/v1/runs/{run}/best", EVQ_HTTP_READ, PROMPT, evq_api_run_best},
    {"GET", "/v1/runs/{run}/significance", EVQ_HTTP_READ, FILES, evq_api_significance},
    {"GET", SAMPLES, EVQ_HTTP_READ, FILES, evq_api_samples},
    {"GET", SAMPLES "/items", EVQ_HTTP_READ, FILES, evq_api_samples_items},
    {"GET", "/v1/compare", EVQ_HTTP_READ, FILES, evq_api_compare},
    {"GET", "/v1/diff", EVQ_HTTP_READ, FILES, evq_api_diff},
    {"GET", "/health", EVQ_HTTP_LMMS, PROMPT, evq_lmms_health},
    {"POST", "/evaluate", EVQ_HTTP_LMMS, HELD, evq_lmms_evaluate},
    {"GET", "/jobs/{job_id}", EVQ_HTTP_LMMS, HELD_LONG, evq_lmms_job},
    {"DELETE", "/jobs/{job_id}", EVQ_HTTP_LMMS, PROMPT, evq_lmms_cancel},
    {"GET", "/queue", EVQ_HTTP_LMMS, PROMPT, evq_lmms_queue},
    {"GET", "/tasks", EVQ_HTTP_LMMS, PROMPT, evq_lmms_tasks},
    {"GET", "/models", EVQ_HTTP_LMMS, PROMPT, evq_lmms_models},
    {"POST", "/merge", EVQ_HTTP_LMMS, HELD_LONG, evq_lmms_merge},
};
const size_t evq_route_count = sizeof evq_routes / sizeof evq_routes[0];

/* Replies 405 with the methods of the path. false: the path has none. */
static bool refuse_method(struct evq_http_request *request, const char *target,
                          struct evq_http_reply *reply)
{
    char methods[64] = "";
    size_t used = 0;
    for (size_t i = 0; i < evq_route_count; i++) {
        if (evq_http_match(request, target, evq_routes[i].pattern) &&
            strstr(methods, evq_routes[i].method) == NULL) {
            const int wrote = snprintf(methods + used, sizeof methods - used, "%s%s",
                                       used > 0 ? ", " : "", evq_routes[i].method);
            used += wrote > 0 && (size_t)wrote < sizeof methods - used ? (size_t)wrote : 0;
        }
    }
    const char *allow = used > 0 ? evq_arena_strdup(request->arena, methods) : NULL;
    if (used == 0) {
        return false;
    }
    evq_http_reply_error(reply, 405, "method_not_allowed", "Method Not Allowed");
    if (allow != NULL) {
        evq_http_reply_header(reply, "Allow", allow);
    }
    return true;
}

/* "/health/" is sent to "/health". false: there is no such path either. */
static bool redirect(struct evq_http_request *request, const char *target,
                     struct evq_http_reply *reply)
{
    const size_t path = strcspn(target, "?#");
    if (path < 2 || target[path - 1] != '/') {
        return false;
    }
    char *shorter =
        evq_arena_printf(request->arena, "%.*s%s", (int)(path - 1), target, target + path);
    bool known = false;
    for (size_t i = 0; shorter != NULL && i < evq_route_count && !known; i++) {
        known = evq_http_match(request, shorter, evq_routes[i].pattern);
    }
    if (known && shorter[1] != '/') { // "//host" would lead elsewhere.
        evq_http_reply_error(reply, 307, "moved", "the path has no '/' at its end");
        evq_http_reply_header(reply, "Location", shorter);
    }
    return known;
}

const struct evq_route *evq_route_find(struct evq_http_request *request, const char *target,
                                       struct evq_http_reply *reply)
{
    for (size_t i = 0; i < evq_route_count; i++) {
        if (strcmp(evq_routes[i].method, request->method) == 0 &&
            evq_http_match(request, target, evq_routes[i].pattern)) {
            return &evq_routes[i];
        }
    }
    if (!refuse_method(request, target, reply) && !redirect(request, target, reply)) {
        evq_http_reply_error(reply, 404, "not_found", "Not Found");
    }
    return NULL;
}
