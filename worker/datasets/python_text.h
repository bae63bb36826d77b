/*
 * Text measured as Python measures it, so that perplexities and normalised scores equal those of
 * lm-evaluation-harness: whitespace is what str.isspace() says, a character is a code point. A byte
 * that is no UTF-8 is a character of its own, and no space. Any thread.
 */
#ifndef EVQ_WORKER_DATASETS_PYTHON_TEXT_H
#define EVQ_WORKER_DATASETS_PYTHON_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* len(re.split(r"\s+", text)): the runs of whitespace and one. */
int64_t evq_python_text_count(const char *text, size_t bytes);

/* len(text). */
int64_t evq_python_text_characters(const char *text, size_t bytes);

/* Bytes of text without the whitespace at its end, and at its beginning. */
size_t evq_python_text_end(const char *text, size_t bytes);
size_t evq_python_text_begin(const char *text, size_t bytes);

#endif
