/* One open connection to a Redis or a sentinel: bytes out, whole replies in. conn.c and
 * conn_sentinel.c decide what to send. Not for sharing between threads. */
#ifndef EVQ_SHARED_REDIS_CONN_WIRE_H
#define EVQ_SHARED_REDIS_CONN_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "shared/redis/conn.h"
#include "shared/redis/conn_reader.h"
#include "shared/redis/conn_socket.h"

enum { EVQ_CONN_READ_BYTES = 65536, EVQ_CONN_REFUSAL_BYTES = 384 };

struct evq_conn_wire {
    struct evq_conn_stream stream;  // fd -1, interrupt_fd and tls set before the first open.
    struct evq_conn_reader *reader; // NULL when closed. A half-read reply is lost with the socket.
    bool answered;                  // Bytes arrived since it was opened.
    // Not on the stack, because the build's hardening would clear it at each read.
    char input[EVQ_CONN_READ_BYTES];
};

/* Connects by deadline_ms (monotonic). On EVQ_E_IO, EVQ_E_TIMEOUT, EVQ_E_STOPPED, EVQ_E_AUTH (the
 * server's certificate is not trusted) and EVQ_E_NOMEM nothing is open. */
enum evq_status evq_conn_wire_open(struct evq_conn_wire *wire, const struct evq_conn_url *url,
                                   int64_t deadline_ms, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_conn_wire_close(struct evq_conn_wire *wire); // Also when closed.

/* Sends everything. Reads at the same time, so that a server with a full socket can go on. */
enum evq_status evq_conn_wire_send(struct evq_conn_wire *wire, const uint8_t *data, size_t bytes,
                                   int64_t deadline_ms, struct evq_error *err) EVQ_CHECK_RESULT;

/* The next reply, or the text of an error reply: one of the two is set on EVQ_OK. */
enum evq_status evq_conn_wire_receive(struct evq_conn_wire *wire, int64_t deadline_ms,
                                      struct evq_reply **ret_reply,
                                      char refusal_text[EVQ_CONN_REFUSAL_BYTES],
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads what has arrived, without waiting. EVQ_E_IO, and what the reader finds wrong. */
enum evq_status evq_conn_wire_take(struct evq_conn_wire *wire,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
