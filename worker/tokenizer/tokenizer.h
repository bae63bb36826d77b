/*
 * Text to token ids, token for token as Hugging Face `tokenizers` gives them: byte-level BPE
 * (GPT-2, Llama 3, Qwen) and BPE with byte fallback (Llama 2, Mistral). What is read and what is
 * refused: docs/tokenizers.md.
 *
 * An open tokenizer does not change: any number of threads encode with it, each with a scratch of
 * its own.
 */
#ifndef EVQ_WORKER_TOKENIZER_H
#define EVQ_WORKER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/child/progress.h"

#define EVQ_TOKENIZER_FILE_BYTES_MAX  ((size_t)64 << 20) // Of tokenizer.json and the like.
#define EVQ_TOKENIZER_IDS_MAX         (1 << 22)          // Ids are below it.
#define EVQ_TOKENIZER_PIECE_BYTES_MAX ((size_t)16 << 20) // What may have to be merged as one.
#define EVQ_TOKENIZER_TOLD_BYTES      ((size_t)1 << 20)  // Of a text between two tellings.

struct evq_tokenizer;
struct evq_tokenizer_scratch; // Buffers and the piece cache of one thread; bounded but for the
                              // text.

struct evq_tokens { // Starts as zeros; grows as needed.
    int32_t *ids;
    size_t count;
    size_t capacity;
};

/*
 * Opens the tokenizer at path: a directory with tokenizer.json, or else with vocab.json and
 * merges.txt; or one of these files itself. Beneath root_fd, as evq_root_open() has it; with
 * AT_FDCWD any path goes. tokenizer_config.json, special_tokens_map.json and config.json beside it
 * say what begins and ends a text. The caller frees it.
 * EVQ_E_NOT_FOUND (no such files), EVQ_E_UNSUPPORTED (a kind of tokenizer that is not handled:
 * give tokens instead of text), EVQ_E_CORRUPT, EVQ_E_INVALID, EVQ_E_LIMIT, EVQ_E_GONE, EVQ_E_IO,
 * EVQ_E_NOMEM: one sentence that names the file.
 */
enum evq_status evq_tokenizer_open(int root_fd, const char *path,
                                   struct evq_tokenizer **ret_tokenizer,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokenizer_free(struct evq_tokenizer *tokenizer); // Accepts NULL.

/* NULL when out of memory. May serve any number of tokenizers, one after another. */
struct evq_tokenizer_scratch *evq_tokenizer_scratch_new(void);
void evq_tokenizer_scratch_free(struct evq_tokenizer_scratch *scratch); // Accepts NULL.

/* While encoding, tells `progress` about every EVQ_TOKENIZER_TOLD_BYTES of a text; borrowed. NULL:
 * nobody listens. */
void evq_tokenizer_scratch_watch(struct evq_tokenizer_scratch *scratch,
                                 const struct evq_progress *progress);

/*
 * Appends the tokens of text to out; add_special adds what the tokenizer's template puts around a
 * text (such as <s>). Tokens like <|endoftext|> inside the text count as such. Bytes that are not
 * UTF-8 are read as U+FFFD, one for each that Python's errors="replace" gives. On failure out is as
 * it was. EVQ_E_NOMEM; EVQ_E_LIMIT: more than EVQ_TOKENIZER_PIECE_BYTES_MAX bytes without a place
 * to divide them; EVQ_E_STOPPED: who watches says so.
 */
enum evq_status evq_tokenizer_encode(const struct evq_tokenizer *tokenizer,
                                     struct evq_tokenizer_scratch *scratch, const char *text,
                                     size_t bytes, bool add_special, struct evq_tokens *out,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokens_free(struct evq_tokens *tokens); // Leaves it empty.

/* One more than the largest id that encoding can give. */
int32_t evq_tokenizer_vocabulary(const struct evq_tokenizer *tokenizer);
int32_t evq_tokenizer_bos(const struct evq_tokenizer *tokenizer); // -1: none.
int32_t evq_tokenizer_eos(const struct evq_tokenizer *tokenizer); // -1: none.
/* What a text without context is scored after, as lm-evaluation-harness chooses: the BOS token,
 * else EOS; -1: neither. */
int32_t evq_tokenizer_prefix(const struct evq_tokenizer *tokenizer);
/* Whether text begins as the added token id is written; no id, as -1: false. */
bool evq_tokenizer_begins(const struct evq_tokenizer *tokenizer, int32_t id, const char *text,
                          size_t bytes);
/* How many tokens the template puts around a text. */
void evq_tokenizer_around(const struct evq_tokenizer *tokenizer, int64_t *ret_before,
                          int64_t *ret_after);
/* The id of the token written like this, or -1. */
int32_t evq_tokenizer_find(const struct evq_tokenizer *tokenizer, const char *text, size_t bytes);
const char *evq_tokenizer_name(const struct evq_tokenizer *tokenizer);   // Its file, for messages.
const char *evq_tokenizer_digest(const struct evq_tokenizer *tokenizer); // XXH3-128 of the files.

#endif
