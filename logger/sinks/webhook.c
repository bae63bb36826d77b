/* The sink `webhook`: one POST for each result to the option `url` (or the content of `url_file`),
 * as Standard Webhooks defines it. webhook-id is the result's id, the same at every attempt. The
 * secrets of the signatures are in `secret_file`, one a line, or $EVALQ_WEBHOOK_SECRET. The
 * receiver gets a result at least once and recognises it by its id. What it took before an error is
 * not sent again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "logger/sinks/http.h"
#include "logger/sinks/sink.h"
#include "shared/base/base64.h"
#include "shared/base/clock.h"
#include "shared/base/sha256.h"

#define TIMEOUT_SECONDS 15
#define SECRETS_MAX     4
#define SECRET_MAX      512
#define SECRET_PREFIX   "whsec_"

struct secret {
    uint8_t bytes[SECRET_MAX];
    size_t count;
};

struct webhook {
    const struct evq_sink_context *context;
    struct evq_http *http;
    struct evq_buffer url;
    struct secret secrets[SECRETS_MAX];
    size_t secret_count;
    char who[64];
};

static void webhook_close(void *state)
{
    struct webhook *sink = state;

    if (sink != NULL) {
        evq_http_close(sink->http);
        explicit_bzero(sink->secrets, sizeof(sink->secrets));
        evq_buffer_free(&sink->url);
        free(sink);
    }
}

/* One secret a line: "whsec_" and base64, or the bytes as they are. */
static enum evq_status secrets_split(struct webhook *sink, const char *text, struct evq_error *err)
{
    for (const char *at = text; *at != '\0';) {
        const size_t length = strcspn(at, "\r\n");
        const size_t prefix = sizeof(SECRET_PREFIX) - 1;
        struct secret *secret = &sink->secrets[sink->secret_count];
        if (length > 0 && sink->secret_count == SECRETS_MAX) {
            return evq_error_set(err, EVQ_E_INVALID, "%s: more than %d secrets", sink->who,
                                 SECRETS_MAX);
        }
        if (length > prefix && strncmp(at, SECRET_PREFIX, prefix) == 0) {
            if (!evq_base64_decode(at + prefix, length - prefix, secret->bytes, SECRET_MAX,
                                   &secret->count)) {
                return evq_error_set(err, EVQ_E_INVALID,
                                     "%s: expected base64 of at most %d bytes after " SECRET_PREFIX,
                                     sink->who, SECRET_MAX);
            }
        } else if (length > SECRET_MAX) {
            return evq_error_set(err, EVQ_E_INVALID, "%s: a secret of over %d bytes", sink->who,
                                 SECRET_MAX);
        } else {
            memcpy(secret->bytes, at, length);
            secret->count = length;
        }
        sink->secret_count += length > 0;
        at += length + strspn(at + length, "\r\n");
    }
    return EVQ_OK;
}

static enum evq_status secrets_read(struct webhook *sink, struct evq_error *err)
{
    struct evq_buffer text;

    evq_buffer_init(&text, 0);
    enum evq_status status =
        evq_sink_secret(sink->context->sink, "secret", "EVALQ_WEBHOOK_SECRET", &text, err);
    if (status == EVQ_OK) {
        const char *lines = evq_buffer_string(&text);
        status = secrets_split(sink, lines != NULL ? lines : "", err);
    }
    if (text.data != NULL) {
        explicit_bzero(text.data, text.bytes);
    }
    evq_buffer_free(&text);
    return status;
}

static enum evq_status url_read(struct webhook *sink, struct evq_error *err)
{
    const char *given = evq_sink_option(sink->context->sink, "url");
    enum evq_status status = EVQ_OK;

    if (given != NULL) {
        evq_buffer_text(&sink->url, given);
    } else {
        status = evq_sink_secret(sink->context->sink, "url", "EVALQ_WEBHOOK_URL", &sink->url, err);
    }
    const char *url = evq_buffer_string(&sink->url);
    if (status == EVQ_OK &&
        (url == NULL || (strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0))) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s: expected url: https://HOST/PATH, url_file or $EVALQ_WEBHOOK_URL",
                             sink->who);
    }
    return status;
}

