#include "worker/tokenizer/pretokenizer.h"

#include <string.h>

#include "worker/tokenizer/unicode.h"

#define TAIL       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PUNCTUATED "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define ENGLISH    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define WORDS      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define TITLE      "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL      "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define ANY        "[^\\r\\n\\p{L}\\p{N}]?"
#define BEHIND     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define SLASHED    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL

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
    {ENGLISH WORDS "\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" TAIL, EVQ_PRETOKENIZER_SEED},
    {ENGLISH WORDS "\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" TAIL, EVQ_PRETOKENIZER_SEED},
    {ANY TITLE "*" SMALL "+" BEHIND "|" ANY TITLE "+" SMALL "*" BEHIND "|\\p{N}{1,3}" SLASHED,
     EVQ_PRETOKENIZER_O200K},
    {ANY TITLE "*" SMALL "+|" ANY TITLE "+" SMALL "*|\\p{N}" SLASHED, EVQ_PRETOKENIZER_TEKKEN},
    {"[!\"#$%&'()*+,\\-./"
     ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
     "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL,
     EVQ_PRETOKENIZER_DEEPSEEK},
    {"\\p{N}{1,3}", EVQ_PRETOKENIZER_NUMBERS},
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", EVQ_PRETOKENIZER_KANA},
};

/* Whether text is the pattern. A file can have a line end itself where the pattern has \\r or \\n.
 */
static bool is_pattern(const char *pattern, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        const char *escaped = text[i] == '\r' ? "\\r" : text[i] == '\n' ? "\\n" : NULL;
        if (escaped != NULL && strncmp(pattern, escaped, 2) == 0) {
            pattern += 2;
        } else if (*pattern == '\0' || *pattern++ != text[i]) {
            return false;
        }
    }
    return *pattern == '\0';
}

bool evq_pretokenizer_find(const char *pattern, size_t bytes, enum evq_pretokenizer_kind *ret_kind)
{
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        if (is_pattern(patterns[i].pattern, pattern, bytes)) {
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

static text_at line_ends_end(text_at at, text_at end)
{
    while (at < end && (*at == '\r' || *at == '\n')) {
        at++;
    }
    return at;
}

/* The end of a run of punctuation. lines: the line ends that follow belong to it. */
static text_at punctuation_end(text_at at, text_at end, bool marks, bool lines)
{
    at = run_end(at, end, EVQ_UNICODE_OTHER, marks, SIZE_MAX);
    return lines ? line_ends_end(at, end) : at;
}

static inline text_at next_words(text_at at, text_at end, size_t digits_max, bool marks, bool lines)
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
        return punctuation_end(from, end, marks, lines);
    }
    if (at[0] == ' ' && next == EVQ_UNICODE_OTHER && from < end) {
        return punctuation_end(from, end, marks, lines);
    }
    return lines_end(at, end);
}

static bool is_small(unsigned flags) // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
{
    return (flags & EVQ_UNICODE_MARK) != 0 ||
           ((flags & EVQ_UNICODE_KIND) == EVQ_UNICODE_LETTER && (flags & EVQ_UNICODE_UPPER) == 0);
}

static bool is_title(unsigned flags) // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
{
    return (flags & EVQ_UNICODE_MARK) != 0 ||
           ((flags & EVQ_UNICODE_KIND) == EVQ_UNICODE_LETTER && (flags & EVQ_UNICODE_LOWER) == 0);
}

/* Matches TITLE*SMALL+, or, if small is false, TITLE+SMALL*. The second is tried only after the
 * first found nothing. NULL: no match. */
static text_at cased_end(text_at at, text_at end, bool small)
{
    text_at stop = at;
    text_at last = NULL; // The end of the last character that is both a title and a small one.
    size_t length = 0;

    for (; stop < end; stop += length) {
        const unsigned flags = evq_unicode_at(stop, &length);
        if (!is_title(flags)) {
            break;
        }
        last = is_small(flags) ? stop + length : last;
    }
    if (!small) {
        return stop > at ? stop : NULL;
    }
    text_at low = stop;
    while (low < end && is_small(evq_unicode_at(low, &length))) {
        low += length;
    }
    return low > stop ? low : last;
}

