#include "worker/tokenizer/utf8.h"

#include <string.h>

/* Length of the valid sequence at `at`, or 0. In that case, *ret_part is how many of its bytes
 * could begin a sequence (at least 1); a decoder replaces these together. */
static size_t sequence(const unsigned char *at, size_t left, size_t *ret_part)
{
    const unsigned char lead = at[0];
    const size_t wanted = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    // The range of the second byte excludes overlong forms, surrogates, and code points above
    // U+10FFFF.
    const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;

    *ret_part = 1;
    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xc2 || lead > 0xf4 || left < 2 || at[1] < low || at[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < wanted; i++) {
        *ret_part = i;
        if (i >= left || (at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return wanted;
}

size_t evq_utf8_valid(const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t i = 0;
    size_t part = 0;

    while (i < bytes) {
        uint64_t block = 0;
        if (bytes - i >= sizeof(block)) {
            memcpy(&block, at + i, sizeof(block));
            if ((block & 0x8080808080808080u) == 0) {
                i += sizeof(block);
                continue;
            }
        }
        const size_t length = sequence(at + i, bytes - i, &part);
        if (length == 0) {
            break;
        }
        i += length;
    }
    return i;
}

void evq_utf8_repair(const char *text, size_t bytes, struct evq_buffer *out)
{
    while (bytes > 0) {
        const size_t valid = evq_utf8_valid(text, bytes);
        evq_buffer_append(out, text, valid);
        text += valid;
        bytes -= valid;
        if (bytes > 0) {
            size_t part = 1;
            // The result 0 means that it is not valid.
            (void)sequence((const unsigned char *)text, bytes, &part);
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
