#include "kernels/cuda/launchers.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

enum { FOURS = 8 }; // Groups of four values of a row that a thread holds in registers.

struct norm_shape {
    int64_t in_stride, out_stride;
    int32_t rows, heads, n;
    bool centred;
    float epsilon;
};

/* One warp for each head of each row, value by value, for any width. */
template <typename In, typename Out>
__global__ static void __launch_bounds__(EVQ_THREADS)
    norm_kernel(const In *in, struct norm_shape shape, const float *weight, const float *bias,
                Out *out)
{
    const int64_t items = (int64_t)shape.rows * shape.heads;
    const int32_t lane = threadIdx.x % EVQ_WARP;
    const int32_t n = shape.n;

    for (int64_t item = (int64_t)blockIdx.x * EVQ_WARPS + threadIdx.x / EVQ_WARP; item < items;
         item += (int64_t)gridDim.x * EVQ_WARPS) {
        const int64_t head = item % shape.heads * n;
        const In *from = in + item / shape.heads * shape.in_stride + head;
        Out *to = out + item / shape.heads * shape.out_stride + head;
        float mean = 0.0f;
        float squares = 0.0f;
        for (int32_t c = lane; shape.centred && c < n; c += EVQ_WARP) {
            mean += evq_get(from + c);
        }
        mean = evq_warp_sum(mean) / (float)n;
        for (int32_t c = lane; c < n; c += EVQ_WARP) {
            const float off = evq_get(from + c) - mean;
            squares += off * off;
        }
        const float scale = 1.0f / sqrtf(evq_warp_sum(squares) / (float)n + shape.epsilon);
        for (int32_t c = lane; c < n; c += EVQ_WARP) {
            evq_set(to + c, (evq_get(from + c) - mean) * scale * weight[c] +
                                (bias != nullptr ? bias[c] : 0.0f));
        }
    }
}

/* The sum over the WARPS warps of a row. If there are several, they form the block. sums: one entry
 * for each. */
template <int WARPS> __device__ static inline float row_sum(float value, float *sums)
{
    value = evq_warp_sum(value);
    if constexpr (WARPS > 1) {
        __syncthreads(); // The previous content of sums was read.
        if (threadIdx.x % EVQ_WARP == 0) {
            sums[threadIdx.x / EVQ_WARP] = value;
        }
        __syncthreads(); // The sum of every warp is stored.
        value = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            value += sums[w];
        }
    }
    return value;
}

/* Rows of a block. The block has the threads of one row, or of one row for each warp. */
template <int WARPS> struct norm_block {
    static constexpr int ROWS = WARPS == 1 ? EVQ_WARPS : 1;
    static constexpr int THREADS = ROWS * WARPS * EVQ_WARP;
};

/* WARPS warps for each row, with the values in registers. n is a multiple of 4, and at most 32 * 4
 * * FOURS for each warp. Values beyond the row cost as much as real ones, so there are no more
 * warps than needed. */
