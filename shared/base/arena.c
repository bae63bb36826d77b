#include "shared/base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES_FIRST ((size_t)2048)
#define BLOCK_BYTES_MAX   ((size_t)256 << 10)
#define ARENA_BYTES_MAX   ((size_t)64 << 20)
#define ALIGNMENT         _Alignof(max_align_t)

struct block {
    struct block *next;
    size_t capacity;
    size_t used;
    max_align_t data[];
};

struct evq_arena {
    struct block *first;
    struct block *current;
    size_t bytes_max;
    size_t used;
};

bool evq_size_mul(size_t a, size_t b, size_t *ret)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *ret = product;
    return true;
}

bool evq_size_add(size_t a, size_t b, size_t *ret)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *ret = sum;
    return true;
}

static struct block *block_new(size_t capacity)
{
    size_t total;
    if (!evq_size_add(capacity, sizeof(struct block), &total)) {
        return NULL;
    }
    struct block *block = malloc(total);
    if (block != NULL) {
        block->next = NULL;
        block->capacity = capacity;
        block->used = 0;
    }
    return block;
}

struct evq_arena *evq_arena_new(size_t bytes_max)
{
    struct evq_arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL) {
        return NULL;
    }
    arena->bytes_max = bytes_max != 0 ? bytes_max : ARENA_BYTES_MAX;
    arena->first = block_new(BLOCK_BYTES_FIRST);
    if (arena->first == NULL) {
        free(arena);
        return NULL;
    }
    arena->current = arena->first;
    return arena;
}

static void blocks_free(struct block *block)
{
    while (block != NULL) {
        struct block *next = block->next;
        free(block);
        block = next;
    }
}

void evq_arena_free(struct evq_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    blocks_free(arena->first);
    free(arena);
}

void evq_arena_reset(struct evq_arena *arena)
{
    blocks_free(arena->first->next);
    arena->first->next = NULL;
    arena->first->used = 0;
    arena->current = arena->first;
    arena->used = 0;
}

void *evq_arena_alloc(struct evq_arena *arena, size_t bytes)
{
    size_t rounded;
    if (!evq_size_add(bytes != 0 ? bytes : 1, ALIGNMENT - 1, &rounded)) {
        return NULL;
    }
    rounded -= rounded % ALIGNMENT;
    if (rounded > arena->bytes_max - arena->used) {
        return NULL;
    }
    struct block *block = arena->current;
    if (rounded > block->capacity - block->used) {
        size_t capacity =
            block->capacity < BLOCK_BYTES_MAX / 2 ? block->capacity * 2 : BLOCK_BYTES_MAX;
        struct block *fresh = block_new(rounded > capacity ? rounded : capacity);
        if (fresh == NULL) {
            return NULL;
        }
        block->next = fresh;
        arena->current = fresh;
        block = fresh;
    }
    unsigned char *memory = (unsigned char *)block->data + block->used;
    block->used += rounded;
    arena->used += rounded;
    return memset(memory, 0, rounded);
}

void *evq_arena_array(struct evq_arena *arena, size_t count, size_t item_bytes)
{
    size_t bytes;
    if (!evq_size_mul(count, item_bytes, &bytes)) {
        return NULL;
    }
    return evq_arena_alloc(arena, bytes);
}

char *evq_arena_strndup(struct evq_arena *arena, const char *text, size_t bytes)
{
    size_t total;
    if (!evq_size_add(bytes, 1, &total)) {
        return NULL;
    }
    char *copy = evq_arena_alloc(arena, total);
    if (copy != NULL && bytes > 0) {
        memcpy(copy, text, bytes);
    }
    return copy;
}

char *evq_arena_strdup(struct evq_arena *arena, const char *text)
{
    return text != NULL ? evq_arena_strndup(arena, text, strlen(text)) : NULL;
}

char *evq_arena_printf(struct evq_arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        return NULL;
    }
    char *text = evq_arena_alloc(arena, (size_t)length + 1);
    if (text != NULL) {
        va_start(args, format);
        (void)vsnprintf(text, (size_t)length + 1, format, args); // Measured just now.
        va_end(args);
    }
    return text;
}

size_t evq_arena_used(const struct evq_arena *arena)
{
    return arena->used;
}
