#include "kernels/cpu/tokens.h"

enum evq_status evq_tokens_prepare(struct evq_tokens *tokens, const struct evq_plan *plan,
                                   struct evq_memory *memory, struct evq_error *err)
{
    const size_t rows = plan->length_max > 0 ? (size_t)plan->rows_max : 0;
    const size_t numbers = (rows + 1) * sizeof(int32_t);

    enum evq_status status =
        evq_memory_resize(memory, &tokens->positions_block, numbers, "positions", err);
    if (status == EVQ_OK) {
        status = evq_memory_resize(memory, &tokens->lengths_block, numbers, "lengths", err);
    }
    if (status == EVQ_OK) {
        status = evq_memory_resize(memory, &tokens->blocks_block,
                                   rows * sizeof(struct evq_query_block), "query blocks", err);
    }
    if (status == EVQ_OK) {
        status = evq_memory_resize(memory, &tokens->rows_block, numbers, "scored rows", err);
    }
    if (status == EVQ_OK) {
        status = evq_memory_resize(memory, &tokens->scores_block, numbers, "scores", err);
    }
    if (status == EVQ_OK) {
        tokens->positions = tokens->positions_block.data;
        tokens->lengths = tokens->lengths_block.data;
        tokens->blocks = tokens->blocks_block.data;
        tokens->scored_rows = tokens->rows_block.data;
        tokens->scored_first = tokens->scores_block.data;
    }
    return status;
}

void evq_tokens_release(struct evq_tokens *tokens, struct evq_memory *memory)
{
    evq_memory_release(memory, &tokens->positions_block);
    evq_memory_release(memory, &tokens->lengths_block);
    evq_memory_release(memory, &tokens->blocks_block);
    evq_memory_release(memory, &tokens->rows_block);
    evq_memory_release(memory, &tokens->scores_block);
    *tokens = (struct evq_tokens){0};
}

void evq_tokens_read(struct evq_tokens *tokens, const struct evq_batch *batch, int32_t queries)
{
    tokens->block_count = 0;
    for (int32_t s = 0; s < batch->sequences; s++) {
        const int32_t start = batch->starts[s];
        const int32_t length = batch->starts[s + 1] - start;
        for (int32_t i = 0; i < length; i++) {
            tokens->positions[start + i] = i;
            tokens->lengths[start + i] = length;
        }
        for (int32_t first = 0; first < length; first += queries) {
            tokens->blocks[tokens->block_count++] = (struct evq_query_block){
                .row = start,
                .first = first,
                .count = length - first < queries ? length - first : queries};
        }
    }
    tokens->scored_count = 0;
    for (int32_t i = 0; i < batch->scores; i++) {
        if (i == 0 || batch->score_rows[i] != batch->score_rows[i - 1]) {
            tokens->scored_rows[tokens->scored_count] = batch->score_rows[i];
            tokens->scored_first[tokens->scored_count++] = i;
        }
    }
    tokens->scored_first[tokens->scored_count] = batch->scores;
}
