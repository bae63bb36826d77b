#include "worker/tokenizer/utf8.h"

/* How many bytes at the invalid `at` could begin a sequence, at least 1. A decoder replaces these
 * together. */
static size_t part_of(const unsigned char *at, size_t left)
{
    const size_t wanted = at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    // The range of the second byte excludes overlong forms, surrogates, and code points above
    // U+10FFFF.
    const unsigned char low = at[0] == 0xe0 ? 0xa0 : at[0] == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = at[0] == 0xed ? 0x9f : at[0] == 0xf4 ? 0x8f : 0xbf;
    size_t part = 2;

    if (at[0] < 0xc2 || at[0] > 0xf4 || left < 2 || at[1] < low || at[1] > high) {
        return 1;
    }
    while (part < wanted && part < left && (at[part] & 0xc0) == 0x80) {
        part++;
    }
    return part;
}

void evq_utf8_repair(const char *text, size_t bytes, struct evq_buffer *out)
{
    while (bytes > 0) {
        const size_t valid = evq_utf8_valid(text, bytes);
        evq_buffer_append(out, text, valid);
        text += valid;
        bytes -= valid;
        if (bytes > 0) {
            const size_t part = part_of((const unsigned char *)text, bytes);
            evq_buffer_append(out, "\xef\xbf\xbd", 3);
            text += part;
            bytes -= part;
        }
    }
}

uint32_t evq_utf8_code_before(const unsigned char *start, const unsigned char *end,
                              size_t *ret_bytes)
{
    const unsigned char *at = end - 1;

    while (at > start && (*at & 0xc0) == 0x80) {
        at--;
    }
    return evq_utf8_code(at, ret_bytes);
}

size_t evq_utf8_put(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}
