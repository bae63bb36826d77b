/*
 * Byte pair encoding: a piece of text is split into symbols, and pairs of symbols are merged by
 * rank, lowest rank first and leftmost first, until no pair has a rank. Immutable once built; each
 * thread brings a work area.
 */
#ifndef EVQ_WORKER_TOKENIZER_BPE_H
#define EVQ_WORKER_TOKENIZER_BPE_H

#include "worker/tokenizer/tokenizer_json.h"

#define EVQ_BPE_NONE UINT64_MAX // There is no merge; sorts after all ranks.

struct evq_bpe_word { // Text and id of a token; id -1: an empty slot.
    const char *text;
    uint32_t bytes;
    int32_t id;
};

// pair: left id in the high half, right id in the low half; UINT64_MAX: an empty slot.
struct evq_bpe_merge {
    uint64_t pair;
    // Rank in the high half, id of the result in the low half. A smaller value merges earlier.
    uint64_t result;
};

struct evq_bpe {
    // A hash table with open addressing, by the text as it is in a piece.
    struct evq_bpe_word *words;
    size_t word_mask;
    struct evq_bpe_merge *merges; // A hash table with open addressing, by pair.
    size_t merge_mask;
    char *texts; // The texts that words point into.
    // For byte level: the symbol of each byte; otherwise those of ASCII. -1: none.
    int32_t byte_ids[256];
    int32_t fallback_ids[256]; // "<0x00>" to "<0xFF>". -1: none.
    int32_t unk;               // -1: none, and unknown characters are left out.
    int32_t id_max;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    // No merge joins U+2581 with the text before it, except with another U+2581.
    bool divides_at_under;
};

struct evq_bpe_symbol; // Defined in bpe_merge.c.

struct evq_bpe_work { // Starts as zeros.
    int32_t *ids;     // The symbols of the present piece.
    size_t count;
    size_t room;
    struct evq_bpe_symbol *symbols; // Used for long pieces.
    uint64_t *heap;
    size_t long_room;
};

/* Builds the tables; bpe starts as zeros. EVQ_E_CORRUPT, EVQ_E_INVALID, EVQ_E_LIMIT, EVQ_E_NOMEM.
 */
enum evq_status evq_bpe_build(const struct evq_tokenizer_json *definition, struct evq_bpe *bpe,
                              struct evq_error *err) EVQ_CHECK_RESULT;
void evq_bpe_free(struct evq_bpe *bpe);

/* Makes room for this many symbols. EVQ_E_NOMEM, EVQ_E_LIMIT. */
enum evq_status evq_bpe_work_reserve(struct evq_bpe_work *work, size_t symbols,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Stores the tokens of the piece in work->ids[0..count). EVQ_E_NOMEM, EVQ_E_LIMIT. */
enum evq_status evq_bpe_encode(const struct evq_bpe *bpe, const char *piece, size_t bytes,
                               struct evq_bpe_work *work, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_bpe_work_free(struct evq_bpe_work *work); // Leaves it zeroed.

/* Merges work->ids in place. EVQ_E_NOMEM. */
enum evq_status evq_bpe_merge(const struct evq_bpe *bpe, struct evq_bpe_work *work,
                              struct evq_error *err) EVQ_CHECK_RESULT;

// The id of the token with this text; -1: none.
int32_t evq_bpe_find(const struct evq_bpe *bpe, const char *text, size_t bytes);

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
