/*
 * Prepares what a plan needs on the device before its first batch: weights, which keep their values
 * if the shapes are the same; buffers of rows_max rows; tables of rope; memory for products and for
 * a chunk of scores. Blocks only grow, so that the second checkpoint of a run allocates nothing,
 * unless memory is short.
 */
#include <stdlib.h>

#include "kernels/cuda/state.h"
#include "kernels/plan.h"

/* In bf16, some buffers stay fp32: those that are added to, those that come from outside, and those
 * that the losses read. */
static bool stays_fp32(const struct evq_plan *plan, int32_t buffer)
{
    bool stays = plan->compute == EVQ_COMPUTE_F32 || buffer == 0;

    for (size_t i = 0; i < plan->op_count && !stays; i++) {
        const struct evq_op *op = &plan->ops[i];
        const bool touched = op->in == buffer || op->out == buffer;
        stays = (op->kind == EVQ_OP_GEMM && op->residual == buffer) ||
                (op->kind == EVQ_OP_ADD && (op->residual == buffer || op->out == buffer)) ||
                (op->kind == EVQ_OP_CROSS_ENTROPY && touched) ||
                (op->kind == EVQ_OP_SQUARED_ERROR && touched);
    }
    return stays;
}

/* Whether the part of this device reads or writes the buffer. */
static bool is_used(const struct evq_cuda_state *state, const struct evq_plan *plan, int32_t buffer)
{
    bool used = buffer == state->part.taken;

    for (size_t i = state->part.first; i < state->part.end && !used; i++) {
        const struct evq_op *op = &plan->ops[i];
        used = (op->in == buffer && op->kind != EVQ_OP_EMBEDDING) || op->out == buffer ||
               (buffer > 0 && op->residual == buffer);
    }
    return used;
}

static enum evq_status prepare_buffer(struct evq_cuda_state *state, const struct evq_plan *plan,
                                      int32_t number, struct evq_error *err)
{
    struct evq_cuda_buffer *buffer = &state->buffers[number];
    const bool padded = plan->compute == EVQ_COMPUTE_BF16;
    const size_t rows =
        (size_t)(padded ? evq_cuda_up(plan->rows_max, EVQ_CUDA_ROWS) : (int64_t)plan->rows_max);
    const int32_t columns = plan->buffer_columns[number];

    buffer->used = is_used(state, plan, number);
    buffer->bf16 = !stays_fp32(plan, number);
    // The batch's inputs are copied without padding.
    buffer->stride = padded && number > 0 ? evq_cuda_up(columns, 8) : columns;
    const size_t bytes = rows * (size_t)buffer->stride * (buffer->bf16 ? 2 : sizeof(float));
    return evq_cuda_block_grow(state, &buffer->block, buffer->used ? bytes : 0, "activations", err);
}