template <typename In, typename Out, int WARPS>
__global__ static void __launch_bounds__(EVQ_THREADS)
    norm_row_kernel(const In *in, struct norm_shape shape, const float *weight, const float *bias,
                    Out *out)
{
    EVQ_SHARED(shared);
    float *sums = (float *)shared;
    const int32_t threads = WARPS * EVQ_WARP; // Threads of a row.
    const int32_t at = threadIdx.x % threads;
    const int32_t row = (int32_t)blockIdx.x * norm_block<WARPS>::ROWS + threadIdx.x / threads;
    const float count = (float)shape.n;
    float values[FOURS][4];
    float sum = 0.0f;

    if (row >= shape.rows) {
        return; // This ends a whole warp, or a whole block.
    }
#pragma unroll
    for (int p = 0; p < FOURS; p++) {
        const int32_t c = (at + p * threads) * 4;
        if (c < shape.n) {
            evq_load(in + row * shape.in_stride + c, values[p]);
        }
        for (int i = 0; i < 4; i++) {
            values[p][i] = c < shape.n ? values[p][i] : 0.0f;
            sum += values[p][i];
        }
    }
    const float mean = shape.centred ? row_sum<WARPS>(sum, sums) / count : 0.0f;
    sum = 0.0f;
#pragma unroll
    for (int p = 0; p < FOURS; p++) {
        const int32_t c = (at + p * threads) * 4;
        for (int i = 0; i < 4; i++) {
            values[p][i] -= mean;
            sum += c < shape.n ? values[p][i] * values[p][i] : 0.0f;
        }
    }
    const float scale = 1.0f / sqrtf(row_sum<WARPS>(sum, sums) / count + shape.epsilon);
#pragma unroll
    for (int p = 0; p < FOURS; p++) {
        const int32_t c = (at + p * threads) * 4;
        if (c < shape.n) {
            float scales[4], shifts[4] = {0};
            evq_load(weight + c, scales);
            if (bias != nullptr) {
                evq_load(bias + c, shifts);
            }
            for (int i = 0; i < 4; i++) {
                values[p][i] = values[p][i] * scale * scales[i] + shifts[i];
            }
            evq_store(out + row * shape.out_stride + c, values[p]);
        }
    }
}

template <int WARPS, typename In, typename Out>
static void launch_rows(const In *in, const struct norm_shape *shape, const float *d_weight,
                        const float *d_bias, Out *out, cudaStream_t stream)
{
    typedef norm_block<WARPS> B;

    EVQ_LAUNCH((norm_row_kernel<In, Out, WARPS>), (shape->rows - 1) / B::ROWS + 1, B::THREADS,
               WARPS * sizeof(float), stream, in, *shape, d_weight, d_bias, out);
}

template <typename In, typename Out>
static void launch(const In *in, const struct norm_shape *shape, const float *d_weight,
                   const float *d_bias, Out *out, bool fours, cudaStream_t stream)
{
    const int32_t warp_most = EVQ_WARP * 4 * FOURS;

    if (fours && shape->n <= warp_most) {
        launch_rows<1>(in, shape, d_weight, d_bias, out, stream);
    } else if (fours && shape->n <= 2 * warp_most) {
        launch_rows<2>(in, shape, d_weight, d_bias, out, stream);
    } else if (fours && shape->n <= 4 * warp_most) {
        launch_rows<4>(in, shape, d_weight, d_bias, out, stream);
    } else if (fours && shape->n <= 8 * warp_most) {
        launch_rows<8>(in, shape, d_weight, d_bias, out, stream);
    } else {
        EVQ_LAUNCH((norm_kernel<In, Out>),
                   evq_grid_blocks((int64_t)shape->rows * shape->heads, EVQ_WARPS), EVQ_THREADS, 0,
                   stream, in, *shape, d_weight, d_bias, out);
    }
}

enum evq_status evq_norm_launch(const struct evq_cuda_rows *in, int32_t rows,
                                const struct evq_op *op, const float *d_weight, const float *d_bias,
                                const struct evq_cuda_rows *out, cudaStream_t stream,
                                struct evq_error *err)
{
    const bool centred = op->kind == EVQ_OP_LAYER_NORM;
    const int32_t column = op->column;
    const struct norm_shape shape = {in->stride, out->stride, rows,       op->heads,
                                     op->n,      centred,     op->epsilon};
    const bool fours = shape.heads == 1 && op->n % 4 == 0 && column % 4 == 0 &&
                       in->stride % 4 == 0 && out->stride % 4 == 0;

    assert(shape.heads >= 1);
    if (rows == 0) {
        return EVQ_OK;
    }
    evq_typed2(in, out, [&](auto from, auto to) {
        launch(evq_at<decltype(from)>(in, column), &shape, d_weight, d_bias,
               evq_at<decltype(to)>(out, column), fours, stream);
    });
    return evq_cuda_status(cudaGetLastError(), "norm launch", err);
}
