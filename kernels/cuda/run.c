/*
 * A batch through the plan: copied in, its operations in order on the stream, its results copied
 * out.
 */
#include <string.h>

#include "kernels/cuda/state.h"
#include "kernels/cuda/tokens.h"
#include "kernels/plan.h"

#define SCORE_BYTES_MAX ((size_t)256 << 20) // Of the logits of a chunk of scores.

int32_t evq_cuda_score_chunk(const struct evq_op *op)
{
    const size_t scores = SCORE_BYTES_MAX / ((size_t)op->n * sizeof(float));

    return scores < 1 ? 1 : scores > 4096 ? 4096 : (int32_t)scores;
}

static int64_t stride_of(const struct evq_cuda_state *state, int32_t buffer)
{
    return state->plan->buffer_columns[buffer];
}

/* Row-major out = in * weight^T is column-major out^T = weight^T' * in, with weight stored [k, n]
 * there. out is packed. */
static enum evq_status multiply(struct evq_cuda_state *state, const struct evq_op *op, int32_t rows,
                                const float *d_in, int64_t in_stride, const float *d_weight,
                                float *d_out, struct evq_error *err)
{
    const float one = 1.0f;
    const float zero = 0.0f;

    return evq_cublas_status(state->cublas.sgemm(state->cublas_handle, EVQ_CUBLAS_OP_T,
                                                 EVQ_CUBLAS_OP_N, op->n, rows, op->k, &one,
                                                 d_weight, op->k, d_in, (int)in_stride, &zero,
                                                 d_out, op->n),
                             "matrix product", err);
}

