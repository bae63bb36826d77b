/*
 * The CUDA backend: one device, one stream, fp32 by cuBLAS, everything else by the kernels of
 * ops.cu. Memory is sized by prepare(); exec() copies a batch in, runs the plan in order and copies
 * the results out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/ops.h"
#include "kernels/plan.h"

#define CAPABILITY_MIN 80 // sm_80: the oldest the module is built for.

struct block { // Device memory that only grows.
    void *d_data;
    size_t bytes;
};

struct weight {
    struct block block;
    int32_t rows, columns;
    bool filled;
};

struct cuda_state {
    int device;
    cudaStream_t stream;
    struct evq_cublas cublas;
    void *cublas_handle;
    const struct evq_plan *plan;
    struct weight *weights;
    size_t weight_count;
    struct block *buffers;
    size_t buffer_count;
    struct block labels, targets, results;
    void *h_results; // Pinned.
    size_t h_result_bytes;
    size_t memory_max;
    size_t memory;
    uint64_t row_flops;
    struct evq_backend_stats stats;
};

static int32_t cuda_probe(struct evq_error *err)
{
    struct evq_cublas cublas;
    int version = 0;
    int count = 0;

    if (cudaDriverGetVersion(&version) == cudaSuccess && version == 0) {
        (void)evq_error_set(err, EVQ_E_DEVICE, "no NVIDIA driver is installed");
        return 0;
    }
    if (evq_cuda_status(cudaGetDeviceCount(&count), "look for GPUs", err) != EVQ_OK) {
        (void)cudaGetLastError(); // Clears what the next call would report again.
        return 0;
    }
    if (count < 1) {
        (void)evq_error_set(err, EVQ_E_DEVICE, "look for GPUs: there is none");
        return 0;
    }
    return evq_cublas_load(&cublas, err) == EVQ_OK ? (int32_t)count : 0;
}

/* Frees what it holds; the device's memory may be gone with the device, so nothing is reported. */
static void block_free(struct cuda_state *state, struct block *block)
{
    if (block->d_data != NULL) {
        (void)cudaFree(block->d_data);
        state->memory -= block->bytes;
    }
    *block = (struct block){0};
}

static void cuda_close(void *opened)
{
    struct cuda_state *state = opened;

    if (state == NULL) {
        return;
    }
    // None of these can be reported, and all of them fail alike once the device has failed.
    (void)cudaSetDevice(state->device);
    if (state->stream != NULL) {
        (void)cudaStreamSynchronize(state->stream);
    }
    if (state->cublas_handle != NULL) {
        (void)state->cublas.destroy(state->cublas_handle);
    }
    for (size_t i = 0; i < state->weight_count; i++) {
        block_free(state, &state->weights[i].block);
    }
    for (size_t i = 0; i < state->buffer_count; i++) {
        block_free(state, &state->buffers[i]);
    }
    block_free(state, &state->labels);
    block_free(state, &state->targets);
    block_free(state, &state->results);
    (void)cudaFreeHost(state->h_results);
    if (state->stream != NULL) {
        (void)cudaStreamDestroy(state->stream);
    }
    free(state->weights);
    free(state->buffers);
    free(state);
}

static enum evq_status open_device(struct cuda_state *state, struct evq_error *err)
{
    int major = 0;
    int minor = 0;

    enum evq_status status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status = evq_cuda_status(
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, state->device),
            "ask the GPU", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, state->device),
            "ask the GPU", err);
    }
    if (status == EVQ_OK && 10 * major + minor < CAPABILITY_MIN) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "GPU %d has compute capability %d.%d, expected at least 8.0",
                             state->device, major, minor);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking),
                                 "make a stream", err);
    }
    if (status == EVQ_OK) {
        status = evq_cublas_load(&state->cublas, err);
    }
    if (status == EVQ_OK) {
        status =
            evq_cublas_status(state->cublas.create(&state->cublas_handle), "start cuBLAS", err);
    }
    if (status == EVQ_OK) {
        status = evq_cublas_status(state->cublas.set_stream(state->cublas_handle, state->stream),
                                   "start cuBLAS", err);
    }
    if (status == EVQ_OK) {
        status = evq_cublas_status(
            state->cublas.set_math_mode(state->cublas_handle, EVQ_CUBLAS_PEDANTIC_MATH),
            "start cuBLAS", err);
    }
    return status;
}

