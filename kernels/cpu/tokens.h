/*
 * What is known about a batch of packed tokens before it runs: positions, blocks of queries, and
 * which rows are scored. One thread fills it; any number of threads read it.
 */
#ifndef EVQ_KERNELS_CPU_TOKENS_H
#define EVQ_KERNELS_CPU_TOKENS_H

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"

struct evq_query_block {
    int32_t row;          // The first row of the sequence in the batch.
    int32_t first, count; // Queries, counted within the sequence.
};

struct evq_tokens {
    struct evq_block positions_block, lengths_block, blocks_block, rows_block, scores_block;
    int32_t *positions; // The position of each row,
    int32_t *lengths;   // and the length of its sequence.
    struct evq_query_block *blocks;
    int32_t block_count;
    int32_t *scored_rows;  // Ascending; each row once.
    int32_t *scored_first; // [scored_count + 1]: the first of the batch's scores for each row.
    int32_t scored_count;
};

/* Allocates for batches of the plan. EVQ_E_NOMEM. */
enum evq_status evq_tokens_prepare(struct evq_tokens *tokens, const struct evq_plan *plan,
                                   struct evq_memory *memory,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokens_release(struct evq_tokens *tokens, struct evq_memory *memory);

/* batch must have passed evq_plan_batch_check(). queries: rows of a block. */
void evq_tokens_read(struct evq_tokens *tokens, const struct evq_batch *batch, int32_t queries);

#endif
