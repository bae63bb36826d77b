#include "shared/base/nearest.h"

#include <stdio.h>
#include <string.h>

#define WORD_BYTES_MAX 48

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edit distance in which swapping two neighbours counts once, because that is the usual typing
 * error. */
static size_t distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t rows[3][WORD_BYTES_MAX + 1];
    size_t *before = rows[0];
    size_t *last = rows[1];
    size_t *now = rows[2];

    for (size_t j = 0; j <= b_bytes; j++) {
        last[j] = j;
        before[j] = j;
    }
    for (size_t i = 1; i <= a_bytes; i++) {
        now[0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            size_t change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            now[j] = least(change, least(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                now[j] = least(now[j], before[j - 2] + 1);
            }
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[b_bytes];
}

const char *evq_nearest_word(const char *word, const char *const *words, size_t word_count)
{
    const char *best = NULL;
    size_t bytes = strlen(word);
    // One more than what still looks like a typing error.
    size_t best_distance = bytes < 3 ? 2 : bytes / 3 + 2;

    if (bytes > WORD_BYTES_MAX) {
        return NULL;
    }
    for (size_t i = 0; i < word_count; i++) {
        size_t other = strlen(words[i]);
        if (other > WORD_BYTES_MAX || other == 0) {
            continue;
        }
        size_t found = distance(word, bytes, words[i], other);
        if (found < best_distance && found < other) {
            best_distance = found;
            best = words[i];
        }
    }
    return best;
}

char *evq_nearest_choice(const char *word, const char *const *words, size_t word_count, char *out,
                         size_t out_bytes)
{
    const char *near = evq_nearest_word(word, words, word_count);
    size_t used = 0;

    if (word_count == 0) {
        (void)snprintf(out, out_bytes, "there is none");
        return out;
    }
    int bytes = near != NULL ? snprintf(out, out_bytes, "did you mean '%s'? There are ", near)
                             : snprintf(out, out_bytes, "there are ");
    for (size_t i = 0; i < word_count; i++) {
        used += bytes > 0 ? (size_t)bytes : 0;
        if (used >= out_bytes) {
            break;
        }
        bytes = snprintf(out + used, out_bytes - used, "%s%s", i > 0 ? ", " : "", words[i]);
    }
    if (used + (bytes > 0 ? (size_t)bytes : 0) >= out_bytes && out_bytes > 4) {
        memcpy(out + out_bytes - 4, "...", 4);
    }
    return out;
}
