/*
 * A bump allocator: many small allocations, one free. Not for sharing between threads.
 */
#ifndef EVQ_SHARED_BASE_ARENA_H
#define EVQ_SHARED_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/error.h"

struct evq_arena;

/* bytes_max bounds the total handed out; 0: 64 MiB. NULL when out of memory. */
struct evq_arena *evq_arena_new(size_t bytes_max);
void evq_arena_free(struct evq_arena *arena);  // Accepts NULL.
void evq_arena_reset(struct evq_arena *arena); // Keeps the first block.

/* Zeroed, aligned for any type. NULL when out of memory or past bytes_max. */
void *evq_arena_alloc(struct evq_arena *arena, size_t bytes);
void *evq_arena_array(struct evq_arena *arena, size_t count, size_t item_bytes); // Overflow: NULL.
char *evq_arena_strndup(struct evq_arena *arena, const char *text, size_t bytes);
char *evq_arena_strdup(struct evq_arena *arena, const char *text); // NULL text gives NULL.
char *evq_arena_printf(struct evq_arena *arena, const char *format, ...) EVQ_PRINTF(2, 3);
size_t evq_arena_used(const struct evq_arena *arena);

/* *ret = a * b, a + b; false on overflow, *ret untouched. */
bool evq_size_mul(size_t a, size_t b, size_t *ret);
bool evq_size_add(size_t a, size_t b, size_t *ret);

#endif
