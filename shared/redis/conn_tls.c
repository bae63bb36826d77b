#include "shared/redis/conn_tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/redis/conn_certificates.h"

#define WRITE_BYTES_MAX (1 << 20)

/* One TLS connection. OpenSSL uses the socket through our own BIO, which raises no SIGPIPE. */
struct evq_conn_tls {
    const struct evq_conn_openssl *openssl;
    BIO_METHOD *method;
    SSL *ssl;
    int fd;
    int failure; // errno of the socket; 0: none.
    bool ended;  // The peer closed.
};

/* ---- the socket below ---- */

/* Returns the connection of a BIO. Its methods are called only after the library was loaded. */
static struct evq_conn_tls *tls_of(BIO *bio)
{
    const struct evq_conn_openssl *openssl = NULL;
    return evq_conn_openssl(&openssl, NULL) == EVQ_OK ? openssl->BIO_get_data(bio) : NULL;
}

static int bio_moved(BIO *bio, struct evq_conn_tls *tls, ssize_t moved, int retry)
{
    tls->openssl->BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        tls->openssl->BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
    } else if (moved < 0) {
        tls->failure = errno;
    }
    return (int)moved; // As many as an int asked for.
}

static int bio_read(BIO *bio, char *data, int bytes)
{
    struct evq_conn_tls *tls = tls_of(bio);
    if (tls == NULL || bytes <= 0) {
        return -1;
    }
    const ssize_t got = recv(tls->fd, data, (size_t)bytes, MSG_DONTWAIT);
    tls->ended = tls->ended || got == 0;
    return bio_moved(bio, tls, got, BIO_FLAGS_READ);
}

static int bio_write(BIO *bio, const char *data, int bytes)
{
    struct evq_conn_tls *tls = tls_of(bio);
    if (tls == NULL || bytes <= 0) {
        return -1;
    }
    const ssize_t put = send(tls->fd, data, (size_t)bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    return bio_moved(bio, tls, put, BIO_FLAGS_WRITE);
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    const struct evq_conn_tls *tls = tls_of(bio);
    (void)number;
    (void)pointer;
    if (command == BIO_CTRL_EOF) {
        return tls != NULL && tls->ended ? 1 : 0;
    }
    return command == BIO_CTRL_FLUSH ? 1 : 0; // Nothing is held back.
}

/* ---- before any connection ---- */

enum evq_status evq_conn_tls_check(const struct evq_conn_tls_config *config, struct evq_error *err)
{
    const struct evq_conn_openssl *openssl = NULL;
    SSL_CTX *context = NULL;
    struct evq_error local;

    if (evq_conn_certificates_are_given(config->key) &&
        !evq_conn_certificates_are_given(config->cert)) {
        return evq_error_set(err, EVQ_E_INVALID, "redis.tls.key is given without redis.tls.cert");
    }
    enum evq_status status = evq_conn_openssl(&openssl, err);
    if (status != EVQ_OK) {
        return status;
    }
    status = evq_conn_certificates_new(openssl, config, &context, &local);
    if (status != EVQ_OK) {
        return evq_error_set(err, status == EVQ_E_IO ? EVQ_E_INVALID : status, "%s", local.message);
    }
    openssl->SSL_CTX_free(context);
    return EVQ_OK;
}

/* ---- sentences ---- */

static const char *host_of(const struct evq_conn_stream *stream, const struct evq_conn_url *url)
{
    return evq_conn_certificates_are_given(stream->tls->server_name) ? stream->tls->server_name
                                                                     : url->host;
}

static enum evq_status say_untrusted(const struct evq_conn_stream *stream, const char *host,
                                     long verdict, struct evq_error *err)
{
    const char *ca = evq_conn_certificates_are_given(stream->tls->ca) ? stream->tls->ca
                                                                      : "the system's authorities";

    switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return evq_error_set(err, EVQ_E_AUTH,
                             "the server's certificate, or one that it rests on, has expired");
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return evq_error_set(err, EVQ_E_AUTH,
                             "the server's certificate is not valid yet: is the clock right?");
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return evq_error_set(err, EVQ_E_AUTH,
                             "the server's certificate is not for '%s': use a host that is in it, "
                             "or name one of those in redis.tls.server_name",
                             host);
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
        return evq_error_set(err, EVQ_E_AUTH,
                             "the server's certificate is signed by none of %s: name its "
                             "authority's certificate in redis.tls.ca",
                             ca);
    default:
        return evq_error_set(err, EVQ_E_AUTH, "the server's certificate is refused: %s",
                             stream->secure->openssl->X509_verify_cert_error_string(verdict));
    }
}

/* Explains an alert of the peer, or malformed bytes. Also used after the handshake, because the
 * refusal of a client's certificate arrives with the first reply. */
