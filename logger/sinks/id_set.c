#include "logger/sinks/id_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"

#define SLOTS_FIRST       64
#define SLOTS_MAX         8192
#define NAME              "table of result ids"
#define TABLE_SLOTS_FIRST ((uint64_t)1 << 16)
#define LOOK_SLOTS        64  // Slots read at once to find one hash.
#define BLOCK_SLOTS       512 // Slots read and written at once to add many.
#define MAYBE_BITS                                                                                 \
    ((uint64_t)1 << 19) // With 100,000 hashes a tenth of the unknown ones has both bits.

struct block { // A part of the file while hashes are added.
    uint64_t index;
    bool loaded;
    bool changed;
    uint64_t slots[BLOCK_SLOTS];
};

/* The first slot for a hash, by its highest bits, so that a table of twice the size has the same
 * order. */
static uint64_t home(const struct evq_id_table *table, uint64_t hash)
{
    return hash >> (64 - __builtin_ctzll(table->slot_count));
}

/* The two bits of a hash come from its lower bits. */
static uint64_t *maybe_word(uint64_t *maybe, uint64_t bit)
{
    return &maybe[bit % MAYBE_BITS / 64];
}

static void maybe_add(uint64_t *maybe, uint64_t hash)
{
    *maybe_word(maybe, hash) |= UINT64_C(1) << hash % 64;
    *maybe_word(maybe, hash >> 19) |= UINT64_C(1) << (hash >> 19) % 64;
}

static bool maybe_has(uint64_t *maybe, uint64_t hash)
{
    return (*maybe_word(maybe, hash) >> hash % 64 & 1) != 0 &&
           (*maybe_word(maybe, hash >> 19) >> (hash >> 19) % 64 & 1) != 0;
}

static enum evq_status table_has(const struct evq_id_table *table, uint64_t hash, bool *ret_has,
                                 struct evq_error *err)
{
    uint64_t look[LOOK_SLOTS];
    uint64_t found = 0;
    bool loaded = false;

    if (table->fd < 0 || !maybe_has(table->maybe, hash)) {
        *ret_has = false;
        return EVQ_OK;
    }
    uint64_t at = home(table, hash);
    do { // It ends, because at most half of the slots are taken.
        if (!loaded || at % LOOK_SLOTS == 0) {
            const uint64_t offset = (at - at % LOOK_SLOTS) * sizeof(*look);
            const enum evq_status status =
                evq_file_read_at(table->fd, look, sizeof(look), offset, NAME, err);
            if (status != EVQ_OK) {
                return status;
            }
            loaded = true;
        }
        found = look[at % LOOK_SLOTS];
        at = (at + 1) & (table->slot_count - 1);
    } while (found != 0 && found != hash);
    *ret_has = found == hash;
    return EVQ_OK;
}

static enum evq_status block_store(const struct evq_id_table *table, struct block *block,
                                   struct evq_error *err)
{
    if (!block->changed) {
        return EVQ_OK;
    }
    block->changed = false;
    return evq_file_write_at(table->fd, block->slots, sizeof(block->slots),
                             block->index * sizeof(block->slots), NAME, err);
}

static enum evq_status block_load(const struct evq_id_table *table, struct block *block,
                                  uint64_t index, struct evq_error *err)
{
    if (block->loaded && block->index == index) {
        return EVQ_OK;
    }
    enum evq_status status = block_store(table, block, err);
    block->loaded = false;
    if (status == EVQ_OK) {
        status = evq_file_read_at(table->fd, block->slots, sizeof(block->slots),
                                  index * sizeof(block->slots), NAME, err);
    }
    block->loaded = status == EVQ_OK;
    block->index = index;
    return status;
}

static enum evq_status slots_add(struct evq_id_table *table, struct block *block,
                                 const uint64_t *slots, size_t slot_count, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < slot_count && status == EVQ_OK; i++) {
        uint64_t at = slots[i] != 0 ? home(table, slots[i]) : 0;
        for (bool placed = slots[i] == 0; !placed && status == EVQ_OK;
             at = (at + 1) & (table->slot_count - 1)) {
            status = block_load(table, block, at / BLOCK_SLOTS, err);
            uint64_t *slot = &block->slots[at % BLOCK_SLOTS];
            if (status == EVQ_OK && *slot == 0) {
                *slot = slots[i];
                block->changed = true;
                table->count++;
                if (table->maybe != NULL) { // NULL while the table grows: its bits stay the same.
                    maybe_add(table->maybe, slots[i]);
                }
            }
            placed = status == EVQ_OK && *slot == slots[i];
        }
    }
    return status;
}

