#include "logger/idset.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SLOTS_FIRST 64

struct evq_idset *evq_idset_new(void)
{
    struct evq_idset *set = calloc(1, sizeof(*set));

    if (set == NULL) {
        return NULL;
    }
    set->slots = calloc(SLOTS_FIRST, sizeof(*set->slots));
    if (set->slots == NULL) {
        free(set);
        return NULL;
    }
    set->slot_count = SLOTS_FIRST;
    return set;
}

void evq_idset_free(struct evq_idset *set)
{
    if (set != NULL) {
        free(set->slots);
        free(set);
    }
}

static uint64_t hash_of(const char *text, size_t bytes)
{
    uint64_t hash = XXH3_64bits(text, bytes);

    return hash != 0 ? hash : 1;
}

static void place(uint64_t *slots, size_t slot_count, uint64_t hash)
{
    size_t at = (size_t)hash & (slot_count - 1);

    while (slots[at] != 0 && slots[at] != hash) {
        at = (at + 1) & (slot_count - 1);
    }
    slots[at] = hash;
}

static bool contains(const struct evq_idset *set, uint64_t hash)
{
    size_t at = (size_t)hash & (set->slot_count - 1);

    while (set->slots[at] != 0) {
        if (set->slots[at] == hash) {
            return true;
        }
        at = (at + 1) & (set->slot_count - 1);
    }
    return false;
}

static void add_hash(struct evq_idset *set, uint64_t hash)
{
    if (contains(set, hash)) {
        return;
    }
    if ((set->count + 1) * 4 > set->slot_count * 3) {
        size_t grown_count = set->slot_count * 2;
        uint64_t *grown = calloc(grown_count, sizeof(*grown));
        if (grown == NULL) {
            set->failed = true;
            return;
        }
        for (size_t i = 0; i < set->slot_count; i++) {
            if (set->slots[i] != 0) {
                place(grown, grown_count, set->slots[i]);
            }
        }
        free(set->slots);
        set->slots = grown;
        set->slot_count = grown_count;
    }
    place(set->slots, set->slot_count, hash);
    set->count++;
}

void evq_idset_add(struct evq_idset *set, const char *text, size_t bytes)
{
    add_hash(set, hash_of(text, bytes));
}

bool evq_idset_has(const struct evq_idset *set, const char *text, size_t bytes)
{
    return contains(set, hash_of(text, bytes));
}

void evq_idset_merge(struct evq_idset *set, const struct evq_idset *other)
{
    for (size_t i = 0; i < other->slot_count; i++) {
        if (other->slots[i] != 0) {
            add_hash(set, other->slots[i]);
        }
    }
}

void evq_idset_clear(struct evq_idset *set)
{
    memset(set->slots, 0, set->slot_count * sizeof(*set->slots));
    set->count = 0;
    set->failed = false;
}
