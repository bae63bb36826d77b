/*
 * Reads WikiText as lm-evaluation-harness does: by pages instead of lines, and detokenized. Any
 * thread.
 */
#ifndef EVQ_WORKER_DATASETS_WIKITEXT_H
#define EVQ_WORKER_DATASETS_WIKITEXT_H

#include "shared/base/buffer.h"

/* Length of the first page of text. A page ends before the next heading of the first level (" =
 * Title = "), without the newline. *ret_next is where the next page begins; `bytes` at the end. */
size_t evq_wikitext_page(const char *text, size_t bytes, size_t *ret_next);

/* Appends the page detokenized: contractions, separators of numbers ("@-@"), punctuation, brackets,
 * quotes and headings, in the harness's order and equal to the byte. */
void evq_wikitext_detokenize(const char *page, size_t bytes, struct evq_buffer *out);

#endif
