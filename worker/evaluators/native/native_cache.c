#include "worker/evaluators/native/native_cache.h"

#include <string.h>

/* Moves the entry at index `at` to the front. */
static void move_up(struct evq_native_cache *warm, size_t at)
{
    void *thing = warm->things[at];
    const size_t bytes = warm->bytes[at];

    memmove(warm->things + 1, warm->things, at * sizeof(warm->things[0]));
    memmove(warm->bytes + 1, warm->bytes, at * sizeof(warm->bytes[0]));
    warm->things[0] = thing;
    warm->bytes[0] = bytes;
}

static void drop_from(struct evq_native_cache *warm, size_t at)
{
    for (; at < EVQ_NATIVE_CACHE_MAX && warm->things[at] != NULL; at++) {
        warm->free(warm->things[at]);
        warm->things[at] = NULL;
    }
}

void *evq_native_cache_find(struct evq_native_cache *warm,
                            bool (*same)(const void *thing, const void *wanted), const void *wanted)
{
    for (size_t i = 0; i < EVQ_NATIVE_CACHE_MAX && warm->things[i] != NULL; i++) {
        if (same(warm->things[i], wanted)) {
            move_up(warm, i);
            return warm->things[0];
        }
    }
    return NULL;
}

void evq_native_cache_keep(struct evq_native_cache *warm, void *thing, size_t bytes)
{
    size_t total = 0;
    size_t at = 0;

    drop_from(warm, EVQ_NATIVE_CACHE_MAX - 1);
    while (warm->things[at] != NULL) {
        at++;
    }
    warm->things[at] = thing;
    warm->bytes[at] = bytes;
    move_up(warm, at);
    for (at = 0; at < EVQ_NATIVE_CACHE_MAX && warm->things[at] != NULL; at++) {
        total += warm->bytes[at];
        if (at > 0 && total > EVQ_NATIVE_CACHE_BYTES_MAX) {
            drop_from(warm, at);
        }
    }
}

void evq_warm_clear(struct evq_native_cache *warm)
{
    drop_from(warm, 0);
}
