/*
 * Turns text into token ids, with the same result as Hugging Face `tokenizers`: byte-level BPE
 * (GPT-2, Llama 3, Qwen), BPE with byte fallback (Llama 2, Mistral) and WordPiece (BERT).
 * docs/tokenizers.md lists what is read and what is refused.
 *
 * An open tokenizer does not change, so any number of threads can encode with it, each with a
 * scratch of its own.
 */
#ifndef EVQ_WORKER_TOKENIZER_TOKENIZER_H
#define EVQ_WORKER_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/progress.h"

#define EVQ_TOKENIZER_FILE_BYTES_MAX ((size_t)64 << 20) // For tokenizer.json and similar files.
#define EVQ_TOKENIZER_IDS_MAX        (1 << 22)          // All ids are below this.
// The longest text that may have to be merged as one piece.
#define EVQ_TOKENIZER_PIECE_BYTES_MAX ((size_t)16 << 20)
// Bytes of a text between two progress reports.
#define EVQ_TOKENIZER_TOLD_BYTES ((size_t)1 << 20)

struct evq_tokenizer;
// Buffers and the piece cache of one thread. Their size is limited, except for the text.
struct evq_tokenizer_scratch;

struct evq_tokenizer_text {
    const char *text;
    size_t bytes;
};

struct evq_tokens { // Starts as zeros; grows as needed.
    int32_t *ids;
    size_t count;
    size_t capacity;
};

/*
 * Opens the tokenizer at path: tokenizer.json, or a directory that contains it. The path is beneath
 * root_fd, as in evq_root_open(); with AT_FDCWD any path is allowed. tokenizer_config.json,
 * special_tokens_map.json and config.json beside it tell what begins and ends a text. The caller
 * frees it. EVQ_E_NOT_FOUND: there is no such file. EVQ_E_UNSUPPORTED: this kind of tokenizer is
 * not supported; give tokens instead of text. EVQ_E_CORRUPT, EVQ_E_INVALID, EVQ_E_LIMIT,
 * EVQ_E_GONE, EVQ_E_IO, EVQ_E_NOMEM. The message names the file.
 */
enum evq_status evq_tokenizer_open(int root_fd, const char *path,
                                   struct evq_tokenizer **ret_tokenizer,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokenizer_free(struct evq_tokenizer *tokenizer); // Accepts NULL.

/* NULL: out of memory. It can serve any number of tokenizers, one after another. */
struct evq_tokenizer_scratch *evq_tokenizer_scratch_new(void);
void evq_tokenizer_scratch_free(struct evq_tokenizer_scratch *scratch); // Accepts NULL.

/* Reports progress to `progress` every EVQ_TOKENIZER_TOLD_BYTES of a text; borrowed. NULL: nobody
 * listens. */
void evq_tokenizer_scratch_watch(struct evq_tokenizer_scratch *scratch,
                                 const struct evq_progress *progress);

/*
 * Appends the tokens of text to out. add_special adds the tokens that the template puts around a
 * text (such as <s>). Special tokens like <|endoftext|> inside the text count as tokens. Bytes that
 * are not UTF-8 are replaced by U+FFFD, as with Python's errors="replace". On failure out is
 * unchanged. EVQ_E_NOMEM. EVQ_E_LIMIT: more than EVQ_TOKENIZER_PIECE_BYTES_MAX bytes cannot be
 * divided. EVQ_E_STOPPED: the listener said so.
 */
enum evq_status evq_tokenizer_encode(const struct evq_tokenizer *tokenizer,
                                     struct evq_tokenizer_scratch *scratch, const char *text,
                                     size_t bytes, bool add_special, struct evq_tokens *out,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokens_free(struct evq_tokens *tokens); // Leaves it empty.

/*
 * Appends a text or a pair of texts with the template, and the type id of each token to types.
 * texts[1].text NULL: there is one text. If there are more than tokens_max tokens, the longer text
 * loses some first, from the side that the files name, as with truncation=True in Transformers. On
 * failure out and types are unchanged. As evq_tokenizer_encode(); EVQ_E_LIMIT also if the template
 * alone is longer.
 */
enum evq_status evq_tokenizer_encode_pair(const struct evq_tokenizer *tokenizer,
                                          struct evq_tokenizer_scratch *scratch,
                                          const struct evq_tokenizer_text texts[2],
                                          size_t tokens_max, struct evq_tokens *out,
                                          struct evq_tokens *types,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* The token before a text without context, as lm-evaluation-harness chooses it: BOS, otherwise EOS;
 * -1: neither exists. */
int32_t evq_tokenizer_prefix(const struct evq_tokenizer *tokenizer);
/* Whether text begins with the text of the added token id. False if id is -1 or not a token. */
bool evq_tokenizer_text_begins_with(const struct evq_tokenizer *tokenizer, int32_t id,
                                    const char *text, size_t bytes);
/* How many tokens the template puts before and after a text. */
void evq_tokenizer_count_around(const struct evq_tokenizer *tokenizer, int64_t *ret_before,
                                int64_t *ret_after);
/* The id of the token with this text, or -1. */
int32_t evq_tokenizer_find(const struct evq_tokenizer *tokenizer, const char *text, size_t bytes);
// Name of its file, for messages.
const char *evq_tokenizer_name(const struct evq_tokenizer *tokenizer);
const char *evq_tokenizer_digest(const struct evq_tokenizer *tokenizer); // XXH3-128 of the files.

#endif
