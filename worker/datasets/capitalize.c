#include "worker/datasets/capitalize.h"

#define CAPITAL_SIGMA 0x3a3u
#define SMALL_SIGMA   0x3c3u
#define FINAL_SIGMA   0x3c2u

struct case_range { // Every step-th character from first to last becomes itself plus delta.
    uint32_t first, last;
    uint32_t step;
    int32_t delta;
};

struct case_long {
    uint32_t from;
    uint32_t title; // 1: title case; 0: lower case.
    uint32_t to[3]; // Ends with 0.
};

struct case_span {
    uint32_t first, last;
};

#include "worker/datasets/capitalize_table.inc"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Decodes the character at text. A byte that is not UTF-8 gives *ret_bytes 1 and has no case. */
static uint32_t character(const char *text, size_t bytes, size_t *ret_bytes)
{
    static const unsigned char masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const unsigned char *at = (const unsigned char *)text;
    const size_t length = evq_buffer_utf8(text, bytes);

    *ret_bytes = length > 0 ? length : 1;
    uint32_t code = length > 0 ? at[0] & masks[length] : 0xfffd;
    for (size_t i = 1; i < length; i++) {
        code = code << 6 | (at[i] & 0x3fu);
    }
    return code;
}

static void append(struct evq_buffer *out, uint32_t code)
{
    const uint8_t bytes[] = {(uint8_t)(0xf0 | code >> 18), (uint8_t)(0x80 | (code >> 12 & 0x3f)),
                             (uint8_t)(0x80 | (code >> 6 & 0x3f)), (uint8_t)(0x80 | (code & 0x3f))};
    const uint8_t three = (uint8_t)(0xe0 | code >> 12);
    const uint8_t two = (uint8_t)(0xc0 | code >> 6);
    const uint8_t one = (uint8_t)code;

    if (code < 0x80) {
        evq_buffer_append(out, &one, 1);
    } else if (code < 0x800) {
        evq_buffer_append(out, &two, 1);
        evq_buffer_append(out, bytes + 3, 1);
    } else if (code < 0x10000) {
        evq_buffer_append(out, &three, 1);
        evq_buffer_append(out, bytes + 2, 2);
    } else {
        evq_buffer_append(out, bytes, 4);
    }
}

static bool within(const struct case_span *spans, size_t count, uint32_t code)
{
    size_t low = 0;

    while (count > low) {
        const size_t middle = low + (count - low) / 2;
        if (code > spans[middle].last) {
            low = middle + 1;
        } else if (code < spans[middle].first) {
            count = middle;
        } else {
            return true;
        }
    }
    return false;
}

static bool is_ignorable(uint32_t code)
{
    return within(ignorable_spans, COUNT(ignorable_spans), code);
}

static bool is_cased(uint32_t code)
{
    return within(cased_spans, COUNT(cased_spans), code);
}

/* Whether a cased letter is right before `at`, ignoring signs such as the apostrophe. */
static bool cased_before(const char *text, size_t at)
{
    while (at > 0) {
        size_t from = at - 1;
        size_t step = 0;
        while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80) {
            from--;
        }
        const uint32_t code = character(text + from, at - from, &step);
        if (!is_ignorable(code)) {
            return is_cased(code);
        }
        at = from;
    }
    return false;
}

static bool cased_behind(const char *text, size_t bytes)
{
    for (size_t at = 0, step = 0; at < bytes; at += step) {
        const uint32_t code = character(text + at, bytes - at, &step);
        if (!is_ignorable(code)) {
            return is_cased(code);
        }
    }
    return false;
}

static uint32_t moved(const struct case_range *ranges, size_t count, uint32_t code)
{
    // This rarely goes beyond ASCII.
    for (size_t i = 0; i < count && ranges[i].first <= code; i++) {
        if (code <= ranges[i].last && (code - ranges[i].first) % ranges[i].step == 0) {
            return (uint32_t)((int64_t)code + ranges[i].delta);
        }
    }
    return code;
}

static void append_cased(struct evq_buffer *out, uint32_t code, bool title)
{
    for (size_t i = 0; i < COUNT(long_cases); i++) {
        if (long_cases[i].from == code && (long_cases[i].title != 0) == title) {
            for (size_t k = 0; k < 3 && long_cases[i].to[k] != 0; k++) {
                append(out, long_cases[i].to[k]);
            }
            return;
        }
    }
    append(out, title ? moved(title_ranges, COUNT(title_ranges), code)
                      : moved(lower_ranges, COUNT(lower_ranges), code));
}

void evq_capitalize(const char *text, size_t bytes, struct evq_buffer *out)
{
    for (size_t at = 0, step = 0; at < bytes; at += step) {
        const uint32_t code = character(text + at, bytes - at, &step);
        const bool title = at == 0;
        if (code < 0x80) {
            const bool small = code >= 'a' && code <= 'z';
            const bool large = code >= 'A' && code <= 'Z';
            append(out, title && small ? code - 32 : !title && large ? code + 32 : code);
        } else if (step == 1) {
            evq_buffer_append(out, text + at, 1); // The byte is not UTF-8.
        } else if (code == CAPITAL_SIGMA && !title) {
            const bool ends =
                cased_before(text, at) && !cased_behind(text + at + step, bytes - at - step);
            append(out, ends ? FINAL_SIGMA : SMALL_SIGMA);
        } else {
            append_cased(out, code, title);
        }
    }
}
