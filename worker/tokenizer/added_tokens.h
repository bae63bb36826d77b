/*
 * Tokens that are found in the text before it is divided: special ones and those of the user. At
 * each place the longest counts. Immutable once built.
 */
#ifndef EVQ_WORKER_TOKENIZER_ADDED_TOKENS_H
#define EVQ_WORKER_TOKENIZER_ADDED_TOKENS_H

#include "worker/tokenizer/definition.h"

struct evq_added_tokens {                // Starts as zeros: finds nothing.
    struct evq_definition_added *tokens; // By content.
    size_t count, room;
    uint32_t first[257]; // Where the tokens that begin with a byte start.
};

struct evq_added_tokens_match {
    size_t from, to; // What it takes of the text, with the white space it strips.
    int32_t id;
};

/* Copies content and written. EVQ_E_NOMEM. Then evq_added_tokens_sort(), once: EVQ_E_CORRUPT names
 * a content that came twice. */
enum evq_status evq_added_tokens_put(struct evq_added_tokens *added,
                                     const struct evq_definition_added *token,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_added_tokens_sort(struct evq_added_tokens *added, const char *path,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_added_tokens_free(struct evq_added_tokens *added);

/*
 * The next token of text, valid UTF-8, that begins at `at` or later; *taken is how much of the text
 * earlier matches took. Moves `at` behind the token itself, taken behind all it takes.
 */
bool evq_added_tokens_next(const struct evq_added_tokens *added, const char *text, size_t bytes,
                           size_t *at, size_t *taken, struct evq_added_tokens_match *ret_match);

#endif
