/*
 * What a batch of packed tokens asks for, worked out once before it runs: positions, blocks of
 * queries, and which rows are scored. One thread fills it, any number read.
 */
#ifndef EVQ_KERNELS_CPU_TOKENS_H
#define EVQ_KERNELS_CPU_TOKENS_H

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"

struct evq_query_block {
    int32_t row;          // Of the batch: the sequence's first.
    int32_t first, count; // Queries, counted in the sequence.
};

struct evq_tokens {
    struct evq_block positions_block, blocks_block, rows_block, scores_block;
    int32_t *positions; // Of each row.
    struct evq_query_block *blocks;
    int32_t block_count;
    int32_t *scored_rows;  // Ascending, each once.
    int32_t *scored_first; // [scored_count + 1]: first of the batch's scores for each of them.
    int32_t scored_count;
};

/* Room for batches of the plan. EVQ_E_NOMEM. */
enum evq_status evq_tokens_prepare(struct evq_tokens *tokens, const struct evq_plan *plan,
                                   struct evq_memory *memory,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokens_release(struct evq_tokens *tokens, struct evq_memory *memory);

/* batch passed evq_plan_batch_check(); queries: rows of a block. */
void evq_tokens_read(struct evq_tokens *tokens, const struct evq_batch *batch, int32_t queries);

#endif
