#include "worker/evaluators/native/native_cache.h"

#include <string.h>

/* Moves the entry at index `at` to the front. */
static void move_up(struct evq_native_cache *cache, size_t at)
{
    void *thing = cache->things[at];
    const size_t bytes = cache->bytes[at];

    memmove(cache->things + 1, cache->things, at * sizeof(cache->things[0]));
    memmove(cache->bytes + 1, cache->bytes, at * sizeof(cache->bytes[0]));
    cache->things[0] = thing;
    cache->bytes[0] = bytes;
}

static void drop_from(struct evq_native_cache *cache, size_t at)
{
    for (; at < EVQ_NATIVE_CACHE_MAX && cache->things[at] != NULL; at++) {
        cache->free(cache->things[at]);
        cache->things[at] = NULL;
    }
}

void *evq_native_cache_find(struct evq_native_cache *cache,
                            bool (*same)(const void *thing, const void *wanted), const void *wanted)
{
    for (size_t i = 0; i < EVQ_NATIVE_CACHE_MAX && cache->things[i] != NULL; i++) {
        if (same(cache->things[i], wanted)) {
            move_up(cache, i);
            return cache->things[0];
        }
    }
    return NULL;
}

void evq_native_cache_keep(struct evq_native_cache *cache, void *thing, size_t bytes)
{
    size_t total = 0;
    size_t at = 0;

    drop_from(cache, EVQ_NATIVE_CACHE_MAX - 1);
    while (cache->things[at] != NULL) {
        at++;
    }
    cache->things[at] = thing;
    cache->bytes[at] = bytes;
    move_up(cache, at);
    for (at = 0; at < EVQ_NATIVE_CACHE_MAX && cache->things[at] != NULL; at++) {
        total += cache->bytes[at];
        if (at > 0 && total > EVQ_NATIVE_CACHE_BYTES_MAX) {
            drop_from(cache, at);
        }
    }
}

void evq_native_cache_clear(struct evq_native_cache *cache)
{
    drop_from(cache, 0);
}
