/*
 * What a plan needs on the device before its first batch: weights that keep their values where
 * shapes stay, buffers of rows_max rows, tables of rope, room for a chunk of scores.
 */
#include <stdlib.h>

#include "kernels/cuda/state.h"
#include "kernels/cuda/tokens.h"
#include "kernels/plan.h"

static enum evq_status prepare_weights(struct evq_cuda_state *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    while (state->weight_count > plan->slot_count) {
        evq_cuda_block_free(state, &state->weights[--state->weight_count].block);
    }
    struct evq_cuda_weight *grown =
        realloc(state->weights, (plan->slot_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu weights", plan->slot_count);
    }
    state->weights = grown;
    for (; state->weight_count < plan->slot_count; state->weight_count++) {
        state->weights[state->weight_count] = (struct evq_cuda_weight){0};
    }
    for (size_t i = 0; i < plan->slot_count && status == EVQ_OK; i++) {
        const struct evq_weight_slot *slot = &plan->slots[i];
        struct evq_cuda_weight *weight = &state->weights[i];
        if (weight->rows == slot->rows && weight->columns == slot->columns &&
            weight->block.d_data != NULL) {
            continue; // Keeps its values too.
        }
        weight->rows_put = 0;
        weight->rows = slot->rows;
        weight->columns = slot->columns;
        status = evq_cuda_block_grow(state, &weight->block,
                                     (size_t)slot->rows * (size_t)slot->columns * sizeof(float),
                                     slot->name, err);
    }
    return status;
}

static enum evq_status prepare_buffers(struct evq_cuda_state *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    const size_t rows = (size_t)plan->rows_max;
    enum evq_status status = EVQ_OK;
    size_t target_columns = 0;

    while (state->buffer_count > (size_t)plan->buffer_count) {
        evq_cuda_block_free(state, &state->buffers[--state->buffer_count]);
    }
    struct evq_cuda_block *grown =
        realloc(state->buffers, (size_t)plan->buffer_count * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%d buffers", (int)plan->buffer_count);
    }
    state->buffers = grown;
    for (; state->buffer_count < (size_t)plan->buffer_count; state->buffer_count++) {
        state->buffers[state->buffer_count] = (struct evq_cuda_block){0};
    }
    for (size_t i = 0; i < state->buffer_count && status == EVQ_OK; i++) {
        status = evq_cuda_block_grow(state, &state->buffers[i],
                                     rows * (size_t)plan->buffer_columns[i] * sizeof(float),
                                     "activations", err);
    }
    for (size_t i = 0; i < plan->op_count; i++) {
        if (plan->ops[i].kind == EVQ_OP_SQUARED_ERROR && (size_t)plan->ops[i].n > target_columns) {
            target_columns = (size_t)plan->ops[i].n;
        }
    }
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &state->targets, rows * target_columns * sizeof(float),
                                     "targets", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &state->labels, rows * sizeof(int32_t), "labels", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_results_grow(state, rows * sizeof(struct evq_row_result), err);
    }
    return status;
}

/* Columns of buffers that these operations take as packed; heads that fit a warp. */
static enum evq_status check_supported(const struct evq_plan *plan, struct evq_error *err)
{
    bool good = plan->compute == EVQ_COMPUTE_F32;

    for (size_t i = 0; i < plan->op_count && good; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_SCALE_SHIFT) {
            good = plan->buffer_columns[op->in] == op->n && plan->buffer_columns[op->out] == op->n;
        } else if (op->kind == EVQ_OP_CROSS_ENTROPY || op->kind == EVQ_OP_SQUARED_ERROR) {
            good = plan->buffer_columns[op->in] == op->n;
        } else if (op->kind == EVQ_OP_ATTENTION) {
            good = op->n <= EVQ_ATTENTION_SIZE_MAX;
        }
    }
    return good ? EVQ_OK
                : evq_error_set(err, EVQ_E_UNSUPPORTED,
                                "this backend evaluates in fp32, with heads of at most %d values",
                                EVQ_ATTENTION_SIZE_MAX);
}

static enum evq_status prepare_frequencies(struct evq_cuda_state *state,
                                           const struct evq_plan *plan, struct evq_error *err)
{
    size_t count = 0;
    size_t at = 0;

    for (size_t i = 0; i < plan->op_count; i++) {
        count += plan->ops[i].kind == EVQ_OP_ROPE ? (size_t)(plan->ops[i].n / 2) : 0;
    }
    enum evq_status status = evq_cuda_block_grow(state, &state->frequencies, count * sizeof(float),
                                                 "rope frequencies", err);
    for (size_t i = 0; i < plan->op_count && status == EVQ_OK; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_ROPE) {
            const size_t half = (size_t)(op->n / 2);
            status =
                evq_cuda_status(cudaMemcpy((float *)state->frequencies.d_data + at, op->frequencies,
                                           half * sizeof(float), cudaMemcpyHostToDevice),
                                "copy rope frequencies", err);
            at += half;
        }
    }
    return status;
}

static enum evq_status prepare_tokens(struct evq_cuda_state *state, const struct evq_plan *plan,
                                      struct evq_error *err)
{
    const size_t rows = (size_t)plan->rows_max;
    size_t widest = 0;
    enum evq_status status = prepare_frequencies(state, plan, err);

    for (size_t i = 0; i < plan->op_count; i++) {
        const size_t n = (size_t)plan->ops[i].n;
        widest = plan->ops[i].kind == EVQ_OP_GEMM && n > widest ? n : widest;
    }
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &state->product, rows * widest * sizeof(float),
                                     "products", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &state->tokens, rows * sizeof(int32_t), "tokens", err);
    }
    if (status == EVQ_OK) {
        status =
            evq_cuda_block_grow(state, &state->positions, rows * sizeof(int32_t), "positions", err);
    }
    const struct evq_op *head = &plan->ops[plan->op_count - 1];
    if (status == EVQ_OK && head->kind == EVQ_OP_SCORE) {
        const size_t chunk = (size_t)evq_cuda_score_chunk(head);
        status = evq_cuda_block_grow(state, &state->logits, chunk * (size_t)head->n * sizeof(float),
                                     "logits", err);
        if (status == EVQ_OK) {
            status =
                evq_cuda_block_grow(state, &state->gathered,
                                    chunk * (size_t)head->k * sizeof(float), "scored rows", err);
        }
    }
    int32_t *grown = realloc(state->positions_host, rows * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "positions of %zu rows", rows);
    }
    state->positions_host = grown;
    return status;
}

enum evq_status evq_cuda_prepare(void *opened, const struct evq_plan *plan, struct evq_error *err)
{
    struct evq_cuda_state *state = opened;

    state->plan = NULL;
    enum evq_status status = evq_plan_check(plan, err);
    if (status == EVQ_OK) {
        status = check_supported(plan, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    }
    if (status == EVQ_OK) {
        status = prepare_weights(state, plan, err);
    }
    if (status == EVQ_OK) {
        status = prepare_buffers(state, plan, err);
    }
    if (status == EVQ_OK) {
        status = prepare_tokens(state, plan, err);
    }
    if (status == EVQ_OK) {
        state->plan = plan;
    }
    return status;
}