static enum evq_status run_gemm(struct evq_cuda_state *state, const struct evq_op *op, int32_t rows,
                                const float *d_in, const float *d_weight, const float *d_bias,
                                float *d_out, struct evq_error *err)
{
    const int64_t stride = stride_of(state, op->out);
    const bool direct = op->residual == 0 && stride == op->n;
    float *d_product = direct ? d_out : state->product.d_data;

    const enum evq_status status =
        multiply(state, op, rows, d_in, stride_of(state, op->in), d_weight, d_product, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (direct) {
        return evq_bias_activate_launch(d_out, rows, op->n, d_bias, op->activation, state->stream,
                                        err);
    }
    return evq_epilogue_launch(d_product, rows, op->n, d_bias, op->activation,
                               op->residual != 0 ? state->buffers[op->residual].d_data : NULL,
                               stride_of(state, op->residual), d_out, stride, state->stream, err);
}

/* The logits of a chunk of scores at a time, each followed by its log-sum-exp. */
static enum evq_status run_score(struct evq_cuda_state *state, const struct evq_op *op,
                                 int32_t scores, const float *d_in, const float *d_weight,
                                 const float *d_bias, struct evq_error *err)
{
    const int32_t chunk = evq_cuda_score_chunk(op);
    const int32_t *d_rows = state->score_rows.d_data;
    const int32_t *d_targets = state->labels.d_data;
    struct evq_row_result *d_results = state->results.d_data;
    enum evq_status status = EVQ_OK;

    for (int32_t first = 0; first < scores && status == EVQ_OK; first += chunk) {
        const int32_t count = scores - first < chunk ? scores - first : chunk;
        status = evq_gather_launch(d_in, stride_of(state, op->in), d_rows + first, count, op->k,
                                   state->gathered.d_data, state->stream, err);
        if (status == EVQ_OK) {
            status = multiply(state, op, count, state->gathered.d_data, op->k, d_weight,
                              state->logits.d_data, err);
        }
        if (status == EVQ_OK) {
            status = evq_bias_activate_launch(state->logits.d_data, count, op->n, d_bias,
                                              EVQ_ACT_NONE, state->stream, err);
        }
        if (status == EVQ_OK) {
            status = evq_cross_entropy_launch(state->logits.d_data, count, op->n, d_targets + first,
                                              0, d_results + first, state->stream, err);
        }
    }
    return status;
}

static const float *frequencies_of(const struct evq_cuda_state *state, const struct evq_op *op)
{
    const float *d_at = state->frequencies.d_data;

    for (const struct evq_op *before = state->plan->ops; before < op; before++) {
        d_at += before->kind == EVQ_OP_ROPE ? before->n / 2 : 0;
    }
    return d_at;
}

static const float *weight_of(const struct evq_cuda_state *state, int32_t slot)
{
    return slot < 0 ? NULL : state->weights[slot].block.d_data;
}

static enum evq_status run_token_op(struct evq_cuda_state *state, const struct evq_op *op,
                                    int32_t rows, struct evq_error *err)
{
    const float *d_in = state->buffers[op->in].d_data;
    float *d_out = state->buffers[op->out].d_data;
    const float *d_weight = weight_of(state, op->weight);
    const float *d_bias = weight_of(state, op->bias);
    const int32_t *d_positions = state->positions.d_data;
    const int64_t in_stride = stride_of(state, op->in);
    const int64_t stride = stride_of(state, op->out);

    switch (op->kind) {
    case EVQ_OP_EMBEDDING:
        return evq_embed_launch(state->tokens.d_data, d_positions, rows, op, d_weight, d_bias,
                                d_out, stride, state->stream, err);
    case EVQ_OP_LAYER_NORM:
    case EVQ_OP_RMS_NORM:
        return evq_norm_launch(d_in, in_stride, rows, op, d_weight,
                               op->kind == EVQ_OP_LAYER_NORM ? d_bias : NULL, d_out, stride,
                               state->stream, err);
    case EVQ_OP_ROPE:
        return evq_rope_launch(d_out, stride, rows, d_positions, op, frequencies_of(state, op),
                               state->stream, err);
    case EVQ_OP_ATTENTION:
        return evq_attention_launch(d_in, in_stride, rows, d_positions, op, d_out, stride,
                                    state->stream, err);
    case EVQ_OP_GATE:
        return evq_gate_launch(d_in, in_stride, rows, op->n, op->activation, d_out, stride,
                               state->stream, err);
    default:
        return evq_error_set(err, EVQ_E_BUG, "operation %d is not known", (int)op->kind);
    }
}

static enum evq_status run_op(struct evq_cuda_state *state, const struct evq_op *op, int32_t rows,
                              int32_t scores, struct evq_error *err)
{
    const float *d_in = state->buffers[op->in].d_data;
    float *d_out = op->out < 0 ? NULL : state->buffers[op->out].d_data;
    const float *d_weight = weight_of(state, op->weight);
    const float *d_bias = weight_of(state, op->bias);
    enum evq_status status = EVQ_OK;

    switch (op->kind) {
    case EVQ_OP_GEMM:
        return run_gemm(state, op, rows, d_in, d_weight, d_bias, d_out, err);
    case EVQ_OP_SCALE_SHIFT:
        status = evq_scale_shift_launch(d_in, rows, op->n, d_weight, d_bias, op->scale, op->shift,
                                        d_out, state->stream, err);
        return status == EVQ_OK ? evq_bias_activate_launch(d_out, rows, op->n, NULL, op->activation,
                                                           state->stream, err)
                                : status;
    case EVQ_OP_SCORE:
        return run_score(state, op, scores, d_in, d_weight, d_bias, err);
    case EVQ_OP_CROSS_ENTROPY:
        return evq_cross_entropy_launch(d_in, rows, op->n, state->labels.d_data, op->top_k,
                                        state->results.d_data, state->stream, err);
    case EVQ_OP_SQUARED_ERROR:
        return evq_squared_error_launch(d_in, rows, op->n, state->targets.d_data,
                                        state->results.d_data, state->stream, err);
    default:
        return run_token_op(state, op, rows, err);
    }
}

static enum evq_status copy_tokens(struct evq_cuda_state *state, const struct evq_batch *batch,
                                   struct evq_error *err)
{
    const size_t rows = (size_t)batch->rows * sizeof(int32_t);
    const size_t scores = (size_t)batch->scores * sizeof(int32_t);
    enum evq_status status = EVQ_OK;

    for (int32_t s = 0; s < batch->sequences; s++) {
        for (int32_t r = batch->starts[s]; r < batch->starts[s + 1]; r++) {
            state->positions_host[r] = r - batch->starts[s];
        }
    }
    status = evq_cuda_copy_in(state, state->positions.d_data, state->positions_host, rows,
                              "copy positions", err);
    if (status == EVQ_OK && batch->tokens != NULL) {
        status =
            evq_cuda_copy_in(state, state->tokens.d_data, batch->tokens, rows, "copy tokens", err);
    }
    if (status == EVQ_OK && batch->scores > 0) {
        status = evq_cuda_block_grow(state, &state->score_rows, scores, "scores", err);
        if (status == EVQ_OK) {
            status = evq_cuda_block_grow(state, &state->labels, scores, "scores", err);
        }
        if (status == EVQ_OK) {
            status = evq_cuda_copy_in(state, state->score_rows.d_data, batch->score_rows, scores,
                                      "copy scores", err);
        }
        if (status == EVQ_OK) {
            status = evq_cuda_copy_in(state, state->labels.d_data, batch->score_targets, scores,
                                      "copy scores", err);
        }
    }
    return status;
}

static enum evq_status copy_batch(struct evq_cuda_state *state, const struct evq_batch *batch,
                                  struct evq_error *err)
{
    const struct evq_plan *plan = state->plan;
    const size_t rows = (size_t)batch->rows;

    enum evq_status status = EVQ_OK;
    if (plan->length_max > 0) {
        status = copy_tokens(state, batch, err);
    }
    if (status == EVQ_OK && batch->inputs != NULL) {
        status = evq_cuda_copy_in(state, state->buffers[0].d_data, batch->inputs,
                                  rows * (size_t)plan->buffer_columns[0] * sizeof(float),
                                  "copy inputs", err);
    }
    for (size_t i = 0; i < plan->op_count && status == EVQ_OK; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_CROSS_ENTROPY) {
            status = evq_cuda_copy_in(state, state->labels.d_data, batch->labels,
                                      rows * sizeof(int32_t), "copy labels", err);
        } else if (op->kind == EVQ_OP_SQUARED_ERROR) {
            status = evq_cuda_copy_in(state, state->targets.d_data, batch->targets,
                                      rows * (size_t)op->n * sizeof(float), "copy targets", err);
        }
    }
    return status;
}