static enum evq_status cuda_open(const struct evq_backend_config *config, void **ret_state,
                                 struct evq_error *err)
{
    struct cuda_state *state = calloc(1, sizeof(*state));

    if (state == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "CUDA backend");
    }
    state->device = config->device;
    state->memory_max = config->memory_bytes_max > 0 ? config->memory_bytes_max : SIZE_MAX;
    const enum evq_status status = open_device(state, err);
    if (status != EVQ_OK) {
        cuda_close(state);
        return status;
    }
    *ret_state = state;
    return EVQ_OK;
}

static void cuda_caps(void *opened, struct evq_backend_caps *ret_caps)
{
    const struct cuda_state *state = opened;
    struct cudaDeviceProp properties;

    *ret_caps = (struct evq_backend_caps){0};
    if (cudaGetDeviceProperties(&properties, state->device) != cudaSuccess) {
        (void)snprintf(ret_caps->device, sizeof(ret_caps->device), "CUDA device %d", state->device);
        return;
    }
    (void)snprintf(ret_caps->device, sizeof(ret_caps->device), "%.127s", properties.name);
    ret_caps->memory_bytes = properties.totalGlobalMem;
    ret_caps->bf16 = properties.major >= 8;
}

static enum evq_status cuda_alloc(void *opened, size_t bytes, void **ret_host,
                                  struct evq_error *err)
{
    const struct cuda_state *state = opened;
    void *host = NULL;

    enum evq_status status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status =
            evq_cuda_status(cudaMallocHost(&host, bytes > 0 ? bytes : 1), "pin host memory", err);
    }
    if (status == EVQ_OK) {
        *ret_host = host;
    }
    return status;
}

static void cuda_free(void *opened, void *host)
{
    (void)opened;
    (void)cudaFreeHost(host); // Nothing can be done about a failure, and nothing is lost by one.
}

static enum evq_status block_grow(struct cuda_state *state, struct block *block, size_t bytes,
                                  const char *what, struct evq_error *err)
{
    if (bytes <= block->bytes) {
        return EVQ_OK;
    }
    block_free(state, block);
    if (bytes > state->memory_max - state->memory) {
        return evq_error_set(err, EVQ_E_NOMEM,
                             "%zu bytes of '%s' do not fit in the GPU memory allowed", bytes, what);
    }
    const enum evq_status status = evq_cuda_status(cudaMalloc(&block->d_data, bytes), what, err);
    if (status != EVQ_OK) {
        block->d_data = NULL;
        (void)cudaGetLastError(); // Out of memory is not sticky: what fits may still run.
        return status;
    }
    block->bytes = bytes;
    state->memory += bytes;
    return EVQ_OK;
}

