/*
 * The inside of an open tokenizer, for the files of this folder only.
 */
#ifndef EVQ_WORKER_TOKENIZER_TOKENIZER_INTERNAL_H
#define EVQ_WORKER_TOKENIZER_TOKENIZER_INTERNAL_H

#include "worker/tokenizer/added_tokens.h"
#include "worker/tokenizer/bpe.h"
#include "worker/tokenizer/tokenizer_json.h"

struct evq_tokenizer {
    struct evq_bpe bpe;
    struct evq_text_steps steps;
    struct evq_added_tokens raw;        // Searched in the text as it is,
    struct evq_added_tokens normalized; // and in the normalized text.
    int32_t before[EVQ_TOKENIZER_TEMPLATE_MAX], after[EVQ_TOKENIZER_TEMPLATE_MAX];
    size_t before_count, after_count;
    int32_t vocabulary; // One more than the largest id that encoding can give.
    int32_t bos, eos;   // -1: none.
    char digest[33];
    char *path;
};

/* Normalizes text. *ret_text is text itself, or is in one of the buffers and valid until they are
 * used again. work is used for code points. EVQ_E_NOMEM. */
enum evq_status evq_text_steps_normalize(const struct evq_text_steps *steps,
                                         struct evq_tokenizer_text text,
                                         struct evq_buffer buffers[2], struct evq_buffer *work,
                                         struct evq_tokenizer_text *ret_text,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds the prefix and the U+2581 of the pre-tokenizer. first: it is the beginning of the whole
 * text. The rest is as above. */
enum evq_status evq_text_steps_add_prefix(const struct evq_text_steps *steps,
                                          struct evq_tokenizer_text text, bool first,
                                          struct evq_buffer *buffer,
                                          struct evq_tokenizer_text *ret_text,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* Length of the first part of text (not empty) that the pattern divides by itself: all of it, or
 * with digits_apart the text up to the next digit, or that digit (*ret_number). */
size_t evq_text_steps_first_part(const struct evq_text_steps *steps, struct evq_tokenizer_text text,
                                 bool *ret_number);

#endif
