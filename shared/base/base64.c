#include "shared/base/base64.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void evq_base64_encode(const void *data, size_t bytes, char *out)
{
    const uint8_t *at = data;

    for (size_t i = 0; i < bytes; i += 3, out += 4) {
        const size_t left = bytes - i;
        const uint32_t group = (uint32_t)at[i] << 16 | (left > 1 ? (uint32_t)at[i + 1] << 8 : 0) |
                               (left > 2 ? (uint32_t)at[i + 2] : 0);
        out[0] = digits[group >> 18];
        out[1] = digits[group >> 12 & 63];
        out[2] = left > 1 ? digits[group >> 6 & 63] : '=';
        out[3] = left > 2 ? digits[group & 63] : '=';
    }
    *out = '\0';
}

bool evq_base64_decode(const char *text, size_t chars, uint8_t *out, size_t out_bytes,
                       size_t *ret_bytes)
{
    uint32_t group = 0;
    unsigned bits = 0;
    size_t count = 0;

    for (size_t padding = 0; padding < 2 && chars > 0 && text[chars - 1] == '='; padding++) {
        chars--;
    }
    if (chars % 4 == 1) {
        return false;
    }
    for (size_t i = 0; i < chars; i++) {
        const char *digit = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (digit == NULL) {
            return false;
        }
        group = group << 6 | (uint32_t)(digit - digits);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            if (count == out_bytes) {
                return false;
            }
            out[count++] = (uint8_t)(group >> bits);
        }
    }
    *ret_bytes = count;
    return true;
}
