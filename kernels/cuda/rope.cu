#include "kernels/cuda/launchers.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

enum { PAIRS = 4 }; // Pairs of a head that a lane holds.

__device__ static inline int64_t line_of(const struct evq_cuda_rope *rope, const int32_t *positions,
                                         int64_t row)
{
    const bool far = rope->d_lengths != nullptr && rope->d_lengths[row] > rope->near;

    return (int64_t)positions[row] + (far ? rope->near : 0);
}

/* LANES lanes for each head and one block for each row, so that all heads use the same cosines and
 * sines. */
template <typename T, int LANES>
__global__ static void __launch_bounds__(EVQ_THREADS)
    rope_row_kernel(T *values, int64_t stride, const int32_t *positions, struct evq_cuda_rope rope)
{
    const int32_t half = LANES * PAIRS;
    const int32_t at = threadIdx.x % LANES * PAIRS;
    const int32_t at_once = blockDim.x / LANES;
    T *row = values + blockIdx.x * stride + at;
    const float *turns =
        rope.d_rope_table + line_of(&rope, positions, blockIdx.x) * (2 * half) + at;
    float cosines[PAIRS], sines[PAIRS];

    evq_load(turns, cosines);
    evq_load(turns + half, sines);
    for (int32_t begin = 0; begin < rope.heads; begin += at_once) {
        const int32_t head = begin + threadIdx.x / LANES;
        const bool there = head < rope.heads; // Some heads of a warp may not exist.
        const bool first = head < rope.first_heads;
        T *low = row + (int64_t)head * (2 * half);
        float x[PAIRS] = {0}, y[PAIRS] = {0};
        if (there) {
            evq_load(low, x);
            evq_load(low + half, y);
        }
        if (rope.d_first_norm != nullptr) { // All threads take the same branch.
            const float *norm = first ? rope.d_first_norm : rope.d_rest_norm;
            float squares = 0.0f;
            float to_x[PAIRS], to_y[PAIRS];
            for (int i = 0; i < PAIRS; i++) {
                squares += x[i] * x[i] + y[i] * y[i];
            }
            const float scale = 1.0f / sqrtf(evq_warp_sum<LANES>(squares) / (float)(2 * half) +
                                             (first ? rope.first_epsilon : rope.rest_epsilon));
            evq_load(norm + at, to_x);
            evq_load(norm + half + at, to_y);
            for (int i = 0; i < PAIRS; i++) {
                x[i] *= scale * to_x[i];
                y[i] *= scale * to_y[i];
            }
        }
        for (int i = 0; i < PAIRS; i++) {
            const float turned = x[i] * cosines[i] - y[i] * sines[i];
            y[i] = y[i] * cosines[i] + x[i] * sines[i];
            x[i] = turned;
        }
        if (there) {
            evq_store(low, x);
            evq_store(low + half, y);
        }
    }
}

/* For any other shape: one warp for each head of each row. It norms some heads, and then rotates
 * their pairs. */
template <typename T>
__global__ static void __launch_bounds__(EVQ_THREADS)
    rope_kernel(T *values, int64_t stride, int32_t rows, const int32_t *positions,
                struct evq_cuda_rope rope)
{
    const int64_t items = (int64_t)rows * rope.heads;
    const int32_t lane = threadIdx.x % EVQ_WARP;
    const int32_t half = rope.turned / 2;
    const int32_t apart = rope.neighbours ? 1 : half; // Distance of the values of a pair,
    const int32_t next = rope.neighbours ? 2 : 1;     // and of pairs.

    for (int64_t item = (int64_t)blockIdx.x * EVQ_WARPS + threadIdx.x / EVQ_WARP; item < items;
         item += (int64_t)gridDim.x * EVQ_WARPS) {
        const int64_t row = item / rope.heads;
        const int32_t head = (int32_t)(item % rope.heads);
        const bool first = head < rope.first_heads;
        const float *norm = first ? rope.d_first_norm : rope.d_rest_norm;
        T *low = values + row * stride + (int64_t)head * rope.step;
        T *high = low + apart;
        const float *cosines = rope.d_rope_table + line_of(&rope, positions, row) * rope.turned;
        const float *sines = cosines + half;
        float scale = 1.0f;
        if (norm != nullptr) { // All lanes of a warp take the same branch.
            float squares = 0.0f;
            for (int32_t i = lane; i < half; i += EVQ_WARP) {
                const float x = evq_get(low + i);
                const float y = evq_get(high + i);
                squares += x * x + y * y;
            }
            scale = 1.0f / sqrtf(evq_warp_sum(squares) / (float)rope.n +
                                 (first ? rope.first_epsilon : rope.rest_epsilon));
        }
        for (int32_t i = lane; i < half; i += EVQ_WARP) {
            const int32_t c = i * next;
            const float x = evq_get(low + c) * (norm != nullptr ? scale * norm[i] : 1.0f);
            const float y = evq_get(high + c) * (norm != nullptr ? scale * norm[half + i] : 1.0f);
            evq_set(low + c, x * cosines[i] - y * sines[i]);
            evq_set(high + c, y * cosines[i] + x * sines[i]);
        }
    }
}

