#include "worker/tokenizer/pretokenizer.h"

#include <string.h>

#include "worker/tokenizer/unicode.h"

#define TAIL       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PUNCTUATED "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define ENGLISH    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define WORDS      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"

/* The patterns as tokenizer.json files spell them. All spellings of one kind match the same texts.
 */
static const struct {
    const char *pattern;
    enum evq_pretokenizer_kind kind;
} patterns[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     EVQ_PRETOKENIZER_GPT2},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     EVQ_PRETOKENIZER_GPT2},
    {ENGLISH WORDS "\\p{N}{1,3}" PUNCTUATED, EVQ_PRETOKENIZER_LLAMA3},
    {"'(?i:[sdmt]|ll|ve|re)|" WORDS "\\p{N}{1,3}" PUNCTUATED, EVQ_PRETOKENIZER_LLAMA3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}"
     "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|" TAIL,
     EVQ_PRETOKENIZER_LLAMA3},
    {ENGLISH WORDS "\\p{N}" PUNCTUATED, EVQ_PRETOKENIZER_QWEN2},
    {ENGLISH
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL,
     EVQ_PRETOKENIZER_QWEN3_5},
};

bool evq_pretokenizer_find(const char *pattern, size_t bytes, enum evq_pretokenizer_kind *ret_kind)
{
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        if (strlen(patterns[i].pattern) == bytes &&
            memcmp(patterns[i].pattern, pattern, bytes) == 0) {
            *ret_kind = patterns[i].kind;
            return true;
        }
    }
    return false;
}

typedef const unsigned char *text_at;

/* EVQ_UNICODE_LETTER, NUMBER, SPACE or OTHER; if `marks` is set, a mark counts as a letter. */
static inline unsigned kind_at(text_at at, bool marks, size_t *ret_bytes)
{
    const unsigned flags = evq_unicode_at(at, ret_bytes);

    return marks && (flags & EVQ_UNICODE_MARK) != 0 ? EVQ_UNICODE_LETTER : flags & EVQ_UNICODE_KIND;
}

/* The end of a run of at most count_max characters of this kind. */
static inline text_at run_end(text_at at, text_at end, unsigned kind, bool marks, size_t count_max)
{
    size_t length = 0;

    while (at < end && count_max > 0 && kind_at(at, marks, &length) == kind) {
        at += length;
        count_max--;
    }
    return at;
}

/* Length of one of 's 't 're 've 'm 'll 'd at the apostrophe `at`; 0: none. */
static size_t contraction(text_at at, text_at end, bool any_case)
{
    const size_t left = (size_t)(end - at);
    const unsigned char fold = any_case ? 0x20 : 0;

    if (left < 2) {
        return 0;
    }
    const unsigned char first = at[1] | fold;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') {
        return 2;
    }
    if (left < 3) {
        return 0;
    }
    if (any_case && at[1] == 0xc5 && at[2] == 0xbf) {
        return 3; // U+017F, the long s, equals s when case is ignored.
    }
    const unsigned char second = at[2] | fold;
    const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                     (first == 'l' && second == 'l');
    return two ? 3 : 0;
}

/* Matches \s+(?!\S)|\s+ at white space: all of it at the end of the text, otherwise all but the
 * last character. */
static text_at spaces_end(text_at at, text_at end)
{
    text_at stop = run_end(at, end, EVQ_UNICODE_SPACE, false, SIZE_MAX);
    size_t last = 0;

    if (stop == end) {
        return stop;
    }
    (void)evq_utf8_code_before(at, stop, &last); // Only the length is needed.
    return stop - last > at ? stop - last : stop;
}

static text_at next_gpt2(text_at at, text_at end)
{
    text_at from = at[0] == ' ' && at + 1 < end ? at + 1 : at;
    size_t length = 0;

    if (at[0] == '\'') {
        const size_t bytes = contraction(at, end, false);
        if (bytes > 0) {
            return at + bytes;
        }
    }
    const unsigned kind = kind_at(from, false, &length);
    if (kind != EVQ_UNICODE_SPACE) {
        return run_end(from + length, end, kind, false, SIZE_MAX);
    }
    return spaces_end(at, end);
}

/* Matches \s*[\r\n]+ first: up to the last line end within the white space. */
static text_at lines_end(text_at at, text_at end)
{
    text_at stop = run_end(at, end, EVQ_UNICODE_SPACE, false, SIZE_MAX);

    while (stop > at && stop[-1] != '\r' && stop[-1] != '\n') {
        stop--;
    }
    return stop > at ? stop : spaces_end(at, end);
}

static text_at punctuation_end(text_at at, text_at end, bool marks)
{
    at = run_end(at, end, EVQ_UNICODE_OTHER, marks, SIZE_MAX);
    while (at < end && (*at == '\r' || *at == '\n')) {
        at++;
    }
    return at;
}