static enum evq_status say_broken(const struct evq_conn_stream *stream, bool shaking,
                                  struct evq_error *err)
{
    const struct evq_conn_openssl *openssl = stream->secure->openssl;
    const unsigned long code = openssl->ERR_peek_last_error();
    const bool shown = evq_conn_certificates_are_given(stream->tls->cert);

    switch (ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
        return evq_error_set(err, EVQ_E_IO,
                             "what answers speaks no TLS: use redis:// where it is a Redis "
                             "without it");
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
        return evq_error_set(err, EVQ_E_IO, "the server offers no TLS 1.2 or later");
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return evq_error_set(err, EVQ_E_AUTH,
                             "the server asks for a client's certificate: name one in "
                             "redis.tls.cert, its key in redis.tls.key");
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
        return !shaking
                   ? evq_error_set(err, EVQ_E_IO, "TLS: %s", evq_conn_certificates_reason(openssl))
               : shown ? evq_error_set(err, EVQ_E_AUTH, "the server refuses the TLS handshake")
                       : evq_error_set(err, EVQ_E_AUTH,
                                       "the server refuses the TLS handshake: it may ask for a "
                                       "client's certificate (redis.tls.cert and key)");
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        return evq_error_set(err, EVQ_E_AUTH, "the server refuses the client's certificate %s%s%s",
                             shown ? stream->tls->cert : "", shown ? ": " : "",
                             evq_conn_certificates_reason(openssl));
    default:
        return evq_error_set(err, EVQ_E_IO, "TLS: %s", evq_conn_certificates_reason(openssl));
    }
}

/* ---- the transport ---- */

static void tls_free(struct evq_conn_tls *tls)
{
    if (tls == NULL) {
        return;
    }
    if (tls->ssl != NULL) {
        tls->openssl->SSL_free(tls->ssl); // With its BIO.
    }
    if (tls->method != NULL) {
        tls->openssl->BIO_meth_free(tls->method);
    }
    free(tls);
}

/* Sets the host that the certificate must be for, and sends it as SNI, which takes no addresses. */
static bool expect_host(struct evq_conn_tls *tls, const char *host)
{
    const struct evq_conn_openssl *openssl = tls->openssl;
    X509_VERIFY_PARAM *param = openssl->SSL_get0_param(tls->ssl);
    struct in6_addr address;
    char name[EVQ_CONN_HOST_BYTES_MAX];

    if (inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1) {
        return openssl->X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1;
    }
    (void)snprintf(name, sizeof name, "%s", host);
    openssl->X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return openssl->X509_VERIFY_PARAM_set1_host(param, name, 0) == 1 &&
           openssl->SSL_ctrl(tls->ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                             name) == 1;
}

/* Makes stream->secure, ready for the handshake over stream->fd. */
static enum evq_status tls_new(struct evq_conn_stream *stream, const char *host,
                               struct evq_error *err)
{
    const struct evq_conn_openssl *openssl = NULL;
    SSL_CTX *context = NULL;
    struct evq_conn_tls *tls = NULL;
    BIO *bio = NULL;

