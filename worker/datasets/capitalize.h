/*
 * Text in the case that Python's str.capitalize() gives it, whatever the locale. Any thread.
 */
#ifndef EVQ_WORKER_DATASETS_CAPITALIZE_H
#define EVQ_WORKER_DATASETS_CAPITALIZE_H

#include "shared/base/buffer.h"

/* Appends text with its first character as in a title and the others small: one may become up to
 * three, and a capital sigma ends a word otherwise than it stands in one. A byte that is no UTF-8
 * stays. */
void evq_capitalize(const char *text, size_t bytes, struct evq_buffer *out);

#endif
