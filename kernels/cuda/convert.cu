#include "kernels/cuda/launchers.h"

#include <cassert>
#include <cuda_fp16.h>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

enum { TILE = 32, TILE_LINES = EVQ_THREADS / TILE };

__device__ static float value_at(const void *values, enum evq_weight_type type, int64_t at)
{
    switch (type) {
    case EVQ_WEIGHT_F16:
        return __half2float(((const __half *)values)[at]);
    case EVQ_WEIGHT_BF16:
        return evq_get((const evq_bf16 *)values + at);
    default:
        return ((const float *)values)[at];
    }
}

template <typename Out>
__global__ static void __launch_bounds__(EVQ_THREADS)
    convert_kernel(const void *in, enum evq_weight_type type, int64_t count, int64_t columns,
                   Out *out, int64_t out_stride)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        evq_set(out + at / columns * out_stride + at % columns, value_at(in, type, at));
    }
}

/* in is [columns, rows]. Tiles pass through shared memory, so that both sides are accessed along
 * their lines. */
template <typename Out>
__global__ static void __launch_bounds__(EVQ_THREADS)
    turn_over_kernel(const void *in, enum evq_weight_type type, int64_t rows, int64_t columns,
                     int64_t tiles, Out *out, int64_t out_stride)
{
    EVQ_SHARED(shared);
    float *tile = (float *)shared; // [TILE][TILE + 1]
    const int64_t across = (columns - 1) / TILE + 1;
    const int32_t x = threadIdx.x % TILE;
    const int32_t y = threadIdx.x / TILE;

    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const int64_t row = t / across * TILE;
        const int64_t column = t % across * TILE;
        for (int32_t line = y; line < TILE; line += TILE_LINES) {
            if (column + line < columns && row + x < rows) {
                tile[line * (TILE + 1) + x] = value_at(in, type, (column + line) * rows + row + x);
            }
        }
        __syncthreads(); // The tile has arrived.
        for (int32_t line = y; line < TILE; line += TILE_LINES) {
            if (row + line < rows && column + x < columns) {
                evq_set(out + (row + line) * out_stride + column + x, tile[x * (TILE + 1) + line]);
            }
        }
        __syncthreads(); // No thread may still read the tile when the next one is written.
    }
}

enum evq_status evq_convert_launch(const void *d_in, enum evq_weight_type type, bool transposed,
                                   int32_t rows, int32_t columns, const struct evq_cuda_rows *out,
                                   cudaStream_t stream, struct evq_error *err)
{
    const int64_t count = (int64_t)rows * columns;

    assert(type < EVQ_WEIGHT_TYPE_COUNT);
    if (count == 0) {
        return EVQ_OK;
    }
    const int64_t tiles = ((int64_t)(rows - 1) / TILE + 1) * ((int64_t)(columns - 1) / TILE + 1);
    evq_typed(out, [&](auto to) {
        typedef decltype(to) Out;
        if (transposed) {
            EVQ_LAUNCH(turn_over_kernel<Out>, evq_grid_blocks(tiles, 1), EVQ_THREADS,
                       TILE * (TILE + 1) * sizeof(float), stream, d_in, type, (int64_t)rows,
                       (int64_t)columns, tiles, evq_at<Out>(out, 0), out->stride);
        } else {
            EVQ_LAUNCH(convert_kernel<Out>, evq_grid_blocks(count, EVQ_THREADS), EVQ_THREADS, 0,
                       stream, d_in, type, count, (int64_t)columns, evq_at<Out>(out, 0),
                       out->stride);
        }
    });
    return evq_cuda_status(cudaGetLastError(), "convert launch", err);
}
