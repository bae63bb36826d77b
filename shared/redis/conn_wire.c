#include "shared/redis/conn_wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "shared/redis/conn_error.h"
#include "shared/redis/conn_tls.h"

static const struct evq_conn_transport *transport_of(const struct evq_conn_url *url)
{
    if (url->is_unix) {
        return &evq_conn_transport_unix;
    }
    return url->tls ? &evq_conn_transport_tls : &evq_conn_transport_tcp;
}

enum evq_status evq_conn_wire_open(struct evq_conn_wire *wire, const struct evq_conn_url *url,
                                   int64_t deadline_ms, struct evq_error *err)
{
    enum evq_status status =
        evq_conn_socket_open(&wire->stream, transport_of(url), url, deadline_ms, err);
    if (status != EVQ_OK) {
        return status;
    }
    wire->answered = false;
    wire->reader = evq_conn_reader_new();
    if (wire->reader == NULL) {
        evq_conn_wire_close(wire);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to connect");
    }
    return EVQ_OK;
}

void evq_conn_wire_close(struct evq_conn_wire *wire)
{
    evq_conn_socket_close(&wire->stream);
    evq_conn_reader_free(wire->reader);
    wire->reader = NULL;
}

/* A server that expects TLS hangs up at the first command without a reason. */
static const char *hint(const struct evq_conn_wire *wire)
{
    return wire->answered || wire->stream.transport != &evq_conn_transport_tcp
               ? ""
               : " before it answered anything: a Redis that expects TLS needs rediss://";
}

/* Reports a failed read or write, from errno or from the transport. */
static enum evq_status broken(const struct evq_conn_wire *wire, const char *what, int failure,
                              struct evq_error *err)
{
    if (wire->stream.reason[0] != '\0') {
        return evq_error_set(err, failure == EACCES ? EVQ_E_AUTH : EVQ_E_IO, "%s",
                             wire->stream.reason);
    }
    return evq_error_set(err, EVQ_E_IO, "%s: %s%s", what, strerror(failure), hint(wire));
}

enum evq_status evq_conn_wire_take(struct evq_conn_wire *wire, struct evq_error *err)
{
    ssize_t got = wire->stream.transport->read(&wire->stream, wire->input, sizeof wire->input);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return EVQ_OK;
    }
    if (got < 0) {
        return broken(wire, "read", errno, err);
    }
    if (got == 0) {
        return evq_error_set(err, EVQ_E_IO, "the server closed the connection%s", hint(wire));
    }
    wire->answered = true;
    return evq_conn_reader_feed(wire->reader, wire->input, (size_t)got, err);
}

/* The server closed before it read our bytes, as it does with too many clients. It sends the reason
 * first. */
static enum evq_status closed(struct evq_conn_wire *wire, int failure, struct evq_error *err)
{
    char refusal[EVQ_CONN_REFUSAL_BYTES] = "";
    struct evq_reply *reply = NULL;
    struct evq_error ignored;

    if ((failure == EPIPE || failure == ECONNRESET) &&
        evq_conn_wire_take(wire, &ignored) == EVQ_OK &&
        evq_conn_reader_next(wire->reader, &reply, refusal, sizeof refusal, &ignored) == EVQ_OK) {
        evq_reply_free(reply);
    }
    if (*refusal != '\0') {
        return evq_error_set(
            err, evq_conn_error_parse(refusal).status == EVQ_E_RETRY ? EVQ_E_RETRY : EVQ_E_IO,
            "the server closed the connection: %s", refusal);
    }
    return broken(wire, "write", failure, err);
}

enum evq_status evq_conn_wire_send(struct evq_conn_wire *wire, const uint8_t *data, size_t bytes,
                                   int64_t deadline_ms, struct evq_error *err)
{
    size_t sent = 0;

    while (sent < bytes) {
        ssize_t put = wire->stream.transport->write(&wire->stream, data + sent, bytes - sent);
        if (put > 0) {
            sent += (size_t)put;
            continue;
        }
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            return closed(wire, errno, err);
        }
        short events = 0;
        enum evq_status status =
            evq_conn_socket_wait(wire->stream.fd, wire->stream.interrupt_fd,
                                 (short)(wire->stream.wants | POLLIN), deadline_ms, &events, err);
        if (status == EVQ_OK && (events & POLLIN) != 0) {
            status = evq_conn_wire_take(wire, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    return EVQ_OK;
}

enum evq_status evq_conn_wire_receive(struct evq_conn_wire *wire, int64_t deadline_ms,
                                      struct evq_reply **ret_reply,
                                      char refusal_text[EVQ_CONN_REFUSAL_BYTES],
                                      struct evq_error *err)
{
    wire->stream.wants = POLLIN; // Overwrites what the last write asked for.
    for (;;) {
        enum evq_status status = evq_conn_reader_next(wire->reader, ret_reply, refusal_text,
                                                      EVQ_CONN_REFUSAL_BYTES, err);
        if (status != EVQ_OK || *ret_reply != NULL || *refusal_text != '\0') {
            return status;
        }
        status = evq_conn_socket_wait(wire->stream.fd, wire->stream.interrupt_fd,
                                      wire->stream.wants, deadline_ms, NULL, err);
        if (status == EVQ_OK) {
            status = evq_conn_wire_take(wire, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
}