static enum evq_status prepare_weights(struct cuda_state *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    while (state->weight_count > plan->slot_count) {
        block_free(state, &state->weights[--state->weight_count].block);
    }
    struct weight *grown = realloc(state->weights, (plan->slot_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu weights", plan->slot_count);
    }
    state->weights = grown;
    for (; state->weight_count < plan->slot_count; state->weight_count++) {
        state->weights[state->weight_count] = (struct weight){0};
    }
    for (size_t i = 0; i < plan->slot_count && status == EVQ_OK; i++) {
        const struct evq_weight_slot *slot = &plan->slots[i];
        struct weight *weight = &state->weights[i];
        if (weight->rows == slot->rows && weight->columns == slot->columns &&
            weight->block.d_data != NULL) {
            continue; // Keeps its values too.
        }
        weight->filled = false;
        weight->rows = slot->rows;
        weight->columns = slot->columns;
        status =
            block_grow(state, &weight->block,
                       (size_t)slot->rows * (size_t)slot->columns * sizeof(float), slot->name, err);
    }
    return status;
}

static enum evq_status prepare_buffers(struct cuda_state *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    const size_t rows = (size_t)plan->rows_max;
    enum evq_status status = EVQ_OK;
    size_t target_columns = 0;

    while (state->buffer_count > (size_t)plan->buffer_count) {
        block_free(state, &state->buffers[--state->buffer_count]);
    }
    struct block *grown = realloc(state->buffers, (size_t)plan->buffer_count * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%d buffers", (int)plan->buffer_count);
    }
    state->buffers = grown;
    for (; state->buffer_count < (size_t)plan->buffer_count; state->buffer_count++) {
        state->buffers[state->buffer_count] = (struct block){0};
    }
    for (size_t i = 0; i < state->buffer_count && status == EVQ_OK; i++) {
        status =
            block_grow(state, &state->buffers[i],
                       rows * (size_t)plan->buffer_columns[i] * sizeof(float), "activations", err);
    }
    for (size_t i = 0; i < plan->op_count; i++) {
        if (plan->ops[i].kind == EVQ_OP_SQUARED_ERROR && (size_t)plan->ops[i].n > target_columns) {
            target_columns = (size_t)plan->ops[i].n;
        }
    }
    if (status == EVQ_OK) {
        status = block_grow(state, &state->targets, rows * target_columns * sizeof(float),
                            "targets", err);
    }
    if (status == EVQ_OK) {
        status = block_grow(state, &state->labels, rows * sizeof(int32_t), "labels", err);
    }
    if (status == EVQ_OK) {
        status = block_grow(state, &state->results, rows * sizeof(struct evq_row_result), "results",
                            err);
    }
    if (status == EVQ_OK && state->h_result_bytes < state->results.bytes) {
        (void)cudaFreeHost(state->h_results);
        state->h_results = NULL;
        state->h_result_bytes = 0;
        status = cuda_alloc(state, state->results.bytes, &state->h_results, err);
        state->h_result_bytes = status == EVQ_OK ? state->results.bytes : 0;
    }
    return status;
}

static enum evq_status cuda_prepare(void *opened, const struct evq_plan *plan,
                                    struct evq_error *err)
{
    struct cuda_state *state = opened;

    state->plan = NULL;
    enum evq_status status = evq_plan_check(plan, err);
    if (status == EVQ_OK) {
        status = evq_plan_check_samples(plan, err);
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
        state->plan = plan;
        state->row_flops = evq_plan_row_flops(plan);
    }
    return status;
}

static enum evq_status copy_in(struct cuda_state *state, void *d_to, const void *from, size_t bytes,
                               const char *what, struct evq_error *err)
{
    return evq_cuda_status(
        cudaMemcpyAsync(d_to, from, bytes, cudaMemcpyHostToDevice, state->stream), what, err);
}

static enum evq_status cuda_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                                struct evq_error *err)
{
    struct cuda_state *state = opened;

    enum evq_status status = evq_plan_blob_check(state->plan, slot, blob, err);
    if (status != EVQ_OK) {
        return status;
    }
    struct weight *weight = &state->weights[slot];
    status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status = copy_in(state, weight->block.d_data, blob->values,
                         (size_t)weight->rows * (size_t)weight->columns * sizeof(float),
                         "copy a weight", err);
    }
    weight->filled = weight->filled || status == EVQ_OK;
    return status;
}

static enum evq_status cuda_settle(void *opened, struct evq_error *err)
{
    const struct cuda_state *state = opened;

    return evq_cuda_status(cudaStreamSynchronize(state->stream), "copy a weight", err);
}

/* Row-major out = in * weight^T is column-major out^T = weight^T' * in, with weight stored [k, n]
 * there. */
static enum evq_status run_gemm(struct cuda_state *state, const struct evq_op *op, int32_t rows,
                                const float *d_in, const float *d_weight, const float *d_bias,
                                float *d_out, struct evq_error *err)
{
    const float one = 1.0f;
    const float zero = 0.0f;

    const enum evq_status status = evq_cublas_status(
        state->cublas.sgemm(state->cublas_handle, EVQ_CUBLAS_OP_T, EVQ_CUBLAS_OP_N, op->n, rows,
                            op->k, &one, d_weight, op->k, d_in, op->k, &zero, d_out, op->n),
        "matrix product", err);
    return status == EVQ_OK ? evq_bias_activate_launch(d_out, rows, op->n, d_bias, op->activation,
                                                       state->stream, err)
                            : status;
}

