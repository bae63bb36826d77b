/*
 * WikiText as lm-evaluation-harness reads it: pages instead of lines, and text whose tokens were
 * put together again. Any thread.
 */
#ifndef EVQ_WORKER_WIKITEXT_H
#define EVQ_WORKER_WIKITEXT_H

#include "shared/base/buffer.h"

/* Bytes of the first page of text: a page ends, without its newline, before the next heading of the
 * first level (" = Title = "). *ret_next is where the next page begins, bytes at the end. */
size_t evq_wikitext_page(const char *text, size_t bytes, size_t *ret_next);

/* Appends page detokenised: contractions, separators of numbers ("@-@"), punctuation, brackets and
 * quotes, headings; in the harness's order, byte for byte. */
void evq_wikitext_detokenize(const char *page, size_t bytes, struct evq_buffer *out);

#endif
