#include "kernels/cpu/memory.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64

enum evq_status evq_memory_resize(struct evq_memory *memory, struct evq_block *block, size_t bytes,
                                  const char *what, struct evq_error *err)
{
    void *fresh = NULL;

    if (block->data != NULL && block->bytes == bytes) {
        return EVQ_OK;
    }
    evq_memory_release(memory, block);
    if (bytes > memory->bytes_max - memory->bytes) {
        return evq_error_set(err, EVQ_E_NOMEM,
                             "%zu bytes for %s do not fit in memory: %zu held, %zu allowed", bytes,
                             what, memory->bytes, memory->bytes_max);
    }
    if (posix_memalign(&fresh, ALIGNMENT, bytes > 0 ? bytes : 1) != 0) {
        return evq_error_set(err, EVQ_E_NOMEM,
                             "%zu bytes for %s are more than this machine has to give: %zu held",
                             bytes, what, memory->bytes);
    }
    memset(fresh, 0, bytes);
    block->data = fresh;
    block->bytes = bytes;
    memory->bytes += bytes;
    return EVQ_OK;
}

void evq_memory_release(struct evq_memory *memory, struct evq_block *block)
{
    free(block->data);
    memory->bytes -= block->bytes;
    *block = (struct evq_block){0};
}