static enum evq_status run_batch(struct evq_cuda_state *state, const struct evq_batch *batch,
                                 struct evq_row_result *results, struct evq_error *err)
{
    const struct evq_op *head = &state->plan->ops[state->plan->op_count - 1];
    const int32_t count = head->kind == EVQ_OP_SCORE ? batch->scores : batch->rows;
    const size_t bytes = (size_t)count * sizeof(*results);

    enum evq_status status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status = evq_cuda_results_grow(state, bytes, err);
    }
    if (status == EVQ_OK) {
        status = copy_batch(state, batch, err);
    }
    for (size_t i = 0; i < state->plan->op_count && status == EVQ_OK; i++) {
        status = run_op(state, &state->plan->ops[i], batch->rows, batch->scores, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaMemcpyAsync(state->h_results, state->results.d_data, bytes,
                                                 cudaMemcpyDeviceToHost, state->stream),
                                 "copy results", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaStreamSynchronize(state->stream), "run the plan", err);
    } else {
        (void)cudaStreamSynchronize(
            state->stream); // The caller may reuse the batch; the first error counts.
    }
    if (status == EVQ_OK) {
        memcpy(results, state->h_results, bytes);
    }
    return status;
}

enum evq_status evq_cuda_exec(void *opened, const struct evq_batch *batch,
                              struct evq_row_result *results, struct evq_error *err)
{
    struct evq_cuda_state *state = opened;

    if (state->plan == NULL) {
        return evq_error_set(err, EVQ_E_BUG, "exec before prepare");
    }
    enum evq_status status = evq_plan_batch_check(state->plan, batch, err);
    for (size_t i = 0; i < state->plan->slot_count && status == EVQ_OK; i++) {
        if (state->weights[i].rows_put < state->weights[i].rows) {
            status = evq_error_set(err, EVQ_E_BUG, "weight '%s' was never put",
                                   state->plan->slots[i].name);
        }
    }
    if (status == EVQ_OK && batch->rows > 0) {
        status = run_batch(state, batch, results, err);
    }
    if (status == EVQ_OK) {
        state->stats.exec_calls++;
        state->stats.rows += (uint64_t)batch->rows;
        state->stats.flops += evq_plan_flops(state->plan, batch);
    }
    return status;
}
