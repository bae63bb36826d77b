#include "kernels/cuda/tokens.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"

/* A warp for each head of each row. */
__global__ static void __launch_bounds__(EVQ_THREADS)
    norm_kernel(const float *in, int64_t in_stride, int32_t rows, int32_t heads, int32_t n,
                bool centred, const float *weight, const float *bias, float epsilon, float *out,
                int64_t out_stride)
{
    const int64_t items = (int64_t)rows * heads;
    const int32_t lane = threadIdx.x % EVQ_WARP;

    for (int64_t item = (int64_t)blockIdx.x * EVQ_WARPS + threadIdx.x / EVQ_WARP; item < items;
         item += (int64_t)gridDim.x * EVQ_WARPS) {
        const float *from = in + item / heads * in_stride + item % heads * n;
        float *to = out + item / heads * out_stride + item % heads * n;
        float mean = 0.0f;
        float squares = 0.0f;
        for (int32_t c = lane; centred && c < n; c += EVQ_WARP) {
            mean += from[c];
        }
        mean = evq_warp_sum(mean) / (float)n;
        for (int32_t c = lane; c < n; c += EVQ_WARP) {
            squares += (from[c] - mean) * (from[c] - mean);
        }
        const float scale = 1.0f / sqrtf(evq_warp_sum(squares) / (float)n + epsilon);
        for (int32_t c = lane; c < n; c += EVQ_WARP) {
            to[c] = (from[c] - mean) * scale * weight[c] + (bias != nullptr ? bias[c] : 0.0f);
        }
    }
}

enum evq_status evq_norm_launch(const float *d_in, int64_t in_stride, int32_t rows,
                                const struct evq_op *op, const float *d_weight, const float *d_bias,
                                float *d_out, int64_t out_stride, cudaStream_t stream,
                                struct evq_error *err)
{
    const bool centred = op->kind == EVQ_OP_LAYER_NORM;
    const int32_t heads = centred ? 1 : op->heads;
    const int32_t column = centred ? 0 : op->column;

    assert(heads >= 1);
    if (rows == 0) {
        return EVQ_OK;
    }
    norm_kernel<<<evq_grid((int64_t)rows * heads, EVQ_WARPS), EVQ_THREADS, 0, stream>>>(
        d_in + column, in_stride, rows, heads, op->n, centred, d_weight, d_bias, op->epsilon,
        d_out + column, out_stride);
    return evq_cuda_status(cudaGetLastError(), "norm launch", err);
}
