/* Suggests the word that a user may have meant. Any thread. */
#ifndef EVQ_SHARED_BASE_NEAREST_H
#define EVQ_SHARED_BASE_NEAREST_H

#include <stddef.h>

/* Returns the nearest of words by edit distance, or NULL if none is near. */
const char *evq_nearest_word(const char *word, const char *const *words, size_t word_count);
/* Writes "did you mean 'a'? There are a, b, c" for a word that is none of words, or "there is
 * none". Cut to out_bytes. Returns out. */
char *evq_nearest_choice(const char *word, const char *const *words, size_t word_count, char *out,
                         size_t out_bytes);

#endif
