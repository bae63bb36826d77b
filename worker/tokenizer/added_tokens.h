/*
 * Special tokens and tokens of the user, which are found in the text before it is divided. At each
 * place the longest one counts. Immutable once built.
 */
#ifndef EVQ_WORKER_TOKENIZER_ADDED_TOKENS_H
#define EVQ_WORKER_TOKENIZER_ADDED_TOKENS_H

#include "worker/tokenizer/tokenizer_json.h"

struct evq_added_tokens {           // Starts as zeros, and then finds nothing.
    struct evq_added_token *tokens; // Sorted by content.
    size_t count, room;
    uint32_t first[257]; // Where the tokens that begin with each byte start.
};

struct evq_added_tokens_match {
    // The part of the text that it takes, including the white space that it strips.
    size_t from, to;
    int32_t id;
};

/* Add tokens (content and written are copied; EVQ_E_NOMEM), then sort once. EVQ_E_CORRUPT names a
 * content that came twice. */
enum evq_status evq_added_tokens_put(struct evq_added_tokens *added,
                                     const struct evq_added_token *token,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_added_tokens_sort(struct evq_added_tokens *added, const char *path,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* EVQ_E_CORRUPT if a token is in both sorted lists as it is written. */
enum evq_status evq_added_tokens_check_apart(const struct evq_added_tokens *raw,
                                             const struct evq_added_tokens *normalized,
                                             const char *path,
                                             struct evq_error *err) EVQ_CHECK_RESULT;
void evq_added_tokens_free(struct evq_added_tokens *added);

/*
 * Finds the next token of text (valid UTF-8) that begins at `at` or later. *taken is how much of
 * the text earlier matches took. Moves `at` behind the token, and *taken behind everything it
 * takes.
 */
bool evq_added_tokens_next(const struct evq_added_tokens *added, const char *text, size_t bytes,
                           size_t *at, size_t *taken, struct evq_added_tokens_match *ret_match);

#endif
