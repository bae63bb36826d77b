/* Certificates for TLS as an OpenSSL context: trusted authorities, our own certificate and its key.
 * Files are read again for each context. Any thread. */
#ifndef EVQ_SHARED_REDIS_CONN_CERTIFICATES_H
#define EVQ_SHARED_REDIS_CONN_CERTIFICATES_H

#include "shared/redis/conn.h"
#include "shared/redis/conn_openssl.h"

/* The caller frees *ret_context. */
enum evq_status evq_conn_certificates_new(const struct evq_conn_openssl *openssl,
                                          const struct evq_conn_tls_config *config,
                                          SSL_CTX **ret_context,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

// Whether a setting of the configuration is given.
bool evq_conn_certificates_are_given(const char *text);
/* The reason that OpenSSL gives for its last failure. */
const char *evq_conn_certificates_reason(const struct evq_conn_openssl *openssl);

#endif
