/*
 * Properties of characters, as Hugging Face `tokenizers` has them (make_unicode.py), and the
 * normalizers that need only these. Any thread.
 */
#ifndef EVQ_WORKER_TOKENIZER_UNICODE_H
#define EVQ_WORKER_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/tokenizer/utf8.h"

#define EVQ_UNICODE_BLOCK 128
#define EVQ_UNICODE_PART  64

enum { // The lowest two bits of the flags hold one of four values.
    EVQ_UNICODE_OTHER = 0,
    EVQ_UNICODE_LETTER = 1,
    EVQ_UNICODE_NUMBER = 2,
    EVQ_UNICODE_SPACE = 3,
    EVQ_UNICODE_KIND = 3, // The mask of those bits.
    EVQ_UNICODE_MARK = 4,
    EVQ_UNICODE_WORD = 8, // Matches \w.
    EVQ_UNICODE_NFC = 16, // NFC may change the character or its neighbours.
    EVQ_UNICODE_UPPER = 32,
    EVQ_UNICODE_LOWER = 64,
    EVQ_UNICODE_SYMBOL = 128,      // Punctuation or a symbol.
    EVQ_UNICODE_DIGIT = 256,       // Digits separates it; nearly EVQ_UNICODE_NUMBER.
    EVQ_UNICODE_PUNCTUATION = 512, // BertPreTokenizer separates it.
    EVQ_UNICODE_CONTROL = 1024,    // clean_text removes it.
    EVQ_UNICODE_NONSPACING = 2048, // strip_accents of BertNormalizer removes it.
    EVQ_UNICODE_ACCENT = 4096,     // StripAccents removes it.
    EVQ_UNICODE_CJK = 8192,        // handle_chinese_chars puts spaces around it.
    EVQ_UNICODE_NFD = 1 << 14,     // NFD may change the character or its neighbours.
    EVQ_UNICODE_CASED = 1 << 15    // It has a small letter.
};

// A table in three levels. For each 8,192 characters: the number of their part of the index.
extern const uint8_t evq_unicode_parts[0x110000 / EVQ_UNICODE_BLOCK / EVQ_UNICODE_PART];
extern const uint16_t evq_unicode_index[]; // For each 128 characters of a part: their block.
extern const uint8_t evq_unicode_groups[]; // For each character of a block; block 0 is ASCII.
extern const uint16_t evq_unicode_flags[]; // For each group of characters with the same flags.

enum evq_unicode_step { // What a normalizer does to each character.
    EVQ_UNICODE_CLEAN,  // Removes CONTROL, and replaces white space by a space.
    EVQ_UNICODE_APART,  // Puts spaces around CJK.
    EVQ_UNICODE_STRIP_NONSPACING,
    EVQ_UNICODE_STRIP_ACCENTS,
    EVQ_UNICODE_LOWERCASE
};

static inline unsigned evq_unicode_of(uint32_t code)
{
    const size_t part = evq_unicode_parts[code / EVQ_UNICODE_BLOCK / EVQ_UNICODE_PART];
    const size_t block =
        evq_unicode_index[part * EVQ_UNICODE_PART + code / EVQ_UNICODE_BLOCK % EVQ_UNICODE_PART];
    return evq_unicode_flags[evq_unicode_groups[block * EVQ_UNICODE_BLOCK +
                                                code % EVQ_UNICODE_BLOCK]];
}

/* The flags of the character at `at`, in valid UTF-8. */
static inline unsigned evq_unicode_at(const unsigned char *at, size_t *ret_bytes)
{
    if (at[0] < 0x80) {
        *ret_bytes = 1;
        return evq_unicode_flags[evq_unicode_groups[at[0]]];
    }
    return evq_unicode_of(evq_utf8_code(at, ret_bytes));
}

/* Length of the beginning of text (valid UTF-8) that the form does not change; bytes: all of it.
 * form is EVQ_UNICODE_NFC or EVQ_UNICODE_NFD, also below. */
size_t evq_unicode_form_same(unsigned form, const char *text, size_t bytes);

/* Appends text (valid UTF-8) in the normalization form. work is used for code points. A failure
 * shows in work->failed or out->failed. */
void evq_unicode_form(unsigned form, const char *text, size_t bytes, struct evq_buffer *work,
                      struct evq_buffer *out);

/* Appends text (valid UTF-8) after the step. A failure shows in out->failed. */
void evq_unicode_map(enum evq_unicode_step step, const char *text, size_t bytes,
                     struct evq_buffer *out);

#endif