static inline text_at next_words(text_at at, text_at end, size_t digits_max, bool marks)
{
    size_t length = 0;
    size_t after = 0;

    if (at[0] == '\'') {
        const size_t bytes = contraction(at, end, true);
        if (bytes > 0) {
            return at + bytes;
        }
    }
    const unsigned flags = evq_unicode_at(at, &length);
    const unsigned kind = flags & EVQ_UNICODE_KIND;
    text_at from = at + length;
    if (kind == EVQ_UNICODE_LETTER) {
        return run_end(from, end, kind, marks, SIZE_MAX);
    }
    if (kind == EVQ_UNICODE_NUMBER) {
        return run_end(from, end, kind, false, digits_max - 1);
    }
    const unsigned next = from < end ? kind_at(from, marks, &after) : EVQ_UNICODE_SPACE;
    if (next == EVQ_UNICODE_LETTER && at[0] != '\r' && at[0] != '\n') {
        return run_end(from + after, end, next, marks, SIZE_MAX);
    }
    if (marks && (flags & EVQ_UNICODE_MARK) != 0) {
        return from; // There is only a mark, and no letter follows.
    }
    if (kind == EVQ_UNICODE_OTHER) {
        return punctuation_end(from, end, marks);
    }
    if (at[0] == ' ' && next == EVQ_UNICODE_OTHER && from < end) {
        return punctuation_end(from, end, marks);
    }
    return lines_end(at, end);
}

/* A run of characters that have one of the flags, or of characters that have none. one: a character
 * that has one is a piece by itself. */
static text_at next_flagged(text_at at, text_at end, unsigned flags, bool one)
{
    size_t length = 0;
    const bool flagged = (evq_unicode_at(at, &length) & flags) != 0;

    do {
        at += length;
    } while (!(flagged && one) && at < end &&
             ((evq_unicode_at(at, &length) & flags) != 0) == flagged);
    return at;
}

static text_at next_bert(text_at at, text_at end)
{
    size_t length = 0;
    const unsigned flags = evq_unicode_at(at, &length);
    const bool space = (flags & EVQ_UNICODE_KIND) == EVQ_UNICODE_SPACE;

    at += length;
    if ((flags & EVQ_UNICODE_PUNCTUATION) != 0) {
        return at;
    }
    while (at < end) {
        const unsigned next = evq_unicode_at(at, &length);
        if (((next & EVQ_UNICODE_KIND) == EVQ_UNICODE_SPACE) != space ||
            (next & EVQ_UNICODE_PUNCTUATION) != 0) {
            break;
        }
        at += length;
    }
    return at;
}

static bool is_under(text_at at, text_at end)
{
    return end - at >= 3 && at[0] == 0xe2 && at[1] == 0x96 && at[2] == 0x81;
}

static text_at next_under(text_at at, text_at end, bool runs)
{
    bool under = is_under(at, end);

    at += under ? 3 : 1;
    while (at < end) {
        text_at found = memchr(at, 0xe2, (size_t)(end - at));
        if (found == NULL) {
            return end;
        }
        const bool again = is_under(found, end);
        if (again && !(runs && under && found == at)) {
            return found;
        }
        under = again;
        at = found + (again ? 3 : 1);
    }
    return end;
}

size_t evq_pretokenizer_next(enum evq_pretokenizer_kind kind, const char *text, size_t bytes)
{
    text_at at = (text_at)text;
    text_at end = at + bytes;

    switch (kind) {
    case EVQ_PRETOKENIZER_GPT2:
        return (size_t)(next_gpt2(at, end) - at);
    case EVQ_PRETOKENIZER_LLAMA3:
        return (size_t)(next_words(at, end, 3, false) - at);
    case EVQ_PRETOKENIZER_QWEN2:
        return (size_t)(next_words(at, end, 1, false) - at);
    case EVQ_PRETOKENIZER_QWEN3_5:
        return (size_t)(next_words(at, end, 1, true) - at);
    case EVQ_PRETOKENIZER_UNDERS:
        return (size_t)(next_under(at, end, true) - at);
    case EVQ_PRETOKENIZER_UNDER:
        return (size_t)(next_under(at, end, false) - at);
    case EVQ_PRETOKENIZER_DIGIT:
        return (size_t)(next_flagged(at, end, EVQ_UNICODE_DIGIT, true) - at);
    case EVQ_PRETOKENIZER_DIGITS:
        return (size_t)(next_flagged(at, end, EVQ_UNICODE_DIGIT, false) - at);
    case EVQ_PRETOKENIZER_BERT:
        return (size_t)(next_bert(at, end) - at);
    }
    return bytes;
}
