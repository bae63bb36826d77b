#include "shared/redis/conn_certificates.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool evq_conn_certificates_are_given(const char *text)
{
    return text != NULL && *text != '\0';
}

const char *evq_conn_certificates_reason(const struct evq_conn_openssl *openssl)
{
    const char *text = openssl->ERR_reason_error_string(openssl->ERR_peek_last_error());
    return text != NULL ? text : "for no reason that OpenSSL tells";
}

/* Opens the file, so that the message names a missing file. */
static enum evq_status check_file(const char *key, const char *path, struct evq_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open redis.tls.%s '%s': %s", key, path,
                             strerror(errno));
    }
    (void)close(fd); // Nothing was read.
    return EVQ_OK;
}

static enum evq_status load_ca(const struct evq_conn_openssl *openssl, SSL_CTX *context,
                               const char *ca, struct evq_error *err)
{
    struct stat info;

    if (!evq_conn_certificates_are_given(
            ca)) { // Those of the system, or of $SSL_CERT_FILE and $SSL_CERT_DIR.
        return openssl->SSL_CTX_set_default_verify_paths(context) == 1
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_IO, "the system's certificate authorities: %s",
                                   evq_conn_certificates_reason(openssl));
    }
    enum evq_status status = check_file("ca", ca, err);
    if (status != EVQ_OK) {
        return status;
    }
    const bool directory = stat(ca, &info) == 0 && S_ISDIR(info.st_mode);
    if (openssl->SSL_CTX_load_verify_locations(context, directory ? NULL : ca,
                                               directory ? ca : NULL) != 1) {
        return evq_error_set(err, EVQ_E_IO, "redis.tls.ca '%s' holds no PEM certificate: %s", ca,
                             evq_conn_certificates_reason(openssl));
    }
    return EVQ_OK;
}

/* A key that needs a passphrase is refused. OpenSSL would otherwise ask on the terminal. */
static int no_passphrase(char *out, int bytes, int writing, void *unused)
{
    (void)writing;
    (void)unused;
    if (bytes > 0) {
        out[0] = '\0';
    }
    return 0;
}

static enum evq_status load_own(const struct evq_conn_openssl *openssl, SSL_CTX *context,
                                const struct evq_conn_tls_config *config, struct evq_error *err)
{
    if (!evq_conn_certificates_are_given(config->cert)) {
        return EVQ_OK;
    }
    const char *key = evq_conn_certificates_are_given(config->key) ? config->key : config->cert;
    enum evq_status status = check_file("cert", config->cert, err);
    if (status == EVQ_OK) {
        status = check_file("key", key, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (openssl->SSL_CTX_use_certificate_chain_file(context, config->cert) != 1) {
        return evq_error_set(err, EVQ_E_IO, "redis.tls.cert '%s' holds no PEM certificate: %s",
                             config->cert, evq_conn_certificates_reason(openssl));
    }
    openssl->SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    if (openssl->SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1) {
        return evq_error_set(err, EVQ_E_IO,
                             "redis.tls.key '%s' is not the PEM key, without a passphrase, of the "
                             "certificate '%s': %s",
                             key, config->cert, evq_conn_certificates_reason(openssl));
    }
    return EVQ_OK;
}

enum evq_status evq_conn_certificates_new(const struct evq_conn_openssl *openssl,
                                          const struct evq_conn_tls_config *config,
                                          SSL_CTX **ret_context, struct evq_error *err)
{
    openssl->ERR_clear_error();
    SSL_CTX *context = openssl->SSL_CTX_new(openssl->TLS_client_method());
    if (context == NULL ||
        openssl->SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL) != 1) {
        openssl->SSL_CTX_free(context);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for TLS");
    }
    (void)openssl->SSL_CTX_ctrl(context, SSL_CTRL_MODE,
                                SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
                                NULL);
    (void)openssl->SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    openssl->SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    enum evq_status status = load_ca(openssl, context, config->ca, err);
    if (status == EVQ_OK) {
        status = load_own(openssl, context, config, err);
    }
    if (status != EVQ_OK) {
        openssl->SSL_CTX_free(context);
        return status;
    }
    *ret_context = context;
    return EVQ_OK;
}
