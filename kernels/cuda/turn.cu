#include "kernels/cuda/tokens.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

/* Half a head is 32 * V values, of which a lane holds V pairs. A block for each row: its cosines
 * and sines serve all heads, every eighth of which is a warp's. */
template <typename T, int V>
__global__ static void __launch_bounds__(EVQ_THREADS)
    turn_row_kernel(T *values, int64_t stride, const int32_t *positions, struct evq_cuda_turn turn)
{
    const int32_t half = EVQ_WARP * V;
    const int32_t at = threadIdx.x % EVQ_WARP * V;
    T *row = values + blockIdx.x * stride + at;
    const float *turns = turn.d_turns + (int64_t)positions[blockIdx.x] * (2 * half) + at;
    float cosines[V], sines[V];

    evq_load(turns, cosines);
    evq_load(turns + half, sines);
    for (int32_t head = threadIdx.x / EVQ_WARP; head < turn.heads; head += EVQ_WARPS) {
        const bool first = head < turn.first_heads;
        const float *norm = first ? turn.d_first_norm : turn.d_rest_norm;
        T *low = row + (int64_t)head * (2 * half);
        float x[V], y[V];
        evq_load(low, x);
        evq_load(low + half, y);
        if (norm != nullptr) { // The same for a warp.
            float squares = 0.0f;
            float to_x[V], to_y[V];
            for (int i = 0; i < V; i++) {
                squares += x[i] * x[i] + y[i] * y[i];
            }
            const float scale = 1.0f / sqrtf(evq_warp_sum(squares) / (float)(2 * half) +
                                             (first ? turn.first_epsilon : turn.rest_epsilon));
            evq_load(norm + at, to_x);
            evq_load(norm + half + at, to_y);
            for (int i = 0; i < V; i++) {
                x[i] *= scale * to_x[i];
                y[i] *= scale * to_y[i];
            }
        }
        for (int i = 0; i < V; i++) {
            const float turned = x[i] * cosines[i] - y[i] * sines[i];
            y[i] = y[i] * cosines[i] + x[i] * sines[i];
            x[i] = turned;
        }
        evq_store(low, x);
        evq_store(low + half, y);
    }
}

/* Any other size. A warp for each head of each row: a norm of some heads, then the pairs (i, i + n
 * / 2) turn. */
template <typename T>
__global__ static void __launch_bounds__(EVQ_THREADS)
    turn_kernel(T *values, int64_t stride, int32_t rows, const int32_t *positions,
                struct evq_cuda_turn turn)
{
    const int64_t items = (int64_t)rows * turn.heads;
    const int32_t lane = threadIdx.x % EVQ_WARP;
    const int32_t half = turn.n / 2;

    for (int64_t item = (int64_t)blockIdx.x * EVQ_WARPS + threadIdx.x / EVQ_WARP; item < items;
         item += (int64_t)gridDim.x * EVQ_WARPS) {
        const int64_t row = item / turn.heads;
        const int32_t head = (int32_t)(item % turn.heads);
        const bool first = head < turn.first_heads;
        const float *norm = first ? turn.d_first_norm : turn.d_rest_norm;
        T *low = values + row * stride + (int64_t)head * turn.n;
        T *high = low + half;
        const float *cosines = turn.d_turns + (int64_t)positions[row] * turn.n;
        const float *sines = cosines + half;
        float scale = 1.0f;
        if (norm != nullptr) { // The same for a warp.
            float squares = 0.0f;
            for (int32_t i = lane; i < half; i += EVQ_WARP) {
                const float x = evq_get(low + i);
                const float y = evq_get(high + i);
                squares += x * x + y * y;
            }
            scale = 1.0f / sqrtf(evq_warp_sum(squares) / (float)turn.n +
                                 (first ? turn.first_epsilon : turn.rest_epsilon));
        }
        for (int32_t i = lane; i < half; i += EVQ_WARP) {
            const float x = evq_get(low + i) * (norm != nullptr ? scale * norm[i] : 1.0f);
            const float y = evq_get(high + i) * (norm != nullptr ? scale * norm[half + i] : 1.0f);
            evq_set(low + i, x * cosines[i] - y * sines[i]);
            evq_set(high + i, y * cosines[i] + x * sines[i]);
        }
    }
}

template <typename T>
static void launch(T *values, int64_t stride, int32_t rows, const int32_t *d_positions,
                   const struct evq_cuda_turn *turn, cudaStream_t stream)
{
    const int32_t pairs = turn->n / (2 * EVQ_WARP); // Of a lane.
    const bool whole =
        turn->n % (2 * EVQ_WARP) == 0 && turn->column % pairs == 0 && stride % pairs == 0;

    if (whole && pairs == 1) {
        EVQ_LAUNCH((turn_row_kernel<T, 1>), (unsigned int)rows, EVQ_THREADS, 0, stream, values,
                   stride, d_positions, *turn);
    } else if (whole && pairs == 2) {
        EVQ_LAUNCH((turn_row_kernel<T, 2>), (unsigned int)rows, EVQ_THREADS, 0, stream, values,
                   stride, d_positions, *turn);
    } else if (whole && pairs == 4) {
        EVQ_LAUNCH((turn_row_kernel<T, 4>), (unsigned int)rows, EVQ_THREADS, 0, stream, values,
                   stride, d_positions, *turn);
    } else {
        EVQ_LAUNCH(turn_kernel<T>, evq_grid((int64_t)rows * turn->heads, EVQ_WARPS), EVQ_THREADS, 0,
                   stream, values, stride, rows, d_positions, *turn);
    }
}

enum evq_status evq_turn_launch(const struct evq_cuda_rows *values, int32_t rows,
                                const int32_t *d_positions, const struct evq_cuda_turn *turn,
                                cudaStream_t stream, struct evq_error *err)
{
    assert(turn->n % 2 == 0);
    assert(turn->d_turns != nullptr);
    if (rows == 0 || turn->heads == 0) {
        return EVQ_OK;
    }
    evq_typed(values, [&](auto type) {
        typedef decltype(type) T;
        launch(evq_at<T>(values, turn->column), values->stride, rows, d_positions, turn, stream);
    });
    return evq_cuda_status(cudaGetLastError(), "turn launch", err);
}

__global__ static void __launch_bounds__(EVQ_THREADS)
    turns_kernel(const float *frequencies, int32_t half, int64_t count, float scale, float *turns)
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

enum evq_status evq_turns_launch(const float *d_frequencies, int32_t half, int32_t positions,
                                 float scale, float *d_turns, cudaStream_t stream,
                                 struct evq_error *err)
{
    const int64_t count = (int64_t)half * positions;

    if (count == 0) {
        return EVQ_OK;
    }
    EVQ_LAUNCH(turns_kernel, evq_grid(count, EVQ_THREADS), EVQ_THREADS, 0, stream, d_frequencies,
               half, count, scale, d_turns);
    return evq_cuda_status(cudaGetLastError(), "turns launch", err);
}
