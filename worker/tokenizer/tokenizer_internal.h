/*
 * What an open tokenizer consists of, for the files of this folder.
 */
#ifndef EVQ_WORKER_TOKENIZER_TOKENIZER_INTERNAL_H
#define EVQ_WORKER_TOKENIZER_TOKENIZER_INTERNAL_H

#include "worker/tokenizer/added_tokens.h"
#include "worker/tokenizer/bpe.h"
#include "worker/tokenizer/definition.h"

struct evq_tokenizer {
    struct evq_bpe bpe;
    struct evq_normalizer steps;
    struct evq_added_tokens raw;        // Looked for in the text as it is,
    struct evq_added_tokens normalized; // and after normalizing.
    int32_t before[EVQ_DEFINITION_TEMPLATE_MAX], after[EVQ_DEFINITION_TEMPLATE_MAX];
    size_t before_count, after_count;
    int32_t vocabulary, bos, eos;
    char digest[33];
    char *path;
};

/* text as the normalizer leaves it: *ret_text is text itself or lies in one of both buffers until
 * they are next used. work holds code points meanwhile. EVQ_E_NOMEM. */
enum evq_status evq_normalizer_normalize(const struct evq_normalizer *steps,
                                         struct evq_definition_text text,
                                         struct evq_buffer buffers[2], struct evq_buffer *work,
                                         struct evq_definition_text *ret_text,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* text with the prefix and the U+2581 of the pre-tokenizer; first: it begins the whole text. As
 * above. */
enum evq_status evq_normalizer_prepare(const struct evq_normalizer *steps,
                                       struct evq_definition_text text, bool first,
                                       struct evq_buffer *buffer,
                                       struct evq_definition_text *ret_text,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Bytes from the start of text, not empty, that are divided by the pattern on their own: all, or
 * with digits_apart up to the next number character, or that character (*ret_number). */
size_t evq_normalizer_run(const struct evq_normalizer *steps, struct evq_definition_text text,
                          bool *ret_number);

#endif
