/*
 * The table of routes: which handler serves which method and path. A test compares it with
 * openapi.json. Any thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_API_ROUTES_H
#define EVQ_PRODUCER_GATEWAY_API_ROUTES_H

#include "producer/gateway/http/http.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"

struct evq_events;             // producer/gateway/api/events.h
struct evq_pins;               // producer/gateway/lmms/pins.h
struct evq_significance_cache; // producer/gateway/samples/significance_cache.h
struct evq_timed_verify;       // shared/verify/timed_verify.h

/* Passed to handlers. Each pool thread has its own. */
struct evq_api {
    const struct evq_config *config;
    struct evq_queue *queue; // NULL for direct routes.
    struct evq_events *events;
    struct evq_pins *pins;
    struct evq_significance_cache *steps; // Shared by all threads.
    struct evq_timed_verify *verify;      // Shared by all threads.
};

/* Fills the reply, which is initialised as 200, JSON and empty. It may be called again for the same
 * request: after again_ms, and once more after the connection to Redis was lost (calls of queue.h
 * may be repeated). */
typedef void (*evq_http_handler)(struct evq_api *api, struct evq_http_request *request,
                                 struct evq_http_reply *reply);

/* Requests that read samples wait so long, for threads of their own, because a long file takes
 * seconds. */
#define EVQ_ROUTE_SAMPLES_MS 30000

struct evq_route {
    const char *method; // "GET" serves HEAD too.
    const char *pattern;
    enum evq_http_right right;
    int32_t waits_ms; // How long it may wait for a thread of the pool; then the reply is 503. 0: it
                      // runs on the library's thread, without Redis, and must not wait.
    evq_http_handler handler;
};

extern const struct evq_route evq_routes[];
extern const size_t evq_route_count;

/*
 * Finds the route of method and target and sets the request's params. NULL: there is none; the
 * reply is 404, 405 with Allow, or 307 to the path without the "/" at its end.
 */
const struct evq_route *evq_route_find(struct evq_http_request *request, const char *target,
                                       struct evq_http_reply *reply);

#define EVQ_HTTP_HANDLER(name)                                                                     \
    void name(struct evq_api *api, struct evq_http_request *request, struct evq_http_reply *reply)

/* api_queue.c */
EVQ_HTTP_HANDLER(evq_api_health);
EVQ_HTTP_HANDLER(evq_api_ready);
EVQ_HTTP_HANDLER(evq_api_openapi);
EVQ_HTTP_HANDLER(evq_api_queue);
EVQ_HTTP_HANDLER(evq_api_workers);
EVQ_HTTP_HANDLER(evq_api_access);
EVQ_HTTP_HANDLER(evq_api_pause);
/* api_metrics.c, page.c */
EVQ_HTTP_HANDLER(evq_api_metrics);
EVQ_HTTP_HANDLER(evq_api_page);
/* api_submit.c, api_jobs.c */
EVQ_HTTP_HANDLER(evq_api_submit);
EVQ_HTTP_HANDLER(evq_api_jobs);
EVQ_HTTP_HANDLER(evq_api_job);
EVQ_HTTP_HANDLER(evq_api_job_log);
EVQ_HTTP_HANDLER(evq_api_job_cancel);
EVQ_HTTP_HANDLER(evq_api_job_retry);
/* api_events.c */
EVQ_HTTP_HANDLER(evq_api_events);
/* api_runs.c */
EVQ_HTTP_HANDLER(evq_api_runs);
EVQ_HTTP_HANDLER(evq_api_run);
EVQ_HTTP_HANDLER(evq_api_run_results);
EVQ_HTTP_HANDLER(evq_api_run_best);
/* producer/gateway/samples/ */
EVQ_HTTP_HANDLER(evq_api_samples);
EVQ_HTTP_HANDLER(evq_api_samples_items);
EVQ_HTTP_HANDLER(evq_api_compare);
EVQ_HTTP_HANDLER(evq_api_diff);
EVQ_HTTP_HANDLER(evq_api_significance);

/* lmms.c: LMMS-Eval's own endpoints. */
void evq_lmms_health(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply);
void evq_lmms_evaluate(struct evq_api *api, struct evq_http_request *request,
                       struct evq_http_reply *reply);
void evq_lmms_job(struct evq_api *api, struct evq_http_request *request,
                  struct evq_http_reply *reply);
void evq_lmms_cancel(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply);
void evq_lmms_queue(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply);
void evq_lmms_tasks(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply);
void evq_lmms_models(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply);
void evq_lmms_merge(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply);

#endif
