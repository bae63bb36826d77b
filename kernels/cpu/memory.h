/*
 * Counts the memory that a backend holds against its limit. One thread.
 */
#ifndef EVQ_KERNELS_CPU_MEMORY_H
#define EVQ_KERNELS_CPU_MEMORY_H

#include <stddef.h>

#include "shared/base/error.h"

struct evq_memory {
    size_t bytes_max;
    size_t bytes; // Bytes that are held now.
};

struct evq_block {
    void *data; // Aligned to 64 bytes; zeros at first.
    size_t bytes;
};

/* Replaces the block. If it already has that size, its values stay. On failure it is empty.
 * EVQ_E_NOMEM names `what`. */
enum evq_status evq_memory_resize(struct evq_memory *memory, struct evq_block *block, size_t bytes,
                                  const char *what, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_memory_release(struct evq_memory *memory, struct evq_block *block);

#endif
