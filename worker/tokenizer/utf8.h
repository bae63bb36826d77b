/*
 * Reads and writes UTF-8 text. Any thread.
 */
#ifndef EVQ_WORKER_TOKENIZER_UTF8_H
#define EVQ_WORKER_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/buffer.h"
#include "shared/base/utf8.h"

/* Appends text with U+FFFD in place of invalid bytes, one for each maximal part of a sequence, as
 * Python's bytes.decode(errors="replace") does. */
void evq_utf8_repair(const char *text, size_t bytes, struct evq_buffer *out);

/* The code point at `at`, in valid UTF-8 with at < end. *ret_bytes is its length. */
static inline uint32_t evq_utf8_code(const unsigned char *at, size_t *ret_bytes)
{
    if (at[0] < 0x80) {
        *ret_bytes = 1;
        return at[0];
    }
    if (at[0] < 0xe0) {
        *ret_bytes = 2;
        return (uint32_t)(at[0] & 0x1f) << 6 | (at[1] & 0x3f);
    }
    if (at[0] < 0xf0) {
        *ret_bytes = 3;
        return (uint32_t)(at[0] & 0x0f) << 12 | (uint32_t)(at[1] & 0x3f) << 6 | (at[2] & 0x3f);
    }
    *ret_bytes = 4;
    return (uint32_t)(at[0] & 0x07) << 18 | (uint32_t)(at[1] & 0x3f) << 12 |
           (uint32_t)(at[2] & 0x3f) << 6 | (at[3] & 0x3f);
}

/* The code point that ends at `end`, in valid UTF-8 with start < end. */
uint32_t evq_utf8_code_before(const unsigned char *start, const unsigned char *end,
                              size_t *ret_bytes);

/* Writes the code point as UTF-8 to out, which has room for 4 bytes. Returns its length. */
size_t evq_utf8_put(uint32_t code, char *out);

#endif