/* Uses as few threads as can rotate the heads in the fewest steps of a block. */
template <int LANES, typename T>
static void launch_rows(T *values, int64_t stride, int32_t rows, const int32_t *d_positions,
                        const struct evq_cuda_rope *rope, cudaStream_t stream)
{
    const int32_t most = EVQ_THREADS / LANES;
    const int32_t steps = (rope->heads - 1) / most + 1;
    const int32_t at_once = (rope->heads - 1) / steps + 1;
    const int32_t threads = ((at_once * LANES - 1) / EVQ_WARP + 1) * EVQ_WARP;

    EVQ_LAUNCH((rope_row_kernel<T, LANES>), (unsigned int)rows, threads, 0, stream, values, stride,
               d_positions, *rope);
}

template <typename T>
static void launch(T *values, int64_t stride, int32_t rows, const int32_t *d_positions,
                   const struct evq_cuda_rope *rope, cudaStream_t stream)
{
    const bool whole = rope->column % PAIRS == 0 && stride % PAIRS == 0 &&
                       rope->turned == rope->n && rope->step == rope->n && !rope->neighbours;

    switch (whole ? rope->n : 0) {
    case 32:
        return launch_rows<4>(values, stride, rows, d_positions, rope, stream);
    case 64:
        return launch_rows<8>(values, stride, rows, d_positions, rope, stream);
    case 128:
        return launch_rows<16>(values, stride, rows, d_positions, rope, stream);
    case 256:
        return launch_rows<32>(values, stride, rows, d_positions, rope, stream);
    default:
        EVQ_LAUNCH(rope_kernel<T>, evq_grid_blocks((int64_t)rows * rope->heads, EVQ_WARPS),
                   EVQ_THREADS, 0, stream, values, stride, rows, d_positions, *rope);
    }
}

enum evq_status evq_rope_launch(const struct evq_cuda_rows *values, int32_t rows,
                                const int32_t *d_positions, const struct evq_cuda_rope *rope,
                                cudaStream_t stream, struct evq_error *err)
{
    struct evq_cuda_rope given = *rope;

    given.turned = rope->turned != 0 ? rope->turned : rope->n;
    given.step = rope->step != 0 ? rope->step : rope->n;
    assert(given.turned % 2 == 0);
    assert(rope->d_rope_table != nullptr);
    if (rows == 0 || rope->heads == 0) {
        return EVQ_OK;
    }
    evq_typed(values, [&](auto type) {
        typedef decltype(type) T;
        launch(evq_at<T>(values, rope->column), values->stride, rows, d_positions, &given, stream);
    });
    return evq_cuda_status(cudaGetLastError(), "turn launch", err);
}

__global__ static void __launch_bounds__(EVQ_THREADS)
    rope_table_kernel(const float *frequencies, int32_t half, int64_t count, float scale,
                      float *turns)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t position = at / half;
        const int64_t i = at % half;
        const double angle = (double)((float)position * frequencies[i]);
        turns[position * 2 * half + i] = (float)cos(angle) * scale;
        turns[position * 2 * half + half + i] = (float)sin(angle) * scale;
    }
}

enum evq_status evq_rope_table_launch(const float *d_frequencies, int32_t half, int32_t positions,
                                      float scale, float *d_rope_table, cudaStream_t stream,
                                      struct evq_error *err)
{
    const int64_t count = (int64_t)half * positions;

    if (count == 0) {
        return EVQ_OK;
    }
    EVQ_LAUNCH(rope_table_kernel, evq_grid_blocks(count, EVQ_THREADS), EVQ_THREADS, 0, stream,
               d_frequencies, half, count, scale, d_rope_table);
    return evq_cuda_status(cudaGetLastError(), "turns launch", err);
}
