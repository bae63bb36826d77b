/* Checks UTF-8: no overlong forms, no surrogates, nothing past U+10FFFF. Any thread. */
#ifndef EVQ_SHARED_BASE_UTF8_H
#define EVQ_SHARED_BASE_UTF8_H

#include <stddef.h>

/* Length of the UTF-8 sequence at the start of data, 1 to 4. 0: bytes is 0, or it is not UTF-8. */
size_t evq_utf8_sequence(const void *data, size_t bytes);

/* Length of the valid UTF-8 at the beginning of text; bytes: all of it. */
size_t evq_utf8_valid(const char *text, size_t bytes);

#endif
