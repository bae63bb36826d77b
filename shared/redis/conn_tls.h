/*
 * TLS 1.2 or later over TCP, as one of the transports of conn_socket.h. The server's certificate
 * must be valid, signed by a known authority and made for the host; this cannot be turned off.
 * Files are read again for each connection, so that a renewed certificate needs no restart. No
 * close is announced, because a reply marks its own end. Not for sharing between threads.
 */
#ifndef EVQ_SHARED_REDIS_CONN_TLS_H
#define EVQ_SHARED_REDIS_CONN_TLS_H

#include "shared/redis/conn.h"
#include "shared/redis/conn_socket.h"

extern const struct evq_conn_transport evq_conn_transport_tls;

/* Checks that the files can be read and are valid now. EVQ_E_INVALID, EVQ_E_UNSUPPORTED (no
 * OpenSSL), EVQ_E_NOMEM. */
enum evq_status evq_conn_tls_check(const struct evq_conn_tls_config *config,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
