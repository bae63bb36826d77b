#include "worker/datasets/python_text.h"

#include <stdbool.h>

#include "shared/base/buffer.h"
#include "shared/base/utf8.h"

/* Decodes the code point at the beginning of text; a byte that is not UTF-8 gives 0xfffd. bytes
 * must be above 0. */
static uint32_t code_point(const char *text, size_t bytes, size_t *ret_bytes)
{
    static const unsigned char masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const unsigned char *at = (const unsigned char *)text;

    if (at[0] < 0x80) {
        *ret_bytes = 1;
        return at[0];
    }
    const size_t length = evq_utf8_sequence(text, bytes);
    if (length == 0) {
        *ret_bytes = 1;
        return 0xfffd;
    }
    uint32_t point = at[0] & masks[length];
    for (size_t i = 1; i < length; i++) {
        point = point << 6 | (at[i] & 0x3fu);
    }
    *ret_bytes = length;
    return point;
}

static bool is_space(uint32_t point)
{
    if (point < 0x80) {
        return (point >= 0x09 && point <= 0x0d) || (point >= 0x1c && point <= 0x20);
    }
    return point == 0x85 || point == 0xa0 || point == 0x1680 ||
           (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
           point == 0x202f || point == 0x205f || point == 0x3000;
}

int64_t evq_python_text_words(const char *text, size_t bytes)
{
    int64_t words = 1;
    bool before = false;

    for (size_t at = 0, step = 0; at < bytes; at += step) {
        const bool space = is_space(code_point(text + at, bytes - at, &step));
        words += space && !before;
        before = space;
    }
    return words;
}

int64_t evq_python_text_characters(const char *text, size_t bytes)
{
    int64_t characters = 0;

    for (size_t at = 0, step = 0; at < bytes; at += step) {
        (void)code_point(text + at, bytes - at, &step); // Only the length matters.
        characters++;
    }
    return characters;
}

size_t evq_python_text_trim_end(const char *text, size_t bytes)
{
    size_t end = 0;

    for (size_t at = 0, step = 0; at < bytes; at += step) {
        if (!is_space(code_point(text + at, bytes - at, &step))) {
            end = at + step;
        }
    }
    return end;
}

size_t evq_python_text_leading_space(const char *text, size_t bytes)
{
    size_t at = 0;

    for (size_t step = 0; at < bytes; at += step) {
        if (!is_space(code_point(text + at, bytes - at, &step))) {
            break;
        }
    }
    return at;
}
