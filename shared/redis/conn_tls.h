/*
 * TLS 1.2 or later over a TCP connection, as one of the transports of conn_socket.h. The server's
 * certificate must be valid, signed by a known authority and made for the host; there is no way
 * around that. All files are read anew for each connection, so that a renewed certificate needs no
 * restart. No close is announced: the end of a reply is in the reply. Not for sharing between
 * threads.
 */
#ifndef EVQ_SHARED_CONN_TLS_H
#define EVQ_SHARED_CONN_TLS_H

#include "shared/redis/conn.h"
#include "shared/redis/conn_socket.h"

extern const struct evq_conn_transport evq_conn_transport_tls;

/* Whether the files can be read and make sense now. EVQ_E_INVALID, EVQ_E_UNSUPPORTED (no OpenSSL),
 * EVQ_E_NOMEM. */
enum evq_status evq_conn_tls_check(const struct evq_conn_tls_config *config,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#endif
