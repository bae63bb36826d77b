/*
 * Runs one operation of a plan on the device. In bf16, cuBLASLt computes products, combined with
 * bias, tanh-GELU and residual if it can. If it cannot, the product is computed into fp32 and a
 * kernel does the rest.
 */
#include "kernels/cuda/state.h"
#include "kernels/plan.h"

static struct evq_cuda_rows rows_of(const struct evq_cuda_state *state, int32_t buffer)
{
    const struct evq_cuda_buffer *at = &state->buffers[buffer];

    return (struct evq_cuda_rows){at->block.d_data, at->stride, at->bf16};
}

static const float *vector_of(const struct evq_cuda_state *state, int32_t slot)
{
    return slot < 0 ? NULL : state->weights[slot].block.d_data;
}

static struct evq_cuda_rows matrix_of(const struct evq_cuda_state *state, int32_t slot)
{
    const struct evq_cuda_weight *weight = &state->weights[slot];

    return (struct evq_cuda_rows){weight->block.d_data, weight->stride, weight->bf16};
}

/* fp32 product: row-major out = in * weight^T is column-major out^T = weight^T' * in, where weight
 * is stored [k, n]. out is packed. */
static enum evq_status multiply(struct evq_cuda_state *state, const struct evq_op *op, int32_t rows,
                                const struct evq_cuda_rows *in, float *d_out, struct evq_error *err)
{
    const float one = 1.0f;
    const float zero = 0.0f;

    return evq_cublas_status(state->cublas.sgemm(state->cublas_handle, EVQ_CUBLAS_OP_T,
                                                 EVQ_CUBLAS_OP_N, op->n, rows, op->k, &one,
                                                 vector_of(state, op->weight), op->k, in->d_data,
                                                 (int)in->stride, &zero, d_out, op->n),
                             "matrix product", err);
}

