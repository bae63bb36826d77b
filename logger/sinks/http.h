/*
 * HTTP for sinks, by libcurl: one call at a time, over connections that stay open between calls. It
 * speaks only http and https, follows no redirect, and reads at most 1 MiB of a reply. A call
 * succeeds when the reply's code has arrived, even if its body is cut off. Messages name only the
 * host, because the rest of a URL may be a secret. One thread.
 */
#ifndef EVQ_LOGGER_SINKS_HTTP_H
#define EVQ_LOGGER_SINKS_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/base/buffer.h"

struct evq_http;

struct evq_http_config { // Texts are copied; stop must outlive the connection.
    const char *who;     // "sink 'mlflow'": messages begin with it.
    int64_t timeout_ms;  // Time for one call, 1 or more.
    // Connects only to public addresses, and through no proxy. The address of the connection itself
    // is checked, so that a reply of a name server cannot bypass the check.
    bool public_only;
    const char *ca_file; // NULL: the system's certificates.
    bool insecure;       // Certificates are not checked.
    const char *user;    // NULL: none; with password.
    const char *password;
    const atomic_bool *stop; // Set: calls end within a few seconds. May be NULL.
};

struct evq_http_reply {
    long code;              // 200, 404, ...
    struct evq_buffer body; // Text. `full` is set if it is incomplete: too long or too late.
};

/* EVQ_E_NOMEM. */
enum evq_status evq_http_open(const struct evq_http_config *config, struct evq_http **ret_http,
                              struct evq_error *err) EVQ_CHECK_RESULT;
void evq_http_close(struct evq_http *http); // Accepts NULL.

/*
 * method: "GET" (body NULL), "POST" or "PATCH". headers: "Name: value", ended by NULL; may be NULL.
 * EVQ_OK: there was a reply with any code, and it replaces *reply, which was zeroed before the
 * first call. EVQ_E_IO: there was no connection or no reply. EVQ_E_TIMEOUT. EVQ_E_INVALID: url is
 * not valid. EVQ_E_RETRY: an earlier reply (429, 503) asked to wait, and the time has not passed.
 */
enum evq_status evq_http_call(struct evq_http *http, const char *method, const char *url,
                              const char *const *headers, const char *body, size_t body_bytes,
                              struct evq_http_reply *reply, struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * What a code means to a sink. EVQ_OK: 2xx. EVQ_E_INVALID: the server will never take this (400,
 * 413, 414, 422). EVQ_E_RETRY: anything else may be mended, there or in the configuration. what:
 * "the receiver".
 */
enum evq_status evq_http_verdict(const struct evq_http_reply *reply, const char *who,
                                 const char *what, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_http_reply_free(struct evq_http_reply *reply);

#endif