static enum evq_status prepare_buffers(struct evq_cuda_state *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    const size_t results = evq_cuda_has_head(state, plan) ? (size_t)plan->rows_max : 0;
    const struct evq_op *head = &plan->ops[plan->op_count - 1];
    const size_t target_columns = head->kind == EVQ_OP_SQUARED_ERROR ? (size_t)head->n : 0;
    enum evq_status status = EVQ_OK;

    while (state->buffer_count > (size_t)plan->buffer_count) {
        evq_cuda_block_free(state, &state->buffers[--state->buffer_count].block);
    }
    struct evq_cuda_buffer *grown =
        realloc(state->buffers, (size_t)plan->buffer_count * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%d buffers", (int)plan->buffer_count);
    }
    state->buffers = grown;
    for (; state->buffer_count < (size_t)plan->buffer_count; state->buffer_count++) {
        state->buffers[state->buffer_count] = (struct evq_cuda_buffer){0};
    }
    for (size_t i = 0; i < state->buffer_count && status == EVQ_OK; i++) {
        status = prepare_buffer(state, plan, (int32_t)i, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &state->targets,
                                     results * target_columns * sizeof(float), "targets", err);
    }
    if (status == EVQ_OK) {
        status =
            evq_cuda_block_grow(state, &state->labels, results * sizeof(int32_t), "labels", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_results_grow(state, results * sizeof(struct evq_row_result), err);
    }
    return status;
}

void evq_cuda_scratch_free(struct evq_cuda_state *state)
{
    for (size_t i = 0; i < state->buffer_count; i++) {
        evq_cuda_block_free(state, &state->buffers[i].block);
    }
    for (size_t i = 0; i < state->rope_table_room; i++) {
        evq_cuda_block_free(state, &state->turns[i].block);
        evq_cuda_block_free(state, &state->turns[i].d_frequencies);
    }
    evq_cuda_block_free(state, &state->labels);
    evq_cuda_block_free(state, &state->targets);
    evq_cuda_block_free(state, &state->results);
    evq_cuda_block_free(state, &state->tokens);
    evq_cuda_block_free(state, &state->types);
    evq_cuda_block_free(state, &state->positions);
    evq_cuda_block_free(state, &state->score_rows);
    evq_cuda_block_free(state, &state->tiles);
    evq_cuda_block_free(state, &state->product);
    evq_cuda_block_free(state, &state->narrowed);
    evq_cuda_block_free(state, &state->workspace);
    evq_cuda_block_free(state, &state->logits);
    evq_cuda_block_free(state, &state->gathered);
}

/* Heads must fit into a block, and only the CPU has experts. */
enum evq_status evq_cuda_check_supported(const struct evq_plan *plan, struct evq_error *err)
{
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_ATTENTION && op->n > EVQ_ATTENTION_SIZE_MAX) {
            return evq_error_set(err, EVQ_E_UNSUPPORTED,
                                 "attention heads of %d values, expected at most %d", (int)op->n,
                                 EVQ_ATTENTION_SIZE_MAX);
        }
        if (op->kind == EVQ_OP_ROUTE || op->kind == EVQ_OP_EXPERTS) {
            return evq_error_set(err, EVQ_E_UNSUPPORTED,
                                 "the native evaluator has mixtures of experts only on the CPU: on "
                                 "a GPU, evaluate this model with the model server");
        }
    }
    return EVQ_OK;
}

/* Memory that products need besides the buffers. */
static enum evq_status prepare_products(struct evq_cuda_state *state, const struct evq_plan *plan,
                                        struct evq_error *err)
{
    const bool bf16 = plan->compute == EVQ_COMPUTE_BF16;
    const size_t rows = (size_t)evq_cuda_up(plan->rows_max, EVQ_CUDA_ROWS);
    size_t product = 0; // fp32, only if the product is not computed in place.
    size_t narrowed = 0;

    for (size_t i = state->part.first; i < state->part.end; i++) {
        const struct evq_op *op = &plan->ops[i];
        const size_t out = (size_t)op->n * sizeof(float);
        const size_t in = (size_t)evq_cuda_up(op->k, 8) * 2;
        if (op->kind != EVQ_OP_GEMM) {
            continue;
        }
        const bool direct = op->residual == 0 && plan->buffer_columns[op->out] == op->n;
        product = !bf16 && !direct && out > product ? out : product;
        narrowed = bf16 && !state->buffers[op->in].bf16 && in > narrowed ? in : narrowed;
    }
    enum evq_status status =
        evq_cuda_block_grow(state, &state->product, rows * product, "products", err);
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &state->narrowed, rows * narrowed,
                                     "rows rounded to bf16", err);
    }
    if (status == EVQ_OK && bf16) {
        status = evq_cuda_block_grow(state, &state->workspace, EVQ_CUDA_WORKSPACE_BYTES,
                                     "cuBLASLt's workspace", err);
    }
    return status;
}

static enum evq_status prepare_score(struct evq_cuda_state *state, const struct evq_plan *plan,
                                     struct evq_error *err)
{
    const struct evq_op *head = &plan->ops[plan->op_count - 1];
    const bool bf16 = plan->compute == EVQ_COMPUTE_BF16;

