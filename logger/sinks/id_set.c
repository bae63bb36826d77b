#include "logger/sinks/id_set.h"

#include <stdlib.h>
#include <xxhash.h>

#define SLOTS_FIRST 64

void evq_id_set_clear(struct evq_id_set *set)
{
    free(set->slots);
    *set = (struct evq_id_set){0};
}

static uint64_t hash_of(const char *text, size_t bytes)
{
    const uint64_t hash = XXH3_64bits(text, bytes);

    return hash != 0 ? hash : 1;
}

/* The slot of the hash, or where it belongs. At least one slot is empty. */
static size_t place_of(const uint64_t *slots, size_t slot_count, uint64_t hash)
{
    size_t at = (size_t)hash & (slot_count - 1);

    while (slots[at] != 0 && slots[at] != hash) {
        at = (at + 1) & (slot_count - 1);
    }
    return at;
}

static enum evq_status grow(struct evq_id_set *set, struct evq_error *err)
{
    const size_t grown_count = set->slot_count == 0 ? SLOTS_FIRST : 2 * set->slot_count;
    uint64_t *grown = calloc(grown_count, sizeof(*grown));

    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a set of %zu result ids", set->count);
    }
    for (size_t i = 0; i < set->slot_count; i++) {
        if (set->slots[i] != 0) {
            grown[place_of(grown, grown_count, set->slots[i])] = set->slots[i];
        }
    }
    free(set->slots);
    set->slots = grown;
    set->slot_count = grown_count;
    return EVQ_OK;
}

enum evq_status evq_id_set_add(struct evq_id_set *set, const char *text, size_t bytes,
                               struct evq_error *err)
{
    const uint64_t hash = hash_of(text, bytes);

    if (4 * (set->count + 1) > 3 * set->slot_count) {
        const enum evq_status status = grow(set, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    const size_t at = place_of(set->slots, set->slot_count, hash);
    set->count += set->slots[at] == 0 ? 1 : 0;
    set->slots[at] = hash;
    return EVQ_OK;
}

bool evq_id_set_has(const struct evq_id_set *set, const char *text, size_t bytes)
{
    const uint64_t hash = hash_of(text, bytes);

    return set->slot_count > 0 && set->slots[place_of(set->slots, set->slot_count, hash)] == hash;
}
