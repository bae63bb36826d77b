#include "shared/base/utf8.h"

#include <stdint.h>
#include <string.h>

size_t evq_utf8_sequence(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    if (bytes == 0) {
        return 0;
    }
    if (at[0] < 0x80) {
        return 1;
    }
    // Table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing past U+10FFFF.
    size_t length = at[0] >= 0xc2 && at[0] <= 0xdf   ? 2
                    : at[0] >= 0xe0 && at[0] <= 0xef ? 3
                    : at[0] >= 0xf0 && at[0] <= 0xf4 ? 4
                                                     : 0;
    if (length == 0 || length > bytes) {
        return 0;
    }
    uint8_t low = at[0] == 0xe0 ? 0xa0 : at[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t high = at[0] == 0xed ? 0x9f : at[0] == 0xf4 ? 0x8f : 0xbf;
    if (at[1] < low || at[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if (at[i] < 0x80 || at[i] > 0xbf) {
            return 0;
        }
    }
    return length;
}

size_t evq_utf8_valid(const char *text, size_t bytes)
{
    const unsigned char *data = (const unsigned char *)text;
    size_t at = 0;
    size_t length = 1;

    while (at < bytes && length > 0) {
        uint64_t word = ~UINT64_C(0);
        // Text is mostly ASCII, so eight bytes are checked at once.
        if (bytes - at >= sizeof(word)) {
            memcpy(&word, data + at, sizeof(word));
        }
        length = (word & UINT64_C(0x8080808080808080)) == 0
                     ? sizeof(word)
                     : evq_utf8_sequence(data + at, bytes - at);
        at += length;
    }
    return at;
}
