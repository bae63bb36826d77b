#include "producer/gateway/http/rate.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"

#define BUCKETS 1024 // A power of two.
#define PLACES  4    // Number of buckets that a client may use, from its own on.
#define MILLI   1000

struct bucket {
    uint64_t client; // Hash of its name, with a key of this process; 0: free.
    int64_t level;   // Thousandths of requests that are left.
    int64_t at_ms;
};

struct evq_rate {
    uint32_t per_second;
    int64_t level_max;
    uint64_t key;
    struct bucket buckets[BUCKETS];
};

struct evq_rate *evq_rate_new(uint32_t per_second, uint32_t burst)
{
    struct evq_rate *rate = calloc(1, sizeof *rate);
    if (rate != NULL) {
        rate->per_second = per_second;
        rate->level_max = (int64_t)burst * MILLI;
        rate->key = evq_clock_random();
    }
    return rate;
}

void evq_rate_free(struct evq_rate *rate)
{
    free(rate);
}

static uint64_t hash_of(const struct evq_rate *rate, const char *client)
{
    uint64_t hash = rate->key;
    for (; *client != '\0'; client++) {
        hash = (hash ^ (unsigned char)*client) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    return hash != 0 ? hash : 1;
}

static int64_t level_of(const struct evq_rate *rate, const struct bucket *bucket, int64_t now_ms)
{
    if (bucket->client == 0 || now_ms - bucket->at_ms > (int64_t)3600 * MILLI) {
        return rate->level_max;
    }
    const int64_t level = bucket->level + (now_ms - bucket->at_ms) * rate->per_second;
    return level < rate->level_max ? level : rate->level_max;
}

bool evq_rate_take(struct evq_rate *rate, const char *client, uint32_t cost, int64_t now_ms)
{
    const uint64_t hash = hash_of(rate, client);
    struct bucket *own = NULL;
    struct bucket *fullest = NULL;
    int64_t most = -1;

    if (rate->per_second == 0) {
        return true;
    }
    for (size_t i = 0; i < PLACES && own == NULL; i++) {
        struct bucket *bucket = &rate->buckets[(hash + i) % BUCKETS];
        const int64_t level = level_of(rate, bucket, now_ms);
        if (bucket->client == hash) {
            own = bucket;
        } else if (level > most) {
            most = level;
            fullest = bucket;
        }
    }
    if (own == NULL) {
        own = fullest;
        *own = (struct bucket){.client = hash, .level = rate->level_max, .at_ms = now_ms};
    }
    const int64_t level = level_of(rate, own, now_ms);
    const int64_t price = (int64_t)cost * MILLI;
    const int64_t left = level - (price < rate->level_max ? price : rate->level_max);
    own->level = left >= 0 ? left : level;
    own->at_ms = now_ms;
    return left >= 0;
}
