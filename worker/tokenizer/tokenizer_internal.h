/*
 * The inside of an open tokenizer, for the files of this folder only.
 */
#ifndef EVQ_WORKER_TOKENIZER_TOKENIZER_INTERNAL_H
#define EVQ_WORKER_TOKENIZER_TOKENIZER_INTERNAL_H

#include "worker/tokenizer/added_tokens.h"
#include "worker/tokenizer/bpe.h"
#include "worker/tokenizer/tokenizer_json.h"
#include "worker/tokenizer/wordpiece.h"

struct evq_tokenizer {
    struct evq_bpe bpe;
    struct evq_wordpiece wordpiece; // characters_max 0: the model is BPE.
    struct evq_text_steps steps;
    struct evq_added_tokens raw;        // Searched in the text as it is,
    struct evq_added_tokens normalized; // and in the normalized text.
    struct evq_template single, pair;
    int32_t vocabulary; // One more than the largest id that encoding can give.
    int32_t bos, eos;   // -1: none.
    bool typeless;      // All types of tokens are 0.
    bool cuts_left;     // Texts that are too long lose their first tokens.
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

#endif
