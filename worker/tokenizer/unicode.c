#include "worker/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

struct evq_unicode_pair { // A canonical decomposition. second is 0 if one character becomes one.
    uint32_t code, first, second;
};

struct evq_unicode_class { // A combining class other than 0.
    uint32_t code, combining;
};

struct evq_unicode_range { // Every step-th of these characters has a small letter.
    int32_t first, last, step, distance;
};

#include "worker/tokenizer/unicode_table.inc"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Hangul syllables are composed by arithmetic: see section 3.12 of the Unicode standard. */
#define HANGUL_S       0xac00u
#define HANGUL_L       0x1100u
#define HANGUL_V       0x1161u
#define HANGUL_T       0x11a7u
#define HANGUL_L_COUNT 19u
#define HANGUL_V_COUNT 21u
#define HANGUL_T_COUNT 28u
#define HANGUL_S_COUNT (HANGUL_L_COUNT * HANGUL_V_COUNT * HANGUL_T_COUNT)

#define CLASS_SHIFT 24 // A work item has the combining class above the code point.
#define CODE_MASK   0xffffffu

static int by_code(const void *key, const void *item)
{
    const uint32_t code = *(const uint32_t *)key;
    const uint32_t other = *(const uint32_t *)item; // The entries of both tables begin with it.

    return (code > other) - (code < other);
}

static uint32_t combining_class(uint32_t code)
{
    if ((evq_unicode_of(code) & EVQ_UNICODE_NFD) == 0) {
        return 0;
    }
    const struct evq_unicode_class *found =
        bsearch(&code, classes, COUNT(classes), sizeof(classes[0]), by_code);
    return found != NULL ? found->combining : 0;
}

static void push(uint32_t code, struct evq_buffer *work)
{
    const uint32_t item = code | combining_class(code) << CLASS_SHIFT;
    evq_buffer_append(work, &item, sizeof(item));
}

static void decompose(uint32_t code, struct evq_buffer *work)
{
    uint32_t tails[8]; // No decomposition is deeper than this.
    size_t count = 0;

    const uint32_t syllable = code - HANGUL_S;
    if (syllable < HANGUL_S_COUNT) {
        push(HANGUL_L + syllable / (HANGUL_V_COUNT * HANGUL_T_COUNT), work);
        push(HANGUL_V + syllable / HANGUL_T_COUNT % HANGUL_V_COUNT, work);
        if (syllable % HANGUL_T_COUNT != 0) {
            push(HANGUL_T + syllable % HANGUL_T_COUNT, work);
        }
        return;
    }
    for (;;) { // Only the first character of a pair decomposes further.
        const struct evq_unicode_pair *found = bsearch(&code, decompositions, COUNT(decompositions),
                                                       sizeof(decompositions[0]), by_code);
        if (found == NULL || count == COUNT(tails)) {
            break;
        }
        if (found->second != 0) {
            tails[count++] = found->second;
        }
        code = found->first;
    }
    push(code, work);
    while (count > 0) {
        push(tails[--count], work);
    }
}

/* The character that both compose to, or 0. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    size_t low = 0;
    size_t high = COUNT(compositions);

    if (first - HANGUL_L < HANGUL_L_COUNT && second - HANGUL_V < HANGUL_V_COUNT) {
        return HANGUL_S +
               ((first - HANGUL_L) * HANGUL_V_COUNT + second - HANGUL_V) * HANGUL_T_COUNT;
    }
    if (first - HANGUL_S < HANGUL_S_COUNT && (first - HANGUL_S) % HANGUL_T_COUNT == 0 &&
        second - HANGUL_T - 1 < HANGUL_T_COUNT - 1) {
        return first + second - HANGUL_T;
    }
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const struct evq_unicode_pair *pair = &decompositions[compositions[middle]];
        if (pair->first < first || (pair->first == first && pair->second < second)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == COUNT(compositions)) {
        return 0;
    }
    const struct evq_unicode_pair *pair = &decompositions[compositions[low]];
    return pair->first == first && pair->second == second ? pair->code : 0;
}

/* Sorts by class and keeps the order within a class. It counts instead of comparing, so that a run
 * of marks costs time in proportion to its length. */
static void sort_marks(uint32_t *items, size_t count, uint32_t *spare)
{
    size_t starts[257] = {0};

    for (size_t i = 0; i < count; i++) {
        starts[(items[i] >> CLASS_SHIFT) + 1]++;
    }
    for (size_t i = 1; i < COUNT(starts); i++) {
        starts[i] += starts[i - 1];
    }
    for (size_t i = 0; i < count; i++) {
        spare[starts[items[i] >> CLASS_SHIFT]++] = items[i];
    }
    memcpy(items, spare, count * sizeof(*items));
}

static void order(uint32_t *items, size_t count, uint32_t *spare)
{
    for (size_t i = 0; i < count;) {
        size_t end = i;
        bool sorted = true;
        while (end < count && items[end] >> CLASS_SHIFT != 0) {
            sorted =
                sorted && (end == i || items[end - 1] >> CLASS_SHIFT <= items[end] >> CLASS_SHIFT);
            end++;
        }
        if (!sorted) {
            sort_marks(items + i, end - i, spare);
        }
        i = end + 1;
    }
}

