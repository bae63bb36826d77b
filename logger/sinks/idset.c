#include "logger/sinks/idset.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SLOTS_FIRST 64
#define SLOTS_MAX   8192

struct evq_idset *evq_idset_new(const char *directory)
{
    struct evq_idset *set = calloc(1, sizeof(*set));

    if (set == NULL) {
        return NULL;
    }
    set->directory = directory;
    set->table = EVQ_IDTABLE_EMPTY;
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
        evq_idtable_close(&set->table);
        free(set->slots);
        free(set);
    }
}

static uint64_t hash_of(const char *text, size_t bytes)
{
    uint64_t hash = XXH3_64bits(text, bytes);

    return hash != 0 ? hash : 1;
}

/* Where the hash is, or belongs: by its highest bits, so that the slots go to the table in order.
 */
static size_t place_of(const uint64_t *slots, size_t slot_count, uint64_t hash)
{
    size_t at = (size_t)(hash >> (64 - __builtin_ctzll(slot_count)));

    while (slots[at] != 0 && slots[at] != hash) {
        at = (at + 1) & (slot_count - 1);
    }
    return at;
}

static enum evq_status grow(struct evq_idset *set, struct evq_error *err)
{
    const size_t grown_count = set->slot_count * 2;
    uint64_t *grown = calloc(grown_count, sizeof(*grown));

    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a set of result ids");
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

/* Everything goes to the table. */
static enum evq_status spill(struct evq_idset *set, struct evq_error *err)
{
    const enum evq_status status =
        evq_idtable_add(&set->table, set->directory, set->slots, set->slot_count, err);

    if (status == EVQ_OK) {
        memset(set->slots, 0, set->slot_count * sizeof(*set->slots));
        set->count = 0;
    }
    return status;
}

enum evq_status evq_idset_add(struct evq_idset *set, const char *text, size_t bytes,
                              struct evq_error *err)
{
    const uint64_t hash = hash_of(text, bytes);
    enum evq_status status = EVQ_OK;

    if ((set->count + 1) * 4 > set->slot_count * 3) {
        status = set->slot_count < SLOTS_MAX ? grow(set, err) : spill(set, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const size_t at = place_of(set->slots, set->slot_count, hash);
    set->count += set->slots[at] == 0 ? 1 : 0;
    set->slots[at] = hash;
    return EVQ_OK;
}

enum evq_status evq_idset_has(const struct evq_idset *set, const char *text, size_t bytes,
                              bool *ret_has, struct evq_error *err)
{
    const uint64_t hash = hash_of(text, bytes);

    if (set->slots[place_of(set->slots, set->slot_count, hash)] == hash) {
        *ret_has = true;
        return EVQ_OK;
    }
    return evq_idtable_has(&set->table, hash, ret_has, err);
}
