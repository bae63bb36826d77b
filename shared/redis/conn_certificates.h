/*
 * What is believed of a server under TLS, and shown to it: authorities, the certificate of our own,
 * and its key, as an OpenSSL context. All files are read anew for each. Any thread.
 */
#ifndef EVQ_SHARED_CONN_CERTIFICATES_H
#define EVQ_SHARED_CONN_CERTIFICATES_H

#include "shared/redis/conn.h"
#include "shared/redis/conn_openssl.h"

/* The caller frees *ret_context. */
enum evq_status evq_conn_certificates_new(const struct evq_conn_openssl *openssl,
                                          const struct evq_conn_tls_config *config,
                                          SSL_CTX **ret_context,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

bool evq_conn_certificates_given(const char *text); // A setting of the configuration is there.
/* The reason that OpenSSL gives for its last failure. */
const char *evq_conn_certificates_reason(const struct evq_conn_openssl *openssl);

#endif
