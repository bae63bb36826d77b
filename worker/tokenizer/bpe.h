/*
 * Byte pair encoding: a piece of text as symbols, pairs of which are merged by rank, the leftmost
 * of the lowest rank first, until none has one. Immutable once built; each thread brings a work
 * area.
 */
#ifndef EVQ_WORKER_TOKENIZER_BPE_H
#define EVQ_WORKER_TOKENIZER_BPE_H

#include "worker/tokenizer/definition.h"

#define EVQ_BPE_NONE UINT64_MAX // No merge: after all ranks.

struct evq_bpe_word { // A token's text and id; id -1: an empty slot.
    const char *text;
    uint32_t bytes;
    int32_t id;
};

struct evq_bpe_merge { // pair: left id above right id; UINT64_MAX: an empty slot.
    uint64_t pair;
    uint64_t result; // Rank above the id that the pair becomes: smaller is earlier.
};

struct evq_bpe {
    struct evq_bpe_word *words; // Open addressing by text as it stands in a piece.
    size_t word_mask;
    struct evq_bpe_merge *merges; // Open addressing by pair.
    size_t merge_mask;
    char *texts;               // What words point at.
    int32_t byte_ids[256];     // Byte level: each byte's symbol; else those of ASCII. -1: none.
    int32_t fallback_ids[256]; // "<0x00>" to "<0xFF>". -1: none.
    int32_t unk;               // -1: none; such characters are left out.
    int32_t id_max;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    bool divides_at_under; // No merge joins U+2581 to what stands before it, other than itself.
};

struct evq_bpe_symbol; // bpe_merge.c.

struct evq_bpe_work { // Starts as zeros.
    int32_t *ids;     // The symbols of the piece at hand.
    size_t count;
    size_t room;
    struct evq_bpe_symbol *symbols; // For pieces that are long.
    uint64_t *heap;
    size_t long_room;
};

/* EVQ_E_CORRUPT, EVQ_E_INVALID, EVQ_E_LIMIT, EVQ_E_NOMEM. bpe starts as zeros. */
enum evq_status evq_bpe_build(const struct evq_definition *definition, struct evq_bpe *bpe,
                              struct evq_error *err) EVQ_CHECK_RESULT;
void evq_bpe_free(struct evq_bpe *bpe);

/* work->ids[0..count) become the tokens of the piece. EVQ_E_NOMEM, EVQ_E_LIMIT. */
enum evq_status evq_bpe_encode(const struct evq_bpe *bpe, const char *piece, size_t bytes,
                               struct evq_bpe_work *work, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_bpe_work_free(struct evq_bpe_work *work); // Leaves zeros.

/* Merges work->ids in place. EVQ_E_NOMEM. */
enum evq_status evq_bpe_merge(const struct evq_bpe *bpe, struct evq_bpe_work *work,
                              struct evq_error *err) EVQ_CHECK_RESULT;

int32_t evq_bpe_find(const struct evq_bpe *bpe, const char *text, size_t bytes); // -1: none.

/* The result of merging the pair, or EVQ_BPE_NONE. */
static inline uint64_t evq_bpe_pair(const struct evq_bpe *bpe, int32_t left, int32_t right)
{
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = (size_t)(pair * 0x9e3779b97f4a7c15u >> 32) & bpe->merge_mask;

    while (bpe->merges[at].pair != pair) {
        if (bpe->merges[at].pair == UINT64_MAX) {
            return EVQ_BPE_NONE;
        }
        at = (at + 1) & bpe->merge_mask;
    }
    return bpe->merges[at].result;
}

#endif
