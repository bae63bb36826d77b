/*
 * The common parts of requests for samples: which checkpoint and files they name, limits, pages,
 * and errors. The names of a request never lead out of samples.directory. Any thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_SAMPLES_SAMPLES_REQUEST_H
#define EVQ_PRODUCER_GATEWAY_SAMPLES_SAMPLES_REQUEST_H

#include "producer/gateway/api/routes.h"
#include "shared/samples/pairing.h"

#define EVQ_SAMPLES_REPLY_BYTES_MAX ((size_t)4 << 20) // A page ends when its reply is that long.

/* How much of a samples file the gateway reads, so that memory and time are bounded. */
extern const struct evq_samples_limits evq_samples_request_limits;

/* Reads the query parameters variant, suite and task. false: one is no name; the reply says so. */
bool evq_samples_request_choice(const struct evq_api *api, const struct evq_http_request *request,
                                struct evq_http_reply *reply, struct evq_sample_choice *ret);

/* Reads the checkpoint from the path, /{run}/{step}. false: the reply says what is wrong. */
bool evq_samples_request_place(const struct evq_http_request *request, struct evq_http_reply *reply,
                               struct evq_sample_place *ret);

/* Reads the checkpoint RUN@STEP of a query parameter. false: the reply says what is wrong. */
bool evq_samples_request_side(const struct evq_http_request *request, struct evq_http_reply *reply,
                              const char *name, struct evq_sample_place *ret);

/* Like evq_http_reply_fail(), but a file that cannot be read is an error of the gateway (500), and
 * not one of Redis. */
void evq_samples_request_fail(struct evq_http_reply *reply, enum evq_status status,
                              const struct evq_error *err);

struct evq_samples_page {
    int64_t offset; // How many of the items that match come before the page.
    int64_t limit;
    int64_t text_bytes; // Longer texts are cut.
    const char *grep;   // "": any text.
    int64_t matched;
    int64_t written;
};

/* Reads the query parameters offset, limit, text_bytes and grep. false: the reply says what is
 * wrong. */
bool evq_samples_page_read(const struct evq_http_request *request, struct evq_http_reply *reply,
                           struct evq_samples_page *ret);
/* Whether one of the texts, which may be NULL, holds what grep names. */
bool evq_samples_page_finds(const struct evq_samples_page *page, const char *const *texts,
                            size_t count);
/* Counts an item that matches. true: it is on the page, and the caller writes it. */
bool evq_samples_page_take(struct evq_samples_page *page, struct evq_buffer *out);
/* Writes the members matched, offset and next. */
void evq_samples_page_end(const struct evq_samples_page *page, struct evq_buffer *out);

/* Writes the member `name`, cut to the page's text_bytes, and the member NAME_bytes with its full
 * length. NULL: both are null. */
void evq_samples_page_text(const struct evq_samples_page *page, const char *name, const char *text,
                           struct evq_buffer *out);
/* Writes a number, or null if it is not finite. */
void evq_samples_page_number(double value, struct evq_buffer *out);

#endif
