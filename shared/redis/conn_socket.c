#include "shared/redis/conn_socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/redis/conn_resolve.h"

enum {
    KEEPALIVE_IDLE_S = 15,
    KEEPALIVE_EVERY_S = 5,
    KEEPALIVE_TRIES = 3,
    // How long sent bytes may stay unacknowledged before the kernel drops the connection.
    USER_TIMEOUT_MS = 20000,
    // Minimum time for one of several addresses.
    ADDRESS_MS_MIN = 250
};

enum evq_status evq_conn_socket_wait(int fd, int interrupt_fd, short events, int64_t deadline_ms,
                                     short *ret_events, struct evq_error *err)
{
    for (;;) {
        // Negative descriptors are ignored by poll().
        struct pollfd polls[2] = {{.fd = fd, .events = events},
                                  {.fd = interrupt_fd, .events = POLLIN}};
        int ready = poll(polls, 2, evq_clock_left_ms(deadline_ms));
        if (ready < 0 && errno != EINTR) {
            return evq_error_set(err, EVQ_E_IO, "poll: %s", strerror(errno));
        }
        if (ready > 0 && polls[1].revents != 0) {
            return evq_error_set(err, EVQ_E_STOPPED, "asked to stop while waiting");
        }
        if (ready > 0) {
            short seen = polls[0].revents;
            if ((seen & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
                seen = (short)(seen | POLLIN | POLLOUT); // The read or write tells which error.
            }
            if (ret_events != NULL) {
                *ret_events = seen;
            }
            return EVQ_OK;
        }
        if (ready == 0 && evq_clock_left_ms(deadline_ms) == 0) {
            return evq_error_set(err, EVQ_E_TIMEOUT, "the deadline passed");
        }
    }
}

/* Connects one address; *ret_fd is set on EVQ_OK. */
static enum evq_status connect_address(int family, const struct sockaddr *address,
                                       socklen_t address_bytes, int interrupt_fd,
                                       int64_t deadline_ms, int *ret_fd, int *ret_failure,
                                       struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    int failure = 0;
    socklen_t failure_bytes = sizeof failure;

    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "socket: %s", strerror(errno));
    }
    if (connect(fd, address, address_bytes) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) {
            // EAGAIN on a unix socket: the server's backlog is full.
            *ret_failure = errno;
            status = evq_error_set(err, EVQ_E_IO, "connect: %s", strerror(errno));
            goto out;
        }
        status = evq_conn_socket_wait(fd, interrupt_fd, POLLOUT, deadline_ms, NULL, err);
        if (status == EVQ_E_TIMEOUT) {
            status = evq_error_set(err, EVQ_E_TIMEOUT, "connect: no answer within the time limit");
        }
        if (status != EVQ_OK) {
            goto out;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &failure_bytes) != 0 || failure != 0) {
            *ret_failure = failure != 0 ? failure : errno;
            status = evq_error_set(err, EVQ_E_IO, "connect: %s", strerror(*ret_failure));
            goto out;
        }
    }
    *ret_fd = fd;
    fd = -1;
out:
    evq_file_close(&fd);
    return status;
}

/* Options that reveal a dead peer. If one cannot be set, the connection still works, but notices
 * later. */
static void set_tcp_options(int fd)
{
    const struct {
        int level;
        int option;
        int value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S},
        {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_TRIES},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        (void)setsockopt(fd, options[i].level, options[i].option, &options[i].value,
                         sizeof options[i].value);
    }
}

static enum evq_status tcp_connect(struct evq_conn_stream *stream, const struct evq_conn_url *url,
                                   int64_t deadline_ms, struct evq_error *err)
{
    struct addrinfo *list = NULL;
    int left = 0;

    enum evq_status status = evq_conn_resolve(&stream->resolve, url->host, url->port,
                                              stream->interrupt_fd, deadline_ms, &list, err);
    if (status != EVQ_OK) {
        return status;
    }
    for (const struct addrinfo *at = list; at != NULL; at = at->ai_next) {
        left++;
    }
    status = evq_error_set(err, EVQ_E_IO, "host '%s' has no address", url->host);
    for (const struct addrinfo *at = list; at != NULL; at = at->ai_next, left--) {
        // Each address gets an equal part of the time, so that a dead one leaves time for the next.
        int64_t now_ms = evq_clock_mono_ms();
        int64_t part_ms = (deadline_ms - now_ms) / left;
        int64_t until_ms = now_ms + (part_ms > ADDRESS_MS_MIN ? part_ms : ADDRESS_MS_MIN);
        if (left == 1 || until_ms > deadline_ms) {
            until_ms = deadline_ms;
        }
        status = connect_address(at->ai_family, at->ai_addr, at->ai_addrlen, stream->interrupt_fd,
                                 until_ms, &stream->fd, &stream->failure, err);
        if (status == EVQ_OK) {
            set_tcp_options(stream->fd);
        }
        if (status == EVQ_OK || status == EVQ_E_STOPPED) {
            break;
        }
    }
    freeaddrinfo(list);
    return status;
}

static enum evq_status unix_connect(struct evq_conn_stream *stream, const struct evq_conn_url *url,
                                    int64_t deadline_ms, struct evq_error *err)
{
    struct sockaddr_un address;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    // evq_conn_url_parse() bounds it; the zeros behind it end it.
    memcpy(address.sun_path, url->host, strnlen(url->host, sizeof address.sun_path - 1));
    return connect_address(AF_UNIX, (const struct sockaddr *)&address, sizeof address,
                           stream->interrupt_fd, deadline_ms, &stream->fd, &stream->failure, err);
}

static ssize_t socket_read(struct evq_conn_stream *stream, void *data, size_t bytes)
{
    stream->wants = POLLIN;
    return recv(stream->fd, data, bytes, MSG_DONTWAIT);
}

static ssize_t socket_write(struct evq_conn_stream *stream, const void *data, size_t bytes)
{
    stream->wants = POLLOUT;
    return send(stream->fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void socket_close(struct evq_conn_stream *stream)
{
    (void)close(stream->fd); // Only a reply can tell whether the peer got everything.
}

const struct evq_conn_transport evq_conn_transport_tcp = {tcp_connect, socket_read, socket_write,
                                                          socket_close};

const struct evq_conn_transport evq_conn_transport_unix = {unix_connect, socket_read, socket_write,
                                                           socket_close};

enum evq_status evq_conn_socket_open(struct evq_conn_stream *stream,
                                     const struct evq_conn_transport *transport,
                                     const struct evq_conn_url *url, int64_t deadline_ms,
                                     struct evq_error *err)
{
    stream->reason[0] = '\0';
    enum evq_status status = transport->connect(stream, url, deadline_ms, err);
    if (status == EVQ_OK) {
        stream->transport = transport;
    }
    return status;
}

void evq_conn_socket_close(struct evq_conn_stream *stream)
{
    if (stream->transport != NULL) {
        stream->transport->close(stream);
    }
    stream->transport = NULL;
    stream->fd = -1;
}
