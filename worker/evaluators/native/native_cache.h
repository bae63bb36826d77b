/*
 * A small cache of things that are kept between the jobs of a slot. It is bounded by number and by
 * bytes, and removes the least recently used first. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_CACHE_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#define EVQ_NATIVE_CACHE_MAX       8
#define EVQ_NATIVE_CACHE_BYTES_MAX ((size_t)4 << 30) // The entry in use may be larger than this.

struct evq_native_cache { // Starts with `free` set and everything else zero.
    void (*free)(void *thing);
    void *things[EVQ_NATIVE_CACHE_MAX];
    size_t bytes[EVQ_NATIVE_CACHE_MAX];
};

/* Finds the thing that same() accepts and moves it to the front; NULL: there is none. */
void *evq_native_cache_find(struct evq_native_cache *cache,
                            bool (*same)(const void *thing, const void *wanted),
                            const void *wanted);

/* Takes over the thing as the first entry. Others may be freed. */
void evq_native_cache_keep(struct evq_native_cache *cache, void *thing, size_t bytes);
void evq_native_cache_clear(struct evq_native_cache *cache);

#endif
