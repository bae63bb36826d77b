/*
 * Capitalises text as Python's str.capitalize() does, in any locale. Any thread.
 */
#ifndef EVQ_WORKER_DATASETS_CAPITALIZE_H
#define EVQ_WORKER_DATASETS_CAPITALIZE_H

#include "shared/base/buffer.h"

/* Appends text with its first character in title case and the others in lower case. One character
 * can become up to three, and a capital sigma has a special form at the end of a word. A byte that
 * is not UTF-8 is kept. */
void evq_capitalize(const char *text, size_t bytes, struct evq_buffer *out);

#endif
