/*
 * Properties of characters, as Hugging Face `tokenizers` has them (make_unicode.py), and
 * Normalization Form C. Any thread.
 */
#ifndef EVQ_WORKER_TOKENIZER_UNICODE_H
#define EVQ_WORKER_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/tokenizer/utf8.h"

#define EVQ_UNICODE_BLOCK 128

enum { // The lowest two bits of the flags hold one of four values.
    EVQ_UNICODE_OTHER = 0,
    EVQ_UNICODE_LETTER = 1,
    EVQ_UNICODE_NUMBER = 2,
    EVQ_UNICODE_SPACE = 3,
    EVQ_UNICODE_KIND = 3, // The mask of those bits.
    EVQ_UNICODE_MARK = 4,
    EVQ_UNICODE_WORD = 8, // Matches \w.
    EVQ_UNICODE_NFC = 16  // NFC may change the character or its neighbours.
};

extern const uint16_t evq_unicode_index[0x110000 / EVQ_UNICODE_BLOCK];
extern const uint8_t evq_unicode_flags[]; // The first block is ASCII.

static inline unsigned evq_unicode_of(uint32_t code)
{
    const size_t block = evq_unicode_index[code / EVQ_UNICODE_BLOCK];
    return evq_unicode_flags[block * EVQ_UNICODE_BLOCK + code % EVQ_UNICODE_BLOCK];
}

/* The flags of the character at `at`, in valid UTF-8. */
static inline unsigned evq_unicode_at(const unsigned char *at, size_t *ret_bytes)
{
    if (at[0] < 0x80) {
        *ret_bytes = 1;
        return evq_unicode_flags[at[0]];
    }
    return evq_unicode_of(evq_utf8_code(at, ret_bytes));
}

/* Length of the beginning of text (valid UTF-8) that NFC does not change; bytes: all of it. */
size_t evq_unicode_nfc_same(const char *text, size_t bytes);

/* Appends the NFC form of text (valid UTF-8). work is used for code points. A failure shows in
 * work->failed or out->failed. */
void evq_unicode_nfc(const char *text, size_t bytes, struct evq_buffer *work,
                     struct evq_buffer *out);

#endif
