/*
 * Measures text as Python does, so that perplexities and normalised scores equal those of
 * lm-evaluation-harness. Whitespace is what str.isspace() accepts, and a character is a code point.
 * A byte that is not UTF-8 counts as one character that is not a space. Any thread.
 */
#ifndef EVQ_WORKER_DATASETS_PYTHON_TEXT_H
#define EVQ_WORKER_DATASETS_PYTHON_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* len(re.split(r"\s+", text)): the number of whitespace runs plus one. */
int64_t evq_python_text_words(const char *text, size_t bytes);

/* len(text). */
int64_t evq_python_text_characters(const char *text, size_t bytes);

/* Length of text without the whitespace at its end; the other gives the whitespace at its
 * beginning. */
size_t evq_python_text_trim_end(const char *text, size_t bytes);
size_t evq_python_text_leading_space(const char *text, size_t bytes);

#endif
