/*
 * Reads the body of a request as a JSON object, member by member. After the first error the reply
 * is a 400 that names the member, and further reads return the fallback. One thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_API_BODY_H
#define EVQ_PRODUCER_GATEWAY_API_BODY_H

#include <jansson.h>

#include "producer/gateway/http/http.h"

struct evq_body {
    json_t *object; // Freed by evq_body_close(). NULL if opening failed.
    struct evq_http_reply *reply;
    bool failed;
};

/* An empty body counts as an empty object. known: all allowed members, ended by NULL. Another
 * member is refused, and the reply names the nearest allowed one. false: the reply says why. */
bool evq_body_open(struct evq_body *body, const struct evq_http_request *request,
                   struct evq_http_reply *reply, const char *const *known);
void evq_body_close(struct evq_body *body); // Frees its strings.

/* A missing or null member gives the fallback. */
const char *evq_body_text(struct evq_body *body, const char *key, const char *fallback);
/* Reads an integer from 0 to max. */
int64_t evq_body_integer(struct evq_body *body, const char *key, int64_t max, int64_t fallback);
double evq_body_number(struct evq_body *body, const char *key, double fallback);
bool evq_body_bool(struct evq_body *body, const char *key, bool fallback);
/* Reads one of the words. Returns its index. */
int evq_body_word(struct evq_body *body, const char *key, const char *const *words, int count,
                  int fallback);
/* Reads an object of texts, numbers and booleans as pairs of texts, in arena. */
void evq_body_pairs(struct evq_body *body, const char *key, struct evq_arena *arena,
                    const struct evq_pair **ret_pairs, size_t *ret_count);
/* Reads a text or an array of texts. Returns how many it wrote to texts, at most texts_max. */
size_t evq_body_texts(struct evq_body *body, const char *key, const char **texts, size_t texts_max);

/* Reports that a member is wrong. */
void evq_body_fail(struct evq_body *body, const char *format, ...) EVQ_PRINTF(2, 3);

#endif