static const float *weight_of(const struct cuda_state *state, int32_t slot)
{
    return slot < 0 ? NULL : state->weights[slot].block.d_data;
}

static enum evq_status run_op(struct cuda_state *state, const struct evq_op *op, int32_t rows,
                              struct evq_error *err)
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
    case EVQ_OP_CROSS_ENTROPY:
        return evq_cross_entropy_launch(d_in, rows, op->n, state->labels.d_data, op->top_k,
                                        state->results.d_data, state->stream, err);
    case EVQ_OP_SQUARED_ERROR:
        return evq_squared_error_launch(d_in, rows, op->n, state->targets.d_data,
                                        state->results.d_data, state->stream, err);
    default:
        break; // prepare() refused it.
    }
    return evq_error_set(err, EVQ_E_BUG, "operation %d is not known", (int)op->kind);
}

static enum evq_status copy_batch(struct cuda_state *state, const struct evq_batch *batch,
                                  struct evq_error *err)
{
    const struct evq_plan *plan = state->plan;
    const size_t rows = (size_t)batch->rows;

    enum evq_status status =
        copy_in(state, state->buffers[0].d_data, batch->inputs,
                rows * (size_t)plan->buffer_columns[0] * sizeof(float), "copy inputs", err);
    for (size_t i = 0; i < plan->op_count && status == EVQ_OK; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_CROSS_ENTROPY) {
            status = copy_in(state, state->labels.d_data, batch->labels, rows * sizeof(int32_t),
                             "copy labels", err);
        } else if (op->kind == EVQ_OP_SQUARED_ERROR) {
            status = copy_in(state, state->targets.d_data, batch->targets,
                             rows * (size_t)op->n * sizeof(float), "copy targets", err);
        }
    }
    return status;
}

static enum evq_status run_batch(struct cuda_state *state, const struct evq_batch *batch,
                                 struct evq_row_result *results, struct evq_error *err)
{
    const size_t bytes = (size_t)batch->rows * sizeof(*results);

    enum evq_status status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status = copy_batch(state, batch, err);
    }
    for (size_t i = 0; i < state->plan->op_count && status == EVQ_OK; i++) {
        status = run_op(state, &state->plan->ops[i], batch->rows, err);
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

static enum evq_status cuda_exec(void *opened, const struct evq_batch *batch,
                                 struct evq_row_result *results, struct evq_error *err)
{
    struct cuda_state *state = opened;

    if (state->plan == NULL) {
        return evq_error_set(err, EVQ_E_BUG, "exec before prepare");
    }
    enum evq_status status = evq_plan_batch_check(state->plan, batch, err);
    for (size_t i = 0; i < state->plan->slot_count && status == EVQ_OK; i++) {
        if (!state->weights[i].filled) {
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
        state->stats.flops += state->row_flops * (uint64_t)batch->rows;
    }
    return status;
}

static void cuda_stats(void *opened, struct evq_backend_stats *ret_stats)
{
    const struct cuda_state *state = opened;

    *ret_stats = state->stats;
    ret_stats->memory_bytes = state->memory;
}

static const struct evq_backend_ops backend_cuda = {
    .abi_version = EVQ_BACKEND_ABI,
    .name = "cuda",
    .probe = cuda_probe,
    .open = cuda_open,
    .caps = cuda_caps,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .prepare = cuda_prepare,
    .put = cuda_put,
    .settle = cuda_settle,
    .exec = cuda_exec,
    .stats = cuda_stats,
    .close = cuda_close,
};

/* The one symbol the module exports; its name carries the version of the interface. */
const struct evq_backend_ops *evq_backend_module_v1(void);

__attribute__((visibility("default"))) const struct evq_backend_ops *evq_backend_module_v1(void)
{
    return &backend_cuda;
}
