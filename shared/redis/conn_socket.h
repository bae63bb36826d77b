/*
 * A byte stream to Redis over one of three transports. TCP and unix sockets are here, TLS is in
 * conn_tls.h. Every wait has a deadline and ends at an interrupt. Not for sharing between threads.
 */
#ifndef EVQ_SHARED_REDIS_CONN_SOCKET_H
#define EVQ_SHARED_REDIS_CONN_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/error.h"
#include "shared/redis/conn_url.h"

struct evq_conn_resolve;
struct evq_conn_stream;
struct evq_conn_tls;
struct evq_conn_tls_config;

/* The functions of a transport. The descriptor is non-blocking and close-on-exec. */
struct evq_conn_transport {
    /* Connects by deadline_ms (monotonic) and sets stream->fd. */
    enum evq_status (*connect)(struct evq_conn_stream *stream, const struct evq_conn_url *url,
                               int64_t deadline_ms, struct evq_error *err);
    /*
     * Return the number of bytes (read: 0 at the end of the stream), or -1 with errno. With EAGAIN,
     * stream->wants says what to poll for, which under TLS may be the other direction. If
     * stream->reason is not empty, it explains more than errno. EACCES: permission.
     */
    ssize_t (*read)(struct evq_conn_stream *stream, void *data, size_t bytes);
    ssize_t (*write)(struct evq_conn_stream *stream, const void *data, size_t bytes);
    void (*close)(struct evq_conn_stream *stream);
};

extern const struct evq_conn_transport evq_conn_transport_tcp;
extern const struct evq_conn_transport evq_conn_transport_unix;

struct evq_conn_stream {
    const struct evq_conn_transport *transport; // NULL: closed.
    int fd;                                     // -1: closed.
    int interrupt_fd;                           // Readable: stop waiting. -1: never.
    short wants;                                // POLLIN or POLLOUT.
    struct evq_conn_resolve *resolve;           // A lookup that outlasted its deadline.
    int failure;                                // errno of the last connect that failed.
    const struct evq_conn_tls_config *tls;      // Belongs to the owner; for a url with tls.
    struct evq_conn_tls *secure;                // NULL: not TLS, or closed.
    char reason[512];                           // Why the last read or write failed; "": errno.
};

/* Connects over the transport. The caller selects it, because conn_tls.c is built on this file. */
enum evq_status evq_conn_socket_open(struct evq_conn_stream *stream,
                                     const struct evq_conn_transport *transport,
                                     const struct evq_conn_url *url, int64_t deadline_ms,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_conn_socket_close(struct evq_conn_stream *stream); // Also when closed.

/*
 * Waits until fd is ready for events (POLLIN, POLLOUT). *ret_events (may be NULL) says for which;
 * an error or hang-up counts as both. fd -1 waits only for the deadline or an interrupt.
 * EVQ_E_TIMEOUT, EVQ_E_STOPPED, EVQ_E_IO.
 */
enum evq_status evq_conn_socket_wait(int fd, int interrupt_fd, short events, int64_t deadline_ms,
                                     short *ret_events, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
