/* Merges the symbols of one piece: by a scan for the lowest rank if the piece is short, and with a
 * heap if it is long. Both give the same result. */
#include <stdlib.h>
#include <string.h>

#include "worker/tokenizer/bpe.h"

#define SHORT_MAX 64 // In symbols. The speed differs little between 16 and 96.

struct evq_bpe_symbol {
    int32_t id; // -1: it was merged into the symbol before it.
    int32_t before, after;
    uint64_t result; // The result of merging it with the next symbol.
};

static void merge_short(const struct evq_bpe *bpe, struct evq_bpe_work *work)
{
    uint64_t results[SHORT_MAX];
    int32_t *ids = work->ids;
    size_t pairs = work->count - 1;

    for (size_t i = 0; i < pairs; i++) {
        results[i] = evq_bpe_pair(bpe, ids[i], ids[i + 1]);
    }
    while (pairs > 0) {
        size_t best = 0;
        for (size_t i = 1; i < pairs; i++) {
            best = results[i] < results[best] ? i : best;
        }
        if (results[best] == EVQ_BPE_NONE) {
            break;
        }
        ids[best] = (int32_t)(uint32_t)results[best];
        memmove(ids + best + 1, ids + best + 2, (pairs - best - 1) * sizeof(*ids));
        memmove(results + best, results + best + 1, (pairs - best - 1) * sizeof(*results));
        pairs--;
        if (best > 0) {
            results[best - 1] = evq_bpe_pair(bpe, ids[best - 1], ids[best]);
        }
        if (best < pairs) {
            results[best] = evq_bpe_pair(bpe, ids[best], ids[best + 1]);
        }
    }
    work->count = pairs + 1;
}

/* The heap is ordered by rank, then by position, which is the order in which pairs merge. */

static size_t heap_push(uint64_t *heap, size_t count, uint64_t item)
{
    size_t at = count;

    while (at > 0 && heap[(at - 1) / 2] > item) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = item;
    return count + 1;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    const uint64_t top = heap[0];
    const uint64_t last = heap[--*count];
    size_t at = 0;

    for (size_t child = 1; child < *count; child = 2 * at + 1) {
        if (child + 1 < *count && heap[child + 1] < heap[child]) {
            child++;
        }
        if (last <= heap[child]) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

static enum evq_status reserve(struct evq_bpe_work *work, struct evq_error *err)
{
    if (work->count <= work->long_room) {
        return EVQ_OK;
    }
    free(work->symbols);
    free(work->heap);
    work->long_room = 0;
    work->symbols = malloc(work->count * sizeof(*work->symbols));
    // Each merge removes one pair for good and adds at most two.
    work->heap = malloc(2 * work->count * sizeof(*work->heap));
    if (work->symbols == NULL || work->heap == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu symbols to merge", work->count);
    }
    work->long_room = work->count;
    return EVQ_OK;
}

static size_t pair_at(const struct evq_bpe *bpe, struct evq_bpe_work *work, int32_t at,
                      size_t queued)
{
    struct evq_bpe_symbol *symbol = &work->symbols[at];

    symbol->result = symbol->after < 0
                         ? EVQ_BPE_NONE
                         : evq_bpe_pair(bpe, symbol->id, work->symbols[symbol->after].id);
    return symbol->result == EVQ_BPE_NONE
               ? queued
               : heap_push(work->heap, queued, (symbol->result >> 32) << 32 | (uint32_t)at);
}

static enum evq_status merge_long(const struct evq_bpe *bpe, struct evq_bpe_work *work,
                                  struct evq_error *err)
{
    const int32_t count = (int32_t)work->count;
    size_t queued = 0;

    enum evq_status status = reserve(work, err);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_bpe_symbol *symbols = work->symbols;
    for (int32_t i = 0; i < count; i++) {
        symbols[i] = (struct evq_bpe_symbol){work->ids[i], i - 1, i + 1 < count ? i + 1 : -1, 0};
    }
    for (int32_t i = 0; i < count; i++) {
        queued = pair_at(bpe, work, i, queued);
    }
    while (queued > 0) {
        const uint64_t top = heap_pop(work->heap, &queued);
        const int32_t at = (int32_t)(uint32_t)top;
        struct evq_bpe_symbol *symbol = &symbols[at];
        if (symbol->id < 0 || symbol->result == EVQ_BPE_NONE || symbol->result >> 32 != top >> 32) {
            continue; // The pair no longer exists.
        }
        struct evq_bpe_symbol *taken = &symbols[symbol->after];
        symbol->id = (int32_t)(uint32_t)symbol->result;
        taken->id = -1;
        symbol->after = taken->after;
        if (symbol->after >= 0) {
            symbols[symbol->after].before = at;
        }
        queued = pair_at(bpe, work, at, queued);
        if (symbol->before >= 0) {
            queued = pair_at(bpe, work, symbol->before, queued);
        }
    }
    work->count = 0;
    for (int32_t i = 0; i >= 0; i = symbols[i].after) {
        work->ids[work->count++] = symbols[i].id;
    }
    return EVQ_OK;
}

enum evq_status evq_bpe_merge(const struct evq_bpe *bpe, struct evq_bpe_work *work,
                              struct evq_error *err)
{
    if (work->count > SHORT_MAX) {
        return merge_long(bpe, work, err);
    }
    if (work->count > 1) {
        merge_short(bpe, work);
    }
    return EVQ_OK;
}

void evq_bpe_work_free(struct evq_bpe_work *work)
{
    free(work->ids);
    free(work->symbols);
    free(work->heap);
    *work = (struct evq_bpe_work){0};
}
