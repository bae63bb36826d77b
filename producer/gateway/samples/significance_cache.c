#include "producer/gateway/samples/significance_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define WAYS 8 // An entry has one of so many places.

struct entry {
    XXH128_hash_t key; // All 0: empty.
    uint64_t used;     // When it was written or read last, by the count of calls.
    struct evq_significance_numbers numbers;
};

struct evq_significance_cache {
    pthread_mutex_t lock; // Guards the rest.
    uint64_t calls;
    struct entry entries[EVQ_SIGNIFICANCE_CACHE_ENTRIES];
};

enum evq_status evq_significance_cache_open(struct evq_significance_cache **ret_cache,
                                            struct evq_error *err)
{
    struct evq_significance_cache *cache = calloc(1, sizeof *cache);

    if (cache == NULL || pthread_mutex_init(&cache->lock, NULL) != 0) {
        free(cache);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the numbers of steps");
    }
    *ret_cache = cache;
    return EVQ_OK;
}

void evq_significance_cache_close(struct evq_significance_cache *cache)
{
    if (cache != NULL) {
        (void)pthread_mutex_destroy(&cache->lock);
        free(cache);
    }
}

/* Finds the entry of a key, or the place for it: the one that was used least recently. */
static struct entry *find(struct evq_significance_cache *cache, XXH128_hash_t key)
{
    struct entry *ways =
        &cache->entries[key.low64 % (EVQ_SIGNIFICANCE_CACHE_ENTRIES / WAYS) * WAYS];
    struct entry *oldest = ways;

    for (size_t i = 0; i < WAYS; i++) {
        if (XXH128_isEqual(ways[i].key, key)) {
            return &ways[i];
        }
        oldest = ways[i].used < oldest->used ? &ways[i] : oldest;
    }
    return oldest;
}

bool evq_significance_cache_get(struct evq_significance_cache *cache, const char *text,
                                struct evq_significance_numbers *ret)
{
    const XXH128_hash_t key = XXH3_128bits(text, strlen(text));

    (void)pthread_mutex_lock(&cache->lock);
    struct entry *entry = find(cache, key);
    const bool found = XXH128_isEqual(entry->key, key);
    if (found) {
        entry->used = ++cache->calls;
        *ret = entry->numbers;
    }
    (void)pthread_mutex_unlock(&cache->lock);
    return found;
}

void evq_significance_cache_put(struct evq_significance_cache *cache, const char *text,
                                const struct evq_significance_numbers *numbers)
{
    const XXH128_hash_t key = XXH3_128bits(text, strlen(text));

    (void)pthread_mutex_lock(&cache->lock);
    *find(cache, key) = (struct entry){.key = key, .used = ++cache->calls, .numbers = *numbers};
    (void)pthread_mutex_unlock(&cache->lock);
}
