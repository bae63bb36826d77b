/*
 * The threads that run handlers, each with its own connection to Redis. A bounded number of
 * requests waits in order. A request that waited too long is answered with 503, so that clients
 * learn that Redis does not answer. Any thread may add requests.
 */
#ifndef EVQ_PRODUCER_GATEWAY_HTTP_THREAD_POOL_H
#define EVQ_PRODUCER_GATEWAY_HTTP_THREAD_POOL_H

#include "producer/gateway/api/routes.h"
#include "producer/gateway/http/http.h"

struct evq_thread_pool;

/* A request and its reply. The caller keeps it alive until on_done. */
struct evq_exchange {
    struct evq_http_request request;
    struct evq_http_reply reply;
    const struct evq_route *route;
    struct evq_exchange *next; // Used by the pool.
    int64_t due_ms;            // When to call the handler again.
    int64_t queued_ms;
};

struct evq_thread_pool_config {
    const struct evq_config *config;      // Borrowed.
    struct evq_events *events;            // Borrowed.
    struct evq_pins *pins;                // Borrowed.
    struct evq_significance_cache *steps; // Borrowed.
    uint32_t threads;                     // 1 to EVQ_POOL_THREADS_MAX.
    uint32_t waiting_max;                 // Requests.
    /* Called on a pool thread when the exchange has its reply. The pool no longer uses it. */
    void (*on_done)(struct evq_exchange *exchange);
};

#define EVQ_POOL_THREADS_MAX 64

/* Opens connections (no I/O yet) and starts the threads. Errors as evq_conn_open(), EVQ_E_NOMEM. */
enum evq_status evq_thread_pool_start(const struct evq_thread_pool_config *config,
                                      struct evq_thread_pool **ret_pool,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* false: too many requests wait, or the pool stops. The caller keeps the exchange. */
bool evq_thread_pool_add(struct evq_thread_pool *pool,
                         struct evq_exchange *exchange) EVQ_CHECK_RESULT;
/* Answers waiting requests with 503, interrupts calls to Redis, and ends the threads. Accepts NULL.
 */
void evq_thread_pool_stop(struct evq_thread_pool *pool);

#endif
