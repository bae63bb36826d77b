/* Fills and frees replies, declared in http.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/http/http.h"

void evq_http_reply_init(struct evq_http_reply *reply)
{
    memset(reply, 0, sizeof *reply);
    reply->code = 200;
    reply->content_type = "application/json";
    evq_buffer_init(&reply->body, 0);
}

void evq_http_reply_free(struct evq_http_reply *reply)
{
    if (reply->stream.pull != NULL && reply->stream.close != NULL) {
        reply->stream.close(reply->stream.context);
    }
    evq_buffer_free(&reply->body);
    evq_http_reply_init(reply);
}

void evq_http_reply_header(struct evq_http_reply *reply, const char *name, const char *value)
{
    if (reply->header_count < EVQ_HTTP_HEADERS_MAX) {
        reply->headers[reply->header_count++] = (struct evq_pair){.key = name, .value = value};
    }
}

void evq_http_reply_error(struct evq_http_reply *reply, int code, const char *word,
                          const char *format, ...)
{
    char sentence[600];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    reply->code = code;
    reply->content_type = "application/json";
    evq_buffer_clear(&reply->body);
    evq_buffer_text(&reply->body, "{");
    if (!reply->detail_alone) {
        evq_buffer_text(&reply->body, "\"error\": ");
        evq_buffer_json_text(&reply->body, word);
        evq_buffer_text(&reply->body, ", ");
    }
    evq_buffer_text(&reply->body, "\"detail\": ");
    evq_buffer_json_text(&reply->body, sentence);
    evq_buffer_text(&reply->body, "}\n");
}

static int code_of(enum evq_status status)
{
    switch (status) {
    case EVQ_E_INVALID:
    case EVQ_E_CORRUPT:
    case EVQ_E_UNSUPPORTED:
        return 400;
    case EVQ_E_NOT_FOUND:
        return 404;
    case EVQ_E_CONFLICT:
    case EVQ_E_GONE:
    case EVQ_E_CHANGED:
    case EVQ_E_INCOMPLETE:
        return 409;
    case EVQ_E_LIMIT:
        return 413;
    case EVQ_E_IO:
    case EVQ_E_RETRY:
    case EVQ_E_TIMEOUT:
    case EVQ_E_STOPPED:
    case EVQ_E_FULL:
    case EVQ_E_AUTH:
    case EVQ_E_VERSION:
        return 503;
    default:
        return 500;
    }
}

void evq_http_reply_fail(struct evq_http_reply *reply, enum evq_status status,
                         const struct evq_error *err)
{
    const int code = code_of(status);
    evq_http_reply_error(reply, code, evq_status_name(status), "%s", err->message);
    reply->status = status;
    if (code == 503) {
        evq_http_reply_header(reply, "Retry-After", "1");
    }
}

void evq_http_reply_take(struct evq_http_reply *reply, char *json)
{
    evq_buffer_clear(&reply->body);
    evq_buffer_text(&reply->body, json);
    evq_buffer_text(&reply->body, "\n");
    free(json);
}

void evq_http_reply_answer(struct evq_http_reply *reply, enum evq_status status, char *json,
                           const struct evq_error *err)
{
    if (status == EVQ_OK) {
        evq_http_reply_take(reply, json);
    } else {
        evq_http_reply_fail(reply, status, err);
    }
}