static enum evq_status gemm_fp32(struct evq_cuda_state *state, const struct evq_op *op,
                                 int32_t rows, struct evq_error *err)
{
    const struct evq_cuda_rows in = rows_of(state, op->in);
    const struct evq_cuda_rows out = rows_of(state, op->out);
    const struct evq_cuda_rows residual = rows_of(state, op->residual);
    const float *d_bias = vector_of(state, op->bias);
    const bool direct = op->residual == 0 && out.stride == op->n;
    float *d_product = direct ? out.d_data : state->product.d_data;

    const enum evq_status status = multiply(state, op, rows, &in, d_product, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (direct && d_bias == NULL && op->activation == EVQ_ACT_NONE) {
        return EVQ_OK;
    }
    return evq_epilogue_launch(d_product, rows, op->n, d_bias, op->activation,
                               op->residual != 0 ? &residual : NULL, &out, state->stream, err);
}

/* The rows as a bf16 product reads them: unchanged, or rounded. */
static enum evq_status narrow(struct evq_cuda_state *state, int32_t rows, int32_t k,
                              struct evq_cuda_rows *in, struct evq_error *err)
{
    const struct evq_cuda_rows out = {state->narrowed.d_data, evq_cuda_up(k, 8), true};

    if (in->bf16) {
        return EVQ_OK;
    }
    const enum evq_status status = evq_gather_launch(in, NULL, rows, k, &out, state->stream, err);
    *in = out;
    return status;
}

static enum evq_status run_product(struct evq_cuda_state *state, const struct evq_op *op,
                                   const struct evq_cuda_product *product, int32_t rows,
                                   const struct evq_cuda_rows *in, void *d_out, bool *ret_done,
                                   struct evq_error *err)
{
    const struct evq_cuda_weight *bias = op->bias >= 0 ? &state->weights[op->bias] : NULL;
    const struct evq_cuda_block *added = NULL;

    if (bias != NULL) {
        added = product->out_type == EVQ_CUDA_R_16BF ? &bias->rounded : &bias->block;
    }
    const struct evq_cuda_operands operands = {
        .rows = (int32_t)evq_cuda_up(rows, EVQ_CUDA_ROWS),
        .d_weight = state->weights[op->weight].block.d_data,
        .d_in = in->d_data,
        .d_bias = added != NULL ? added->d_data : NULL,
        .d_out = d_out,
        .d_workspace = state->workspace.d_data,
    };
    return evq_cuda_product_run(&state->products, &state->cublas, product, &operands, state->stream,
                                ret_done, err);
}

/* Computes the product into fp32, and the rest with a kernel. */
static enum evq_status gemm_apart(struct evq_cuda_state *state, const struct evq_op *op,
                                  int32_t rows, const struct evq_cuda_rows *in,
                                  struct evq_cuda_product product, struct evq_error *err)
{
    const struct evq_cuda_rows out = rows_of(state, op->out);
    const struct evq_cuda_rows residual = rows_of(state, op->residual);
    const size_t bytes =
        (size_t)evq_cuda_up(state->plan->rows_max, EVQ_CUDA_ROWS) * (size_t)op->n * sizeof(float);
    bool done = false;

    product.epilogue = EVQ_CUBLASLT_DEFAULT;
    product.out_type = EVQ_CUDA_R_32F;
    product.out_stride = op->n;
    product.adds = 0;
    enum evq_status status = evq_cuda_block_grow(state, &state->product, bytes, "products", err);
    if (status == EVQ_OK) {
        status = run_product(state, op, &product, rows, in, state->product.d_data, &done, err);
    }
    if (status == EVQ_OK && !done) {
        return evq_error_set(err, EVQ_E_DEVICE,
                             "cuBLASLt has no way to multiply %d rows of %d values by %d in bf16",
                             (int)rows, (int)op->k, (int)op->n);
    }
    return status == EVQ_OK
               ? evq_epilogue_launch(state->product.d_data, rows, op->n, vector_of(state, op->bias),
                                     op->activation, op->residual != 0 ? &residual : NULL, &out,
                                     state->stream, err)
               : status;
}

static enum evq_status gemm_bf16(struct evq_cuda_state *state, const struct evq_op *op,
                                 int32_t rows, struct evq_error *err)
{
    const struct evq_cuda_rows out = rows_of(state, op->out);
    struct evq_cuda_rows in = rows_of(state, op->in);
    const bool gelu = op->activation == EVQ_ACT_GELU_TANH;
    const int32_t epilogue =
        (op->bias >= 0 ? EVQ_CUBLASLT_BIAS : 0) | (gelu ? EVQ_CUBLASLT_GELU : 0);
    const bool joins =
        op->residual == 0 || (op->residual == op->out && op->activation == EVQ_ACT_NONE);
    bool done = false;

    enum evq_status status = narrow(state, rows, op->k, &in, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_cuda_product product = {
        .weight_stride = state->weights[op->weight].stride,
        .in_stride = in.stride,
        .out_stride = out.stride,
        .asked_rows = EVQ_CUDA_ASKED_ROWS,
        .n = op->n,
        .k = op->k,
        .epilogue = epilogue != 0 ? epilogue : EVQ_CUBLASLT_DEFAULT,
        .out_type = out.bf16 ? EVQ_CUDA_R_16BF : EVQ_CUDA_R_32F,
        .adds = op->residual != 0,
    };
    if (joins) {
        status = run_product(state, op, &product, rows, &in, out.d_data, &done, err);
    }
    if (status == EVQ_OK && !done) {
        return gemm_apart(state, op, rows, &in, product, err);
    }
    return status == EVQ_OK && !gelu
               ? evq_activate_launch(&out, rows, op->n, op->activation, state->stream, err)
               : status;
}

/* Computes the logits of a chunk of scores in fp32, and then the results. */
static enum evq_status score_chunk(struct evq_cuda_state *state, const struct evq_op *op,
                                   int32_t first, int32_t count, struct evq_error *err)
{
    const bool bf16 = state->plan->compute == EVQ_COMPUTE_BF16;
    const struct evq_cuda_rows in = rows_of(state, op->in);
    const struct evq_cuda_rows gathered = {state->gathered.d_data,
                                           bf16 ? evq_cuda_up(op->k, 8) : op->k, bf16};
    const struct evq_cuda_rows logits = {state->logits.d_data, bf16 ? evq_cuda_up(op->n, 8) : op->n,
                                         false};
    const int32_t *d_rows = (const int32_t *)state->score_rows.d_data + first;
    const int32_t *d_targets = (const int32_t *)state->labels.d_data + first;
    struct evq_row_result *d_results = (struct evq_row_result *)state->results.d_data + first;
    const float *d_bias = vector_of(state, op->bias);
    const float scale = op->scale != 0.0f ? op->scale : 1.0f;
    const bool caps = op->scale != 0.0f || op->cap > 0.0f;
    bool done = true;

    enum evq_status status =
        evq_gather_launch(&in, d_rows, count, op->k, &gathered, state->stream, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (bf16) { // Rows of zeros behind the vocabulary make its logits a multiple of 16 bytes wide.
        const struct evq_cuda_product product = {
            .weight_stride = state->weights[op->weight].stride,
            .in_stride = gathered.stride,
            .out_stride = logits.stride,
            .asked_rows = evq_cuda_score_chunk(state->plan->compute, op->n),
            .n = (int32_t)evq_cuda_up(op->n, 8),
            .k = op->k,
            .epilogue = EVQ_CUBLASLT_DEFAULT,
            .out_type = EVQ_CUDA_R_32F,
        };
        status = run_product(state, op, &product, count, &gathered, logits.d_data, &done, err);
        if (status == EVQ_OK && !done) {
            status = evq_error_set(err, EVQ_E_DEVICE, "cuBLASLt has no way to compute logits");
        }
        if (status == EVQ_OK && caps) {
            status = evq_cap_launch(&logits, count, op->n, scale, op->cap, state->stream, err);
        }
        return status == EVQ_OK ? evq_logsum_launch(&logits, count, op->n, d_bias, d_targets,
                                                    d_results, state->stream, err)
                                : status;
    }
    status = multiply(state, op, count, &gathered, logits.d_data, err);
    if (status == EVQ_OK && d_bias != NULL) {
        status = evq_epilogue_launch(logits.d_data, count, op->n, d_bias, EVQ_ACT_NONE, NULL,
                                     &logits, state->stream, err);
    }
    if (status == EVQ_OK && caps) {
        status = evq_cap_launch(&logits, count, op->n, scale, op->cap, state->stream, err);
    }
    return status == EVQ_OK ? evq_cross_entropy_launch(&logits, NULL, count, op->n, d_targets, 0,
                                                       d_results, state->stream, err)
                            : status;
}

static enum evq_status run_score(struct evq_cuda_state *state, const struct evq_op *op,
                                 int32_t scores, struct evq_error *err)
{
    const int32_t chunk = evq_cuda_score_chunk(state->plan->compute, op->n);
    enum evq_status status = EVQ_OK;

    for (int32_t first = 0; first < scores && status == EVQ_OK; first += chunk) {
        status =
            score_chunk(state, op, first, scores - first < chunk ? scores - first : chunk, err);
    }
    return status;
}

/* Whether tensor cores compute the operation, with the buffers as prepared. */
static bool on_tensor_cores(const struct evq_cuda_state *state, const struct evq_op *op)
{
    return op->scale > 0.0f && state->buffers[op->in].bf16 && state->buffers[op->out].bf16 &&
           evq_attention_bf16_queries(op->n) > 0;
}

int32_t evq_cuda_tile_queries(const struct evq_cuda_state *state, const struct evq_op *op)
{
    return on_tensor_cores(state, op) ? evq_attention_bf16_queries(op->n)
                                      : evq_attention_fp32_queries(op->n);
}

static enum evq_status run_attention(struct evq_cuda_state *state, const struct evq_op *op,
                                     int32_t tiles, struct evq_error *err)
{
    const struct evq_cuda_rows in = rows_of(state, op->in);
    const struct evq_cuda_rows out = rows_of(state, op->out);
    const float *d_sinks = vector_of(state, op->weight);

    return on_tensor_cores(state, op)
               ? evq_attention_bf16_launch(&in, state->tiles.d_data, tiles, op, d_sinks, &out,
                                           state->stream, err)
               : evq_attention_fp32_launch(&in, state->tiles.d_data, tiles, op, d_sinks, &out,
                                           state->stream, err);
}

/* In bf16, two adjacent norms of heads, in place, and the ROPE after them are one pass. A single
 * ROPE is one pass too. Returns the number of operations in the pass; 0: these are other
 * operations. */
static size_t read_rope(const struct evq_cuda_state *state, size_t number,
                        struct evq_cuda_rope *rope)
{
    const struct evq_op *op = &state->plan->ops[number];
    const bool three = number + 2 < state->plan->op_count;

    if (op->kind == EVQ_OP_ROPE) {
        *rope = (struct evq_cuda_rope){.n = op->n,
                                       .heads = op->heads,
                                       .column = op->column,
                                       .turned = op->k,
                                       .step = op->step,
                                       .neighbours = op->neighbours,
                                       .near = op->near,
                                       .d_rope_table = evq_cuda_rope_table_of(state, op)};
        return 1;
    }
    if (!three || op->kind != EVQ_OP_RMS_NORM || op->out != op->in ||
        !state->buffers[op->in].bf16) {
        return 0;
    }
    const struct evq_op *rest = op + 1;
    const struct evq_op *rotation = op + 2;
    if (rest->kind != EVQ_OP_RMS_NORM || rest->in != op->in || rest->out != op->in ||
        rest->n != op->n || rest->column != op->column + op->heads * op->n ||
        rotation->kind != EVQ_OP_ROPE || rotation->in != op->in || rotation->n != op->n ||
        rotation->column != op->column || rotation->heads != op->heads + rest->heads ||
        (rotation->k != 0 && rotation->k != op->n) || rotation->step > op->n ||
        rotation->neighbours || state->weights[op->weight].columns != op->n ||
        state->weights[rest->weight].columns != op->n) {
        return 0;
    }
    *rope = (struct evq_cuda_rope){.n = op->n,
                                   .heads = rotation->heads,
                                   .column = op->column,
                                   .first_heads = op->heads,
                                   .d_first_norm = vector_of(state, op->weight),
                                   .d_rest_norm = vector_of(state, rest->weight),
                                   .first_epsilon = op->epsilon,
                                   .rest_epsilon = rest->epsilon,
                                   .near = rotation->near,
                                   .d_rope_table = evq_cuda_rope_table_of(state, rotation)};
    return 3;
}

/* Heads with weights of their own are normed one after another. */
static enum evq_status run_norm(struct evq_cuda_state *state, const struct evq_op *op, int32_t rows,
                                struct evq_error *err)
{
    const struct evq_cuda_rows in = rows_of(state, op->in);
    const struct evq_cuda_rows out = rows_of(state, op->out);
    const float *d_bias = op->kind == EVQ_OP_LAYER_NORM ? vector_of(state, op->bias) : NULL;
    const bool own = state->weights[op->weight].columns > op->n;
    struct evq_op one = *op;
    enum evq_status status = EVQ_OK;

    one.heads = own ? 1 : op->heads;
    for (int32_t h = 0; h < op->heads && status == EVQ_OK; h += one.heads) {
        one.column = op->column + h * op->n;
        status = evq_norm_launch(
            &in, rows, &one, vector_of(state, op->weight) + (own ? (size_t)h * (size_t)op->n : 0),
            d_bias, &out, state->stream, err);
    }
    return status;
}

/* The length of each row's sequence. */
static const int32_t *lengths_of(const struct evq_cuda_state *state, const struct evq_batch *batch)
{
    return (const int32_t *)state->positions.d_data + batch->rows;
}

static enum evq_status run_rows(struct evq_cuda_state *state, const struct evq_op *op,
                                const struct evq_batch *batch, struct evq_error *err)
{
    const int32_t rows = batch->rows;
    const struct evq_cuda_rows in = rows_of(state, op->in);
    const struct evq_cuda_rows out = rows_of(state, op->out);
    const float *d_bias = vector_of(state, op->bias);
    cudaStream_t stream = state->stream;

    switch (op->kind) {
    case EVQ_OP_EMBEDDING: {
        const struct evq_cuda_lookup lookup = {
            .d_tokens = state->tokens.d_data,
            .d_positions = state->positions.d_data,
            .d_types = batch->types != NULL ? state->types.d_data : NULL,
            .table = matrix_of(state, op->weight),
            .d_places = d_bias,
            .d_type_table = op->types != 0 ? vector_of(state, op->types) : NULL};
        return evq_embed_launch(&lookup, rows, op, &out, stream, err);
    }
    case EVQ_OP_MEAN:
        return evq_mean_launch(&in, rows, op->n, state->positions.d_data, lengths_of(state, batch),
                               &out, stream, err);
    case EVQ_OP_LAYER_NORM:
    case EVQ_OP_RMS_NORM:
        return run_norm(state, op, rows, err);
    case EVQ_OP_ADD: {
        const struct evq_cuda_rows residual = rows_of(state, op->residual);
        return evq_add_launch(&in, rows, op->n, op->scale, &residual, &out, stream, err);
    }
    case EVQ_OP_GATE:
        return evq_gate_launch(&in, rows, op->n, op->activation, &out, stream, err);
    default:
        return evq_error_set(err, EVQ_E_BUG, "operation %d is not known", (int)op->kind);
    }
}

enum evq_status evq_cuda_step(struct evq_cuda_state *state, const struct evq_batch *batch,
                              int32_t tiles, size_t number, size_t *ret_next, struct evq_error *err)
{
    const struct evq_op *op = &state->plan->ops[number];
    const struct evq_cuda_rows in = rows_of(state, op->in);
    struct evq_cuda_rope rope;

    const size_t turned = read_rope(state, number, &rope);
    *ret_next = number + (turned > 0 ? turned : 1);
    if (turned > 0) {
        const struct evq_op *rotation = op + turned - 1;
        rope.d_lengths = rotation->far_frequencies != NULL ? lengths_of(state, batch) : NULL;
        return evq_rope_launch(&in, batch->rows, state->positions.d_data, &rope, state->stream,
                               err);
    }
    switch (op->kind) {
    case EVQ_OP_GEMM:
        return state->plan->compute == EVQ_COMPUTE_BF16 ? gemm_bf16(state, op, batch->rows, err)
                                                        : gemm_fp32(state, op, batch->rows, err);
    case EVQ_OP_ATTENTION:
        return run_attention(state, op, tiles, err);
    case EVQ_OP_SCORE:
        return run_score(state, op, batch->scores, err);
    case EVQ_OP_CROSS_ENTROPY:
        return evq_cross_entropy_launch(
            &in, state->plan->length_max > 0 ? state->score_rows.d_data : NULL,
            evq_plan_results(state->plan, batch), op->n, state->labels.d_data, op->top_k,
            state->results.d_data, state->stream, err);
    case EVQ_OP_SQUARED_ERROR:
        return evq_squared_error_launch(&in, batch->rows, op->n, state->targets.d_data,
                                        state->results.d_data, state->stream, err);
    default:
        return run_rows(state, op, batch, err);
    }
}
