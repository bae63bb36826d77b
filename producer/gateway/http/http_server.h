/*
 * The HTTP server: the sockets, their limits, and the way of a request through admission and pool.
 * Started, swept and stopped by one thread; evq_http_server_wake() may come from any.
 *
 * Limits. Head of a request 32 KiB (431), body EVQ_HTTP_BODY_MAX (413), bodies in memory 64 MiB
 * (503). A request must be whole receive_ms after its connection was made or gave its last reply,
 * and a reply taken within reply_ms: else the connection is cut. When nearly connections_max are
 * open, each new one cuts the one that has said nothing whole for longest.
 */
#ifndef EVQ_GATEWAY_HTTP_SERVER_H
#define EVQ_GATEWAY_HTTP_SERVER_H

#include "producer/gateway/http/admission.h"
#include "producer/gateway/http/thread_pool.h"

struct evq_http_server;

struct evq_http_server_config {
    int listen_fd;                   // Taken over, also when starting fails.
    struct evq_admission *admission; // Borrowed, as the next.
    struct evq_api *direct;          // What handlers of direct routes get.
    uint32_t connections_max;
    uint32_t streams_max;
    int64_t receive_ms;
    int64_t reply_ms;
};

/* pool (borrowed, its on_done being evq_http_server_done) gets whole requests. EVQ_E_IO,
 * EVQ_E_NOMEM. */
enum evq_status evq_http_server_start(const struct evq_http_server_config *config,
                                      struct evq_thread_pool *pool,
                                      struct evq_http_server **ret_server,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* For the pool's on_done. */
void evq_http_server_done(struct evq_exchange *exchange);

/* Has every stream pulled again. */
void evq_http_server_wake(struct evq_http_server *server);
/* Cuts what is too slow; to be called several times a second. */
void evq_http_server_sweep(struct evq_http_server *server);
/* Takes no further connections, ends streams; requests under way go on, the last on their
 * connection. */
void evq_http_server_quiesce(struct evq_http_server *server);
/* Requests that have begun and have no whole reply yet, streams not counted. */
uint32_t evq_http_server_busy(struct evq_http_server *server);
/* After the pool was stopped. Accepts NULL. */
void evq_http_server_stop(struct evq_http_server *server);

#endif