static void table_close(struct evq_id_table *table)
{
    evq_file_close(&table->fd); // The file has no name and is gone with it.
    free(table->maybe);
    *table = (struct evq_id_table){.fd = -1};
}

/* Makes the table, or one of twice its size. After an error it is as it was. */
static enum evq_status table_grow(struct evq_id_table *table, const char *directory,
                                  struct evq_error *err)
{
    struct evq_id_table grown = {
        .fd = -1, .slot_count = table->fd < 0 ? TABLE_SLOTS_FIRST : 2 * table->slot_count};
    struct block block = {0};
    uint64_t slots[BLOCK_SLOTS];

    if (table->maybe == NULL &&
        (table->maybe = calloc(MAYBE_BITS / 64, sizeof(*table->maybe))) == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a %s", NAME);
    }
    enum evq_status status = evq_file_unnamed(directory, &grown.fd, err);
    if (status == EVQ_OK && ftruncate(grown.fd, (off_t)(grown.slot_count * sizeof(*slots))) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "make room for the %s: %s", NAME, strerror(errno));
    }
    for (uint64_t at = 0; table->fd >= 0 && at < table->slot_count && status == EVQ_OK;
         at += BLOCK_SLOTS) {
        status = evq_file_read_at(table->fd, slots, sizeof(slots), at * sizeof(*slots), NAME, err);
        if (status == EVQ_OK) {
            status = slots_add(&grown, &block, slots, BLOCK_SLOTS, err);
        }
    }
    if (status == EVQ_OK) {
        status = block_store(&grown, &block, err);
    }
    if (status != EVQ_OK) {
        table_close(&grown);
        return status;
    }
    grown.maybe = table->maybe;
    table->maybe = NULL;
    table_close(table);
    *table = grown;
    return EVQ_OK;
}

/* Adds the slots that are not 0, fastest in ascending order. After an error, repeat the call. */
static enum evq_status table_add(struct evq_id_table *table, const char *directory,
                                 const uint64_t *slots, size_t slot_count, struct evq_error *err)
{
    struct block block = {0};
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && 2 * (table->count + slot_count) > table->slot_count) {
        status = table_grow(table, directory, err);
    }
    if (status == EVQ_OK) {
        status = slots_add(table, &block, slots, slot_count, err);
    }
    return status == EVQ_OK ? block_store(table, &block, err) : status;
}

/* ---- the set ---- */

struct evq_id_set *evq_id_set_new(const char *directory)
{
    struct evq_id_set *set = calloc(1, sizeof(*set));

    if (set == NULL) {
        return NULL;
    }
    set->directory = directory;
    set->table = (struct evq_id_table){.fd = -1};
    set->slots = calloc(SLOTS_FIRST, sizeof(*set->slots));
    if (set->slots == NULL) {
        free(set);
        return NULL;
    }
    set->slot_count = SLOTS_FIRST;
    return set;
}

void evq_id_set_free(struct evq_id_set *set)
{
    if (set != NULL) {
        table_close(&set->table);
        free(set->slots);
        free(set);
    }
}

static uint64_t hash_of(const char *text, size_t bytes)
{
    uint64_t hash = XXH3_64bits(text, bytes);

    return hash != 0 ? hash : 1;
}

/* The slot of the hash, or where it belongs: by its highest bits, so that the slots are added to
 * the table in order. */
static size_t place_of(const uint64_t *slots, size_t slot_count, uint64_t hash)
{
    size_t at = (size_t)(hash >> (64 - __builtin_ctzll(slot_count)));

    while (slots[at] != 0 && slots[at] != hash) {
        at = (at + 1) & (slot_count - 1);
    }
    return at;
}

static enum evq_status grow(struct evq_id_set *set, struct evq_error *err)
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

/* Moves all hashes to the table. */
static enum evq_status spill(struct evq_id_set *set, struct evq_error *err)
{
    const enum evq_status status =
        table_add(&set->table, set->directory, set->slots, set->slot_count, err);

    if (status == EVQ_OK) {
        memset(set->slots, 0, set->slot_count * sizeof(*set->slots));
        set->count = 0;
    }
    return status;
}

enum evq_status evq_id_set_add(struct evq_id_set *set, const char *text, size_t bytes,
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

enum evq_status evq_id_set_has(const struct evq_id_set *set, const char *text, size_t bytes,
                               bool *ret_has, struct evq_error *err)
{
    const uint64_t hash = hash_of(text, bytes);

    if (set->slots[place_of(set->slots, set->slot_count, hash)] == hash) {
        *ret_has = true;
        return EVQ_OK;
    }
    return table_has(&set->table, hash, ret_has, err);
}