static enum evq_status webhook_open(const struct evq_sink_context *context, void **ret_state,
                                    struct evq_error *err)
{
    struct evq_http_config config = {.stop = context->stop};
    double seconds = 0;
    bool allow_private = false;
    struct webhook *sink = calloc(1, sizeof(*sink));

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", context->sink->name);
    }
    sink->context = context;
    evq_buffer_init(&sink->url, 8192);
    (void)snprintf(sink->who, sizeof(sink->who), "sink '%s'", context->sink->name);
    enum evq_status status =
        evq_sink_option_seconds(context->sink, "timeout_seconds", TIMEOUT_SECONDS, &seconds, err);
    if (status == EVQ_OK) {
        status = evq_sink_option_flag(context->sink, "allow_private", &allow_private, err);
    }
    if (status == EVQ_OK) {
        status = url_read(sink, err);
    }
    if (status == EVQ_OK) {
        status = secrets_read(sink, err);
    }
    if (status == EVQ_OK) {
        config.who = sink->who;
        config.timeout_ms = seconds < 0.001 ? 1 : (int64_t)(seconds * 1000);
        config.public_only = !allow_private;
        config.ca_file = evq_sink_option(context->sink, "ca_file");
        status = evq_http_open(&config, &sink->http, err);
    }
    if (status != EVQ_OK) {
        webhook_close(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

/* {"type", "timestamp", "data"}: the result as the JSONL sink has it. */
static void body_make(const struct evq_result *result, struct evq_buffer *out)
{
    char finished[EVQ_CLOCK_ISO_BYTES];

    evq_clock_iso(result->finished_ms, finished);
    evq_buffer_printf(out, "{\"type\":\"%s\",\"timestamp\":\"%s\",\"data\":",
                      result->task[0] != '\0' ? "evaluation.result" : "evaluation.ended", finished);
    evq_result_json(result, out);
    evq_buffer_text(out, "}");
}

/* "webhook-signature: v1,BASE64 v1,BASE64": of "ID.SECONDS.BODY", by each secret. */
static void signature_make(const struct webhook *sink, const char *id, const char *seconds,
                           const struct evq_buffer *body, struct evq_buffer *out)
{
    struct evq_buffer text;
    uint8_t digest[EVQ_SHA256_BYTES];
    char coded[EVQ_BASE64_CHARS(EVQ_SHA256_BYTES) + 1];

    evq_buffer_init(&text, 0);
    evq_buffer_printf(&text, "%s.%s.", id, seconds);
    evq_buffer_append(&text, body->data, body->bytes);
    evq_buffer_text(out, "webhook-signature:");
    for (size_t i = 0; i < sink->secret_count && !text.failed; i++) {
        evq_sha256_hmac(sink->secrets[i].bytes, sink->secrets[i].count, text.data, text.bytes,
                        digest);
        evq_base64_encode(digest, sizeof(digest), coded);
        evq_buffer_printf(out, " v1,%s", coded);
    }
    out->failed = out->failed || text.failed;
    evq_buffer_free(&text);
}

static enum evq_status post(struct webhook *sink, const char *id, const struct evq_buffer *body,
                            struct evq_error *err)
{
    struct evq_http_reply reply = {0};
    struct evq_buffer signature;
    char id_line[EVQ_RESULT_ID_BYTES_MAX + 16];
    char time_line[48];
    char seconds[24];

    (void)snprintf(seconds, sizeof(seconds), "%" PRId64, evq_clock_unix_ms() / 1000);
    (void)snprintf(id_line, sizeof(id_line), "webhook-id: %s", id);
    (void)snprintf(time_line, sizeof(time_line), "webhook-timestamp: %s", seconds);
    evq_buffer_init(&signature, 0);
    signature_make(sink, id, seconds, body, &signature);
    const char *headers[] = {"Content-Type: application/json",
                             "Expect:",
                             id_line,
                             time_line,
                             sink->secret_count > 0 ? evq_buffer_string(&signature) : NULL,
                             NULL};
    enum evq_status status =
        signature.failed ? evq_error_set(err, EVQ_E_NOMEM, "%s: a signature", sink->who) : EVQ_OK;
    if (status == EVQ_OK) {
        status = evq_http_call(sink->http, "POST", evq_buffer_string(&sink->url), headers,
                               (const char *)body->data, body->bytes, &reply, err);
    }
    if (status == EVQ_OK) {
        status = evq_http_verdict(&reply, sink->who, "the receiver", err);
    }
    evq_http_reply_free(&reply);
    evq_buffer_free(&signature);
    return status;
}

static enum evq_status webhook_write(void *state, const struct evq_result *result,
                                     struct evq_error *err)
{
    struct webhook *sink = state;
    struct evq_buffer body;
    char id[EVQ_RESULT_ID_BYTES_MAX];

    evq_result_id(result, id);
    evq_buffer_init(&body, 0);
    body_make(result, &body);
    enum evq_status status =
        body.failed ? evq_error_set(err, EVQ_E_NOMEM, "%s: %s", sink->who, id) : EVQ_OK;
    if (status == EVQ_OK) {
        status = post(sink, id, &body, err);
    }
    evq_buffer_free(&body);
    return status;
}

static enum evq_status webhook_flush(void *state, struct evq_error *err)
{
    (void)state; // Each write is complete in itself.
    (void)err;
    return EVQ_OK;
}

static const char *const options[] = {"url",     "url_file",        "secret_file", "allow_private",
                                      "ca_file", "timeout_seconds", NULL};

const struct evq_sink_ops evq_sink_webhook = {
    .kind = "webhook",
    .options = options,
    .each = true,
    .ends = true,
    .open = webhook_open,
    .write = webhook_write,
    .flush = webhook_flush,
    .close = webhook_close,
};
