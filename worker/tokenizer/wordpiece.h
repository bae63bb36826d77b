/*
 * WordPiece: a word is divided from the left into the longest tokens of the vocabulary. Immutable
 * once built; each thread brings a work area.
 */
#ifndef EVQ_WORKER_TOKENIZER_WORDPIECE_H
#define EVQ_WORKER_TOKENIZER_WORDPIECE_H

#include "worker/tokenizer/bpe.h"

struct evq_wordpiece { // Starts as zeros. The vocabulary is that of a struct evq_bpe.
    char *prefix;      // Begins each token that does not begin a word ("##").
    size_t prefix_bytes;
    size_t characters_max; // A longer word becomes the unknown token.
    size_t token_bytes_max;
};

/* Copies the settings. The definition was checked: it has an unknown token. EVQ_E_NOMEM. */
enum evq_status evq_wordpiece_build(const struct evq_tokenizer_json *definition,
                                    struct evq_wordpiece *wordpiece,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_wordpiece_free(struct evq_wordpiece *wordpiece);

/* Stores the tokens of the word in work->ids[0..count). White space has none. EVQ_E_NOMEM. */
enum evq_status evq_wordpiece_encode(const struct evq_wordpiece *wordpiece,
                                     const struct evq_bpe *vocabulary, const char *word,
                                     size_t bytes, struct evq_bpe_work *work,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

#endif
