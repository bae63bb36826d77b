/*
 * The HTTP server: sockets, limits, and the path of a request through admission and thread pool.
 * One thread starts, sweeps and stops it. Any thread may call evq_http_server_wake().
 *
 * Limits. Head of a request 32 KiB (431), body EVQ_HTTP_BODY_MAX (413), bodies in memory 64 MiB
 * (503). A request must be complete within receive_ms after its connection was made or sent its
 * last reply, and the client must take a reply within reply_ms. Otherwise the connection is closed.
 * When nearly connections_max are open, each new one closes the one that has waited longest for a
 * complete request.
 */
#ifndef EVQ_PRODUCER_GATEWAY_HTTP_HTTP_SERVER_H
#define EVQ_PRODUCER_GATEWAY_HTTP_HTTP_SERVER_H

#include "producer/gateway/http/admission.h"
#include "producer/gateway/http/thread_pool.h"

struct evq_http_server;

struct evq_http_server_config {
    int listen_fd;                   // Owned by the server, also if starting fails.
    struct evq_admission *admission; // Borrowed, as is `direct`.
    struct evq_api *direct;          // Passed to handlers of direct routes.
    struct evq_thread_pool *samples; // Gets requests that read samples.
    uint32_t connections_max;
    uint32_t streams_max;
    int64_t receive_ms;
    int64_t reply_ms;
};

/* pool gets complete requests. It is borrowed, and its on_done must be evq_http_server_done.
 * EVQ_E_IO, EVQ_E_NOMEM. */
enum evq_status evq_http_server_start(const struct evq_http_server_config *config,
                                      struct evq_thread_pool *pool,
                                      struct evq_http_server **ret_server,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* The pool's on_done. */
void evq_http_server_done(struct evq_exchange *exchange);

/* Pulls every stream again. */
void evq_http_server_wake(struct evq_http_server *server);
/* Closes connections that are too slow. Call it several times a second. */
void evq_http_server_sweep(struct evq_http_server *server);
/* Accepts no further connections and ends streams. Requests in progress go on; each is the last on
 * its connection. */
void evq_http_server_quiesce(struct evq_http_server *server);
/* How many requests have no complete reply yet, without streams. */
uint32_t evq_http_server_busy(struct evq_http_server *server);
/* Call it after the pool was stopped. Accepts NULL. */
void evq_http_server_stop(struct evq_http_server *server);

#endif