    if (head->kind != EVQ_OP_SCORE || !evq_cuda_has_head(state, plan)) {
        return EVQ_OK;
    }
    const size_t chunk = (size_t)evq_cuda_score_chunk(plan->compute, head->n);
    const size_t row = bf16 ? (size_t)evq_cuda_up(head->k, 8) * 2 : (size_t)head->k * sizeof(float);
    const size_t logits = (size_t)(bf16 ? evq_cuda_up(head->n, 8) : head->n) * sizeof(float);
    enum evq_status status =
        evq_cuda_block_grow(state, &state->logits, chunk * logits, "logits", err);
    return status == EVQ_OK
               ? evq_cuda_block_grow(state, &state->gathered, chunk * row, "scored rows", err)
               : status;
}

/* Sizes the attention tiles: as many queries in each as all operations allow. */
static enum evq_status prepare_tiles(struct evq_cuda_state *state, const struct evq_plan *plan,
                                     struct evq_error *err)
{
    // At most one tile for each row.
    const size_t bytes = (size_t)plan->rows_max * sizeof(*state->tiles_host);

    state->tile_queries = 0;
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_ATTENTION) {
            const int32_t queries = evq_cuda_tile_queries(state, op);
            const int32_t before = state->tile_queries;
            state->tile_queries = before == 0 || queries < before ? queries : before;
        }
    }
    if (state->tile_queries == 0) {
        return EVQ_OK;
    }
    struct evq_attention_tile *grown = realloc(state->tiles_host, bytes);
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "tiles of %d rows", (int)plan->rows_max);
    }
    state->tiles_host = grown;
    return evq_cuda_block_grow(state, &state->tiles, bytes, "tiles", err);
}

static enum evq_status prepare_tokens(struct evq_cuda_state *state, const struct evq_plan *plan,
                                      struct evq_error *err)
{
    const size_t bytes = (size_t)plan->rows_max * sizeof(int32_t);

    enum evq_status status = evq_cuda_block_grow(state, &state->tokens, bytes, "tokens", err);
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &state->positions, 2 * bytes, "positions", err);
    }
    int32_t *grown = realloc(state->positions_host, 2 * bytes);
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "positions of %d rows", (int)plan->rows_max);
    }
    state->positions_host = grown;
    return status == EVQ_OK ? prepare_tiles(state, plan, err) : status;
}

static enum evq_status prepare_memory(struct evq_cuda_state *state, const struct evq_plan *plan,
                                      struct evq_error *err)
{
    enum evq_status (*const parts[])(struct evq_cuda_state *, const struct evq_plan *,
                                     struct evq_error *) = {
        evq_cuda_weights_prepare, prepare_buffers, evq_cuda_rope_table_prepare,
        prepare_products,         prepare_score,   prepare_tokens};
    enum evq_status status = EVQ_OK;

    // A device without operations only gives its weights back.
    const bool idle = state->part.first == state->part.end;
    const size_t count = idle ? 1 : sizeof(parts) / sizeof(parts[0]);
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        status = parts[i](state, plan, err);
    }
    return status;
}

enum evq_status evq_cuda_make_room(struct evq_cuda_state *state, const struct evq_plan *plan,
                                   struct evq_error *err)
{
    const enum evq_status status =
        evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);

    evq_cuda_scratch_free(state);
    state->lacks_memory = false;
    return status == EVQ_OK ? evq_cuda_weights_trim(state, plan, err) : status;
}

enum evq_status evq_cuda_device_prepare(struct evq_cuda_state *state, const struct evq_plan *plan,
                                        struct evq_error *err)
{
    const bool lacked = state->lacks_memory;

    enum evq_status status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK && lacked) {
        status = evq_cuda_make_room(state, plan, err);
    }
    if (status == EVQ_OK) {
        status = prepare_memory(state, plan, err);
    }
    if (status == EVQ_E_NOMEM && !lacked && evq_cuda_make_room(state, plan, err) == EVQ_OK) {
        status = prepare_memory(state, plan, err);
    }
    if (status == EVQ_OK) { // The rope tables were copied from the plan.
        status = evq_cuda_status(cudaStreamSynchronize(state->stream), "prepare", err);
    }
    return status;
}
