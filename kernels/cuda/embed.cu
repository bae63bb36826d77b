#include "kernels/cuda/tokens.h"

#include <cassert>

#include "kernels/cuda/grid.cuh"

__global__ static void __launch_bounds__(EVQ_THREADS)
    embed_kernel(const int32_t *tokens, const int32_t *positions, int64_t count, int32_t n,
                 const float *table, const float *places, float scale, float *out, int64_t stride)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = at / n;
        const int64_t c = at % n;
        const float place = places != nullptr ? places[(int64_t)positions[row] * n + c] : 0.0f;
        out[row * stride + c] = scale * table[(int64_t)tokens[row] * n + c] + place;
    }
}

enum evq_status evq_embed_launch(const int32_t *d_tokens, const int32_t *d_positions, int32_t rows,
                                 const struct evq_op *op, const float *d_table,
                                 const float *d_places, float *d_out, int64_t stride,
                                 cudaStream_t stream, struct evq_error *err)
{
    const int64_t count = (int64_t)rows * op->n;

    assert(op->n > 0);
    if (count == 0) {
        return EVQ_OK;
    }
    embed_kernel<<<evq_grid(count, EVQ_THREADS), EVQ_THREADS, 0, stream>>>(
        d_tokens, d_positions, count, op->n, d_table, d_places, op->scale, d_out, stride);
    return evq_cuda_status(cudaGetLastError(), "embed launch", err);
}

__global__ static void __launch_bounds__(EVQ_THREADS)
    gather_kernel(const float *in, int64_t stride, const int32_t *which, int64_t count, int32_t n,
                  float *out)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        out[at] = in[(int64_t)which[at / n] * stride + at % n];
    }
}

enum evq_status evq_gather_launch(const float *d_in, int64_t stride, const int32_t *d_which,
                                  int32_t rows, int32_t n, float *d_out, cudaStream_t stream,
                                  struct evq_error *err)
{
    const int64_t count = (int64_t)rows * n;

    assert(n > 0);
    if (count == 0) {
        return EVQ_OK;
    }
    gather_kernel<<<evq_grid(count, EVQ_THREADS), EVQ_THREADS, 0, stream>>>(d_in, stride, d_which,
                                                                            count, n, d_out);
    return evq_cuda_status(cudaGetLastError(), "gather launch", err);
}