/* The piece of O200K and TEKKEN. behind: a contraction such as 's belongs to the word before it. */
static text_at next_cased(text_at at, text_at end, size_t digits_max, bool behind)
{
    size_t length = 0;
    const unsigned kind = kind_at(at, false, &length);
    text_at from = at + length;
    const bool any =
        (kind == EVQ_UNICODE_OTHER || kind == EVQ_UNICODE_SPACE) && at[0] != '\r' && at[0] != '\n';

    if (kind == EVQ_UNICODE_NUMBER) {
        return run_end(from, end, kind, false, digits_max - 1);
    }
    for (size_t small = 2; small-- > 0;) {
        text_at word = any ? cased_end(from, end, small == 1) : NULL;
        word = word != NULL ? word : cased_end(at, end, small == 1);
        if (word != NULL) {
            return behind && word < end && *word == '\'' ? word + contraction(word, end, true)
                                                         : word;
        }
    }
    if (kind == EVQ_UNICODE_OTHER ||
        (at[0] == ' ' && from < end && kind_at(from, false, &length) == EVQ_UNICODE_OTHER)) {
        at = run_end(from, end, EVQ_UNICODE_OTHER, false, SIZE_MAX);
        while (at < end && (*at == '\r' || *at == '\n' || *at == '/')) {
            at++;
        }
        return at;
    }
    return lines_end(at, end);
}

static text_at letters_end(text_at at, text_at end) // [\p{L}\p{M}]*
{
    return run_end(at, end, EVQ_UNICODE_LETTER, true, SIZE_MAX);
}

/* Matches one alternative of DEEPSEEK; NULL: no match. */
static text_at deepseek_end(text_at at, text_at end)
{
    size_t length = 0;
    size_t after = 0;
    const unsigned flags = evq_unicode_at(at, &length);
    const unsigned kind = flags & EVQ_UNICODE_KIND;
    text_at from = at + length;
    text_at stop = from;

    if (at[0] < 0x80 && (flags & EVQ_UNICODE_SYMBOL) != 0) {
        while (stop < end && (*stop | 0x20) >= 'a' && (*stop | 0x20) <= 'z') {
            stop++;
        }
        if (stop > from) {
            return stop;
        }
    }
    if (kind == EVQ_UNICODE_LETTER || (flags & EVQ_UNICODE_MARK) != 0) {
        return letters_end(from, end);
    }
    if ((flags & EVQ_UNICODE_SYMBOL) == 0 && at[0] != '\r' && at[0] != '\n') {
        stop = letters_end(from, end);
        if (stop > from) {
            return stop;
        }
    }
    stop = at[0] == ' ' ? from : at;
    from = stop;
    while (stop < end && (evq_unicode_at(stop, &after) & EVQ_UNICODE_SYMBOL) != 0) {
        stop += after;
    }
    if (stop > from) {
        return line_ends_end(stop, end);
    }
    return kind == EVQ_UNICODE_SPACE ? lines_end(at, end) : NULL;
}

static text_at next_deepseek(text_at at, text_at end)
{
    text_at match = deepseek_end(at, end);
    size_t length = 0;

    // The text up to the next match is a piece.
    while (match == NULL && at < end) {
        (void)evq_unicode_at(at, &length); // Only the length is needed.
        at += length;
        if (at < end && deepseek_end(at, end) != NULL) {
            break;
        }
    }
    return match != NULL ? match : at;
}

static text_at next_numbers(text_at at, text_at end)
{
    size_t length = 0;

    if (kind_at(at, false, &length) == EVQ_UNICODE_NUMBER) {
        return run_end(at, end, EVQ_UNICODE_NUMBER, false, 3);
    }
    while (at < end && kind_at(at, false, &length) != EVQ_UNICODE_NUMBER) {
        at += length;
    }
    return at;
}

static bool is_kana(text_at at, size_t *ret_bytes)
{
    const uint32_t code = evq_utf8_code(at, ret_bytes);

    return (code >= 0x4e00 && code <= 0x9fa5) || (code >= 0x3040 && code <= 0x30ff);
}

static text_at next_kana(text_at at, text_at end)
{
    size_t length = 0;
    const bool kana = is_kana(at, &length);

    do {
        at += length;
    } while (at < end && is_kana(at, &length) == kana);
    return at;
}

/* The piece is a run of characters that have one of the flags, or a run of characters that have
 * none. one: each character with a flag is a piece by itself. */
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
        return (size_t)(next_words(at, end, 3, false, true) - at);
    case EVQ_PRETOKENIZER_QWEN2:
        return (size_t)(next_words(at, end, 1, false, true) - at);
    case EVQ_PRETOKENIZER_QWEN3_5:
        return (size_t)(next_words(at, end, 1, true, true) - at);
    case EVQ_PRETOKENIZER_SEED:
        return (size_t)(next_words(at, end, 1, false, false) - at);
    case EVQ_PRETOKENIZER_O200K:
        return (size_t)(next_cased(at, end, 3, true) - at);
    case EVQ_PRETOKENIZER_TEKKEN:
        return (size_t)(next_cased(at, end, 1, false) - at);
    case EVQ_PRETOKENIZER_DEEPSEEK:
        return (size_t)(next_deepseek(at, end) - at);
    case EVQ_PRETOKENIZER_NUMBERS:
        return (size_t)(next_numbers(at, end) - at);
    case EVQ_PRETOKENIZER_KANA:
        return (size_t)(next_kana(at, end) - at);
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
