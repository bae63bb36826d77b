/*
 * A growing byte buffer. An allocation failure or the limit sets `failed` and makes further appends
 * do nothing, so a writer checks once, at the end. Not for sharing between threads.
 */
#ifndef EVQ_SHARED_BASE_BUFFER_H
#define EVQ_SHARED_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_buffer {
    uint8_t *data; // evq_buffer_string() adds a NUL behind `bytes`.
    size_t bytes;
    size_t capacity;
    size_t bytes_max; // 0: 64 MiB.
    bool failed;
    bool full; // It failed because of the limit, not because memory ran out.
};

void evq_buffer_init(struct evq_buffer *buffer, size_t bytes_max);
void evq_buffer_free(struct evq_buffer *buffer);  // Leaves it initialised and empty.
void evq_buffer_clear(struct evq_buffer *buffer); // Keeps the memory; nothing has failed.
void evq_buffer_append(struct evq_buffer *buffer, const void *data, size_t bytes);
void evq_buffer_text(struct evq_buffer *buffer, const char *text);
void evq_buffer_printf(struct evq_buffer *buffer, const char *format, ...) EVQ_PRINTF(2, 3);
void evq_buffer_integer(struct evq_buffer *buffer, int64_t value); // Appends the decimal digits.
void evq_buffer_consume(struct evq_buffer *buffer, size_t bytes);  // Drops bytes from the front.
/* Appends text as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void evq_buffer_json(struct evq_buffer *buffer, const char *text, size_t bytes);
void evq_buffer_json_text(struct evq_buffer *buffer, const char *text); // The same for a C string.
/* Appends a double so that it reads back exactly (17 digits); NaN, Infinity, -Infinity as JSON
 * strings. */
void evq_buffer_json_double(struct evq_buffer *buffer, double value);
/* The content as a C string ("" when empty, NULL when `failed`); valid until the next change. */
const char *evq_buffer_string(struct evq_buffer *buffer);

#endif
