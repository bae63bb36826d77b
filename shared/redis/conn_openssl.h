/*
 * The functions used from OpenSSL 3. The library is loaded at the first rediss:// address: evalq
 * runs without it, and a training process without TLS never loads it. If the process already has a
 * libssl.so.3, as Python's ssl does, that one is used. Any thread.
 */
#ifndef EVQ_SHARED_REDIS_CONN_OPENSSL_H
#define EVQ_SHARED_REDIS_CONN_OPENSSL_H

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "shared/base/error.h"

#define EVQ_CONN_OPENSSL(X)                                                                        \
    X(OPENSSL_init_ssl)                                                                            \
    X(TLS_client_method)                                                                           \
    X(SSL_CTX_new)                                                                                 \
    X(SSL_CTX_free)                                                                                \
    X(SSL_CTX_ctrl)                                                                                \
    X(SSL_CTX_set_options)                                                                         \
    X(SSL_CTX_set_verify)                                                                          \
    X(SSL_CTX_set_default_passwd_cb)                                                               \
    X(SSL_CTX_set_default_verify_paths)                                                            \
    X(SSL_CTX_load_verify_locations)                                                               \
    X(SSL_CTX_use_certificate_chain_file)                                                          \
    X(SSL_CTX_use_PrivateKey_file)                                                                 \
    X(SSL_new)                                                                                     \
    X(SSL_free)                                                                                    \
    X(SSL_ctrl)                                                                                    \
    X(SSL_get0_param)                                                                              \
    X(SSL_set_bio)                                                                                 \
    X(SSL_set_connect_state)                                                                       \
    X(SSL_do_handshake)                                                                            \
    X(SSL_read)                                                                                    \
    X(SSL_write)                                                                                   \
    X(SSL_get_error)                                                                               \
    X(SSL_get_verify_result)                                                                       \
    X(X509_VERIFY_PARAM_set1_host)                                                                 \
    X(X509_VERIFY_PARAM_set1_ip_asc)                                                               \
    X(X509_VERIFY_PARAM_set_hostflags)                                                             \
    X(X509_verify_cert_error_string)                                                               \
    X(ERR_clear_error)                                                                             \
    X(ERR_peek_last_error)                                                                         \
    X(ERR_reason_error_string)                                                                     \
    X(BIO_meth_new)                                                                                \
    X(BIO_meth_free)                                                                               \
    X(BIO_meth_set_read)                                                                           \
    X(BIO_meth_set_write)                                                                          \
    X(BIO_meth_set_ctrl)                                                                           \
    X(BIO_new)                                                                                     \
    X(BIO_set_init)                                                                                \
    X(BIO_set_data)                                                                                \
    X(BIO_get_data)                                                                                \
    X(BIO_set_flags)                                                                               \
    X(BIO_clear_flags)

struct evq_conn_openssl {
#define EVQ_CONN_OPENSSL_MEMBER(name) __typeof__(name) *name;
    EVQ_CONN_OPENSSL(EVQ_CONN_OPENSSL_MEMBER)
#undef EVQ_CONN_OPENSSL_MEMBER
};

/* Returns the process's table. EVQ_E_UNSUPPORTED: there is no OpenSSL 3. */
enum evq_status evq_conn_openssl(const struct evq_conn_openssl **ret_openssl,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

#endif
