#include "kernels/cuda/tokens.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"

/* A thread for each pair. */
__global__ static void __launch_bounds__(EVQ_THREADS)
    rope_kernel(float *values, int64_t stride, int64_t pairs, int32_t heads, int32_t half,
                const float *frequencies, float scale, const int32_t *positions)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < pairs;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = at / half / heads;
        const int32_t i = (int32_t)(at % half);
        float *pair = values + row * stride + at / half % heads * 2 * half + i;
        const float angle = (float)positions[row] * frequencies[i];
        const float cosine = cosf(angle) * scale;
        const float sine = sinf(angle) * scale;
        const float x = pair[0];
        const float y = pair[half];
        pair[0] = x * cosine - y * sine;
        pair[half] = y * cosine + x * sine;
    }
}

enum evq_status evq_rope_launch(float *d_values, int64_t stride, int32_t rows,
                                const int32_t *d_positions, const struct evq_op *op,
                                const float *d_frequencies, cudaStream_t stream,
                                struct evq_error *err)
{
    const int64_t pairs = (int64_t)rows * op->heads * (op->n / 2);

    assert(op->n % 2 == 0);
    if (pairs == 0) {
        return EVQ_OK;
    }
    rope_kernel<<<evq_grid(pairs, EVQ_THREADS), EVQ_THREADS, 0, stream>>>(
        d_values + op->column, stride, pairs, op->heads, op->n / 2, d_frequencies, op->scale,
        d_positions);
    return evq_cuda_status(cudaGetLastError(), "rope launch", err);
}
