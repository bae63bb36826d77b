/*
 * The threads that run handlers, each with a connection to Redis of its own. Requests wait in
 * order, a bounded number of them; one that has waited too long is answered with 503, so that a
 * Redis that stands still is told instead of waited for. Any thread may add.
 */
#ifndef EVQ_GATEWAY_POOL_H
#define EVQ_GATEWAY_POOL_H

#include "producer/gateway/api/routes.h"
#include "producer/gateway/http/http.h"

struct evq_thread_pool;

/* A request and what becomes of it. Whoever adds it keeps it alive until on_done. */
struct evq_exchange {
    struct evq_http_request request;
    struct evq_http_reply reply;
    const struct evq_route *route;
    struct evq_exchange *next; // The pool's.
    int64_t due_ms;            // Of what asked to be called again.
    int64_t queued_ms;
};

struct evq_thread_pool_config {
    const struct evq_config *config; // Borrowed.
    struct evq_events *events;       // Borrowed.
    struct evq_pins *pins;           // Borrowed.
    uint32_t threads;                // 1 to EVQ_POOL_THREADS_MAX.
    uint32_t waiting_max;            // Requests.
    /* On a pool thread: the exchange has its reply. The pool does not touch it any more. */
    void (*on_done)(struct evq_exchange *exchange);
};

#define EVQ_POOL_THREADS_MAX 64

/* Opens connections (no I/O yet) and starts the threads. Errors as evq_conn_open(), EVQ_E_NOMEM. */
enum evq_status evq_thread_pool_start(const struct evq_thread_pool_config *config,
                                      struct evq_thread_pool **ret_pool,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* false: too many wait, or the pool stops; the exchange stays the caller's. */
bool evq_thread_pool_add(struct evq_thread_pool *pool,
                         struct evq_exchange *exchange) EVQ_CHECK_RESULT;
/* Answers what waits with 503, interrupts calls to Redis under way, and ends the threads. Accepts
 * NULL. */
void evq_thread_pool_stop(struct evq_thread_pool *pool);

#endif
