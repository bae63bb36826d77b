/*
 * What an error reply of Redis means for the caller. Any thread.
 */
#ifndef EVQ_SHARED_REDIS_CONN_ERROR_H
#define EVQ_SHARED_REDIS_CONN_ERROR_H

#include <stdbool.h>

#include "shared/base/error.h"

struct evq_conn_error {
    enum evq_status status;
    // The sentence inside the reply, without the code word of evalq's own functions.
    const char *text;
    bool own;          // The reply comes from one of evalq's own functions.
    const char *moved; // "HOST:PORT" in the reply's text, NULL: not moved.
    bool reconnect;    // This server cannot serve us: look for the primary again.
};

/*
 * Classifies an error reply (without its leading '-') by its first word: wait and repeat
 * (EVQ_E_RETRY), permission (EVQ_E_AUTH), functions missing (EVQ_E_VERSION), EVQ_NOT_FOUND and
 * others of evalq's functions, else EVQ_E_INVALID.
 */
struct evq_conn_error evq_conn_error_parse(const char *text);

/* Fills err with the sentence for people; user "" is the default one. Returns refusal->status. */
enum evq_status evq_conn_error_describe(const struct evq_conn_error *refusal, const char *where,
                                        const char *user, struct evq_error *err);

#endif
