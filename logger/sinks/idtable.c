#include "logger/sinks/idtable.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"

#define NAME        "table of result ids"
#define SLOTS_FIRST ((uint64_t)1 << 16)
#define LOOK_SLOTS  64                  // Read at a time to look for one;
#define BLOCK_SLOTS 512                 // to add many.
#define MAYBE_BITS  ((uint64_t)1 << 19) // With 100,000 hashes a tenth of what is not there has both.

struct block { // A part of the file while hashes are added.
    uint64_t index;
    bool loaded;
    bool changed;
    uint64_t slots[BLOCK_SLOTS];
};

/* By the highest bits: a table of twice the size has the hashes in the same order. */
static uint64_t home(const struct evq_idtable *table, uint64_t hash)
{
    return hash >> (64 - __builtin_ctzll(table->slot_count));
}

/* Its two bits lie where the place in the table does not. */
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

enum evq_status evq_idtable_has(const struct evq_idtable *table, uint64_t hash, bool *ret_has,
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
    do { // Ends: at most half of the slots are taken.
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

static enum evq_status block_store(const struct evq_idtable *table, struct block *block,
                                   struct evq_error *err)
{
    if (!block->changed) {
        return EVQ_OK;
    }
    block->changed = false;
    return evq_file_write_at(table->fd, block->slots, sizeof(block->slots),
                             block->index * sizeof(block->slots), NAME, err);
}

static enum evq_status block_load(const struct evq_idtable *table, struct block *block,
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

static enum evq_status slots_add(struct evq_idtable *table, struct block *block,
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
                if (table->maybe != NULL) { // Else it grows: the smaller one's bits hold for it.
                    maybe_add(table->maybe, slots[i]);
                }
            }
            placed = status == EVQ_OK && *slot == slots[i];
        }
    }
    return status;
}

/* One with twice the room, or the first; the table stays as it is on any error. */
static enum evq_status grow(struct evq_idtable *table, const char *directory, struct evq_error *err)
{
    struct evq_idtable grown = {.fd = -1,
                                .slot_count = table->fd < 0 ? SLOTS_FIRST : 2 * table->slot_count};
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
        evq_idtable_close(&grown);
        return status;
    }
    grown.maybe = table->maybe;
    table->maybe = NULL;
    evq_idtable_close(table);
    *table = grown;
    return EVQ_OK;
}

enum evq_status evq_idtable_add(struct evq_idtable *table, const char *directory,
                                const uint64_t *slots, size_t slot_count, struct evq_error *err)
{
    struct block block = {0};
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && 2 * (table->count + slot_count) > table->slot_count) {
        status = grow(table, directory, err);
    }
    if (status == EVQ_OK) {
        status = slots_add(table, &block, slots, slot_count, err);
    }
    return status == EVQ_OK ? block_store(table, &block, err) : status;
}

void evq_idtable_close(struct evq_idtable *table)
{
    evq_file_close(&table->fd); // Nothing in it is of use to anybody else.
    free(table->maybe);
    *table = EVQ_IDTABLE_EMPTY;
}