    enum evq_status status = evq_conn_openssl(&openssl, err);
    if (status == EVQ_OK) {
        status = evq_conn_certificates_new(openssl, stream->tls, &context, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    tls = calloc(1, sizeof *tls);
    if (tls != NULL) {
        tls->openssl = openssl;
        tls->fd = stream->fd;
        tls->ssl = openssl->SSL_new(context); // It holds the context from now on.
        tls->method = openssl->BIO_meth_new(BIO_TYPE_SOURCE_SINK, "evalq socket");
    }
    openssl->SSL_CTX_free(context);
    if (tls != NULL && tls->method != NULL && tls->ssl != NULL &&
        openssl->BIO_meth_set_read(tls->method, bio_read) == 1 &&
        openssl->BIO_meth_set_write(tls->method, bio_write) == 1 &&
        openssl->BIO_meth_set_ctrl(tls->method, bio_ctrl) == 1) {
        bio = openssl->BIO_new(tls->method);
    }
    if (bio == NULL) {
        tls_free(tls);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for TLS");
    }
    openssl->BIO_set_data(bio, tls);
    openssl->BIO_set_init(bio, 1);
    openssl->SSL_set_bio(tls->ssl, bio, bio);
    openssl->SSL_set_connect_state(tls->ssl);
    if (!expect_host(tls, host)) {
        tls_free(tls);
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is not a host that TLS could verify", host);
    }
    stream->secure = tls;
    return EVQ_OK;
}

static void tls_close(struct evq_conn_stream *stream)
{
    tls_free(stream->secure);
    stream->secure = NULL;
    (void)close(stream->fd); // Only a reply can tell whether the peer got everything.
}

/* What to poll for if OpenSSL waits; 0: it failed. */
static short waits_for(const struct evq_conn_tls *tls, int result)
{
    switch (tls->openssl->SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return POLLIN;
    case SSL_ERROR_WANT_WRITE:
        return POLLOUT;
    default:
        return 0;
    }
}

static enum evq_status handshake(struct evq_conn_stream *stream, const char *host,
                                 int64_t deadline_ms, struct evq_error *err)
{
    struct evq_conn_tls *tls = stream->secure;

    for (;;) {
        tls->openssl->ERR_clear_error();
        const int result = tls->openssl->SSL_do_handshake(tls->ssl);
        if (result == 1) {
            return EVQ_OK;
        }
        const short events = waits_for(tls, result);
        if (events == 0) {
            break;
        }
        enum evq_status status =
            evq_conn_socket_wait(stream->fd, stream->interrupt_fd, events, deadline_ms, NULL, err);
        if (status == EVQ_E_TIMEOUT) {
            return evq_error_set(err, EVQ_E_TIMEOUT,
                                 "no TLS handshake within the time limit: use redis:// where the "
                                 "server is a Redis without TLS");
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    const long verdict = tls->openssl->SSL_get_verify_result(tls->ssl);
    if (verdict != X509_V_OK) {
        return say_untrusted(stream, host, verdict, err);
    }
    if (tls->failure != 0 || tls->ended) {
        return evq_error_set(err, EVQ_E_IO,
                             "the TLS handshake broke off (%s): use redis:// where the server is a "
                             "Redis without TLS",
                             tls->failure != 0 ? strerror(tls->failure) : "the server closed");
    }
    return say_broken(stream, true, err);
}

static enum evq_status tls_connect(struct evq_conn_stream *stream, const struct evq_conn_url *url,
                                   int64_t deadline_ms, struct evq_error *err)
{
    const char *host = host_of(stream, url);
    enum evq_status status = evq_conn_transport_tcp.connect(stream, url, deadline_ms, err);
    if (status != EVQ_OK) {
        return status;
    }
    status = tls_new(stream, host, err);
    if (status == EVQ_OK) {
        status = handshake(stream, host, deadline_ms, err);
    }
    if (status != EVQ_OK) {
        tls_close(stream);
        stream->fd = -1;
    }
    return status;
}

/*
 * Sets errno and stream->reason after a read or write that moved nothing: EAGAIN, or the failure.
 */
static ssize_t moved_nothing(struct evq_conn_stream *stream, int result)
{
    struct evq_conn_tls *tls = stream->secure;
    const short events = waits_for(tls, result);
    struct evq_error err;

    if (events != 0) {
        stream->wants = events;
        errno = EAGAIN;
        return -1;
    }
    if (tls->failure != 0 || tls->ended) {
        errno = tls->failure != 0 ? tls->failure : EPIPE;
        return -1;
    }
    const enum evq_status status = say_broken(stream, false, &err);
    (void)snprintf(stream->reason, sizeof stream->reason, "%s", err.message);
    errno = status == EVQ_E_AUTH ? EACCES : EPROTO;
    return -1;
}

static ssize_t tls_read(struct evq_conn_stream *stream, void *data, size_t bytes)
{
    struct evq_conn_tls *tls = stream->secure;

    tls->openssl->ERR_clear_error();
    const int got = tls->openssl->SSL_read(tls->ssl, data, (int)bytes);
    stream->wants = POLLIN;
    if (got > 0) {
        return got;
    }
    const bool announced = tls->openssl->SSL_get_error(tls->ssl, got) == SSL_ERROR_ZERO_RETURN;
    if (announced || (tls->ended && tls->failure == 0)) {
        return 0;
    }
    return moved_nothing(stream, got);
}

static ssize_t tls_write(struct evq_conn_stream *stream, const void *data, size_t bytes)
{
    struct evq_conn_tls *tls = stream->secure;
    const int part = bytes > WRITE_BYTES_MAX ? WRITE_BYTES_MAX : (int)bytes;

    tls->openssl->ERR_clear_error();
    const int put = tls->openssl->SSL_write(tls->ssl, data, part);
    stream->wants = POLLOUT;
    if (put <= 0 && (tls->failure == EPIPE || tls->failure == ECONNRESET)) {
        // The peer hung up during the handshake. Its reason is in the bytes before the end of the
        // stream.
        char byte;
        const int failure = tls->failure;
        tls->failure = 0;
        tls->openssl->ERR_clear_error(); // OpenSSL 3.2 and newer put the write's failure there.
        const int got = tls->openssl->SSL_read(tls->ssl, &byte, 1);
        if (tls->failure == 0 && !tls->ended &&
            tls->openssl->SSL_get_error(tls->ssl, got) == SSL_ERROR_SSL) {
            return moved_nothing(stream, got);
        }
        tls->failure = failure;
    }
    return put > 0 ? put : moved_nothing(stream, put);
}

const struct evq_conn_transport evq_conn_transport_tls = {tls_connect, tls_read, tls_write,
                                                          tls_close};