/* Joins what composes, in place, and returns the new count. See D117 of the Unicode standard. */
static size_t join(uint32_t *items, size_t count)
{
    size_t kept = 0;
    size_t starter = SIZE_MAX;
    uint32_t class_before = 0; // Class of the last kept item after the starter; 0: none.

    for (size_t i = 0; i < count; i++) {
        const uint32_t class = items[i] >> CLASS_SHIFT;
        const bool adjacent = starter != SIZE_MAX && kept == starter + 1;
        if (starter != SIZE_MAX && (adjacent || class_before < class)) {
            const uint32_t joined = compose(items[starter] & CODE_MASK, items[i] & CODE_MASK);
            if (joined != 0) {
                items[starter] = joined; // All composed characters have class 0.
                continue;
            }
        }
        if (class == 0) {
            starter = kept;
        }
        class_before = class;
        items[kept++] = items[i];
    }
    return kept;
}

/* Writes the items in work, which are followed by as much room for sorting. */
static void flush(unsigned form, struct evq_buffer *work, struct evq_buffer *out)
{
    const size_t count = work->bytes / sizeof(uint32_t);
    char text[4];

    for (size_t i = 0; i < count; i++) {
        evq_buffer_append(work, "\0\0\0", sizeof(uint32_t));
    }
    if (work->failed) {
        return;
    }
    uint32_t *items = (uint32_t *)(void *)work->data;
    order(items, count, items + count);
    const size_t kept = form == EVQ_UNICODE_NFC ? join(items, count) : count;
    for (size_t i = 0; i < kept; i++) {
        evq_buffer_append(out, text, evq_utf8_put(items[i] & CODE_MASK, text));
    }
    evq_buffer_clear(work);
}

size_t evq_unicode_form_same(unsigned form, const char *text, size_t bytes)
{
    const unsigned char *start = (const unsigned char *)text;
    size_t before = 0; // Where the last character began.
    size_t i = 0;

    while (i < bytes) {
        uint64_t block = 0;
        size_t length = 0;
        if (bytes - i >= sizeof(block)) {
            memcpy(&block, start + i, sizeof(block));
            if ((block & 0x8080808080808080u) == 0) {
                i += sizeof(block);
                before = i - 1;
                continue;
            }
        }
        if ((evq_unicode_at(start + i, &length) & form) != 0) {
            return before; // The character may join with the one before it.
        }
        before = i;
        i += length;
    }
    return bytes;
}

void evq_unicode_form(unsigned form, const char *text, size_t bytes, struct evq_buffer *work,
                      struct evq_buffer *out)
{
    evq_buffer_clear(work);
    while (bytes > 0 && !work->failed && !out->failed) {
        const size_t same = evq_unicode_form_same(form, text, bytes);
        evq_buffer_append(out, text, same);
        // Starts at the character before, and takes everything that may change, up to the next
        // character that nothing joins with.
        size_t i = same;
        bool first = true;
        while (i < bytes) {
            size_t length = 0;
            const unsigned char *at = (const unsigned char *)text + i;
            if ((evq_unicode_at(at, &length) & form) == 0 && !first) {
                break;
            }
            decompose(evq_utf8_code(at, &length), work);
            first = false;
            i += length;
        }
        flush(form, work, out);
        text += i;
        bytes -= i;
    }
}

/* Writes the small letters of the character to out, which has room for 4 bytes. */
static size_t lower_of(uint32_t code, char *out)
{
    size_t low = 0;
    size_t high = COUNT(lower_case) - 1;

    if (code == 0x130) { // The only character that becomes two.
        memcpy(out, "i\xcc\x87", 3);
        return 3;
    }
    while (low < high) { // The last range that begins at the character or before it.
        const size_t middle = (low + high + 1) / 2;
        if ((uint32_t)lower_case[middle].first <= code) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return evq_utf8_put((uint32_t)((int32_t)code + lower_case[low].distance), out);
}

/* Writes what the step makes of the character to out, which has room for 6 bytes; false: the step
 * does not change it. */
static bool changed(enum evq_unicode_step step, const char *at, size_t length, unsigned flags,
                    char *out, size_t *ret_bytes)
{
    *ret_bytes = 0;
    switch (step) {
    case EVQ_UNICODE_CLEAN:
        out[0] = ' ';
        *ret_bytes = (flags & EVQ_UNICODE_CONTROL) == 0;
        return *ret_bytes == 0 || (flags & EVQ_UNICODE_KIND) == EVQ_UNICODE_SPACE;
    case EVQ_UNICODE_APART:
        out[0] = ' ';
        memcpy(out + 1, at, length);
        out[length + 1] = ' ';
        *ret_bytes = length + 2;
        return (flags & EVQ_UNICODE_CJK) != 0;
    case EVQ_UNICODE_STRIP_NONSPACING:
        return (flags & EVQ_UNICODE_NONSPACING) != 0;
    case EVQ_UNICODE_STRIP_ACCENTS:
        return (flags & EVQ_UNICODE_ACCENT) != 0;
    case EVQ_UNICODE_LOWERCASE:
        if ((flags & EVQ_UNICODE_CASED) == 0) {
            return false;
        }
        *ret_bytes = lower_of(evq_utf8_code((const unsigned char *)at, &length), out);
        return true;
    }
    return false;
}

void evq_unicode_map(enum evq_unicode_step step, const char *text, size_t bytes,
                     struct evq_buffer *out)
{
    size_t appended = 0; // How much of text is in out.
    size_t length = 0;
    size_t to_bytes = 0;
    char to[8];

    for (size_t i = 0; i < bytes; i += length) {
        const unsigned flags = evq_unicode_at((const unsigned char *)text + i, &length);
        if (changed(step, text + i, length, flags, to, &to_bytes)) {
            evq_buffer_append(out, text + appended, i - appended);
            evq_buffer_append(out, to, to_bytes);
            appended = i + length;
        }
    }
    evq_buffer_append(out, text + appended, bytes - appended);
}
