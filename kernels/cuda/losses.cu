#include "kernels/cuda/launchers.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

#define FULL_WARP 0xffffffffu

__device__ static double warp_sum(double value)
{
    for (int offset = EVQ_WARP / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(FULL_WARP, value, offset);
    }
    return value;
}

/* One warp for each row. Of equal logits the lower index counts, and a NaN anywhere makes the whole
 * row NaN. */
__device__ static struct evq_row_result row_cross_entropy(const float *row, int32_t classes,
                                                          int32_t label, int32_t top_k)
{
    const int32_t lane = threadIdx.x % EVQ_WARP;
    const float wanted = row[label];
    struct evq_row_result result = {};
    float best = -INFINITY;
    int32_t best_at = INT32_MAX; // No logit was seen.
    int32_t above = 0;           // Number of logits that rank before the label's.
    bool broken = false;

    for (int32_t c = lane; c < classes; c += EVQ_WARP) {
        const float x = row[c];
        broken = broken || isnan(x);
        if (best_at == INT32_MAX || x > best) {
            best = x;
            best_at = c;
        }
        above += x > wanted || (x == wanted && c < label);
    }
    for (int offset = EVQ_WARP / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, best, offset);
        const int32_t other_at = __shfl_xor_sync(FULL_WARP, best_at, offset);
        if (other > best || (other == best && other_at < best_at)) {
            best = other;
            best_at = other_at;
        }
        above += __shfl_xor_sync(FULL_WARP, above, offset);
    }
    broken = __any_sync(FULL_WARP, broken);
    double sum = 0.0;
    for (int32_t c = lane; c < classes && !broken; c += EVQ_WARP) {
        sum += exp((double)row[c] - (double)best);
    }
    sum = warp_sum(sum);
    result.loss = broken ? (double)NAN : log(sum) - ((double)wanted - (double)best);
    result.predicted = broken ? -1 : best_at;
    result.correct = !broken && best_at == label;
    result.in_top_k = !broken && above < top_k;
    return result;
}

__global__ static void cross_entropy_kernel(const float *logits, int64_t stride,
                                            const int32_t *which, int32_t rows, int32_t classes,
                                            const int32_t *labels, int32_t top_k,
                                            struct evq_row_result *results)
{
    const int64_t warps = (int64_t)gridDim.x * EVQ_WARPS;

    for (int64_t r = (int64_t)blockIdx.x * EVQ_WARPS + threadIdx.x / EVQ_WARP; r < rows;
         r += warps) {
        const int64_t row = which != nullptr ? which[r] : r;
        const struct evq_row_result result =
            row_cross_entropy(logits + row * stride, classes, labels[r], top_k);
        if (threadIdx.x % EVQ_WARP == 0) {
            results[r] = result;
        }
    }
}

enum evq_status evq_cross_entropy_launch(const struct evq_cuda_rows *logits, const int32_t *d_which,
                                         int32_t rows, int32_t classes, const int32_t *d_labels,
                                         int32_t top_k, struct evq_row_result *d_results,
                                         cudaStream_t stream, struct evq_error *err)
{
    assert(rows >= 0);
    assert(classes > 0);
    assert(!logits->bf16);
    if (rows == 0) {
        return EVQ_OK;
    }
    EVQ_LAUNCH(cross_entropy_kernel, evq_grid_blocks(rows, EVQ_WARPS), EVQ_THREADS, 0, stream,
               evq_at<float>(logits, 0), logits->stride, d_which, rows, classes, d_labels, top_k,
               d_results);
    return evq_cuda_status(cudaGetLastError(), "cross_entropy launch", err);
}

__global__ static void squared_error_kernel(const float *outputs, int64_t stride, int32_t rows,
                                            int32_t columns, const float *targets,
                                            struct evq_row_result *results)
{
    const int64_t warps = (int64_t)gridDim.x * EVQ_WARPS;

    for (int64_t r = (int64_t)blockIdx.x * EVQ_WARPS + threadIdx.x / EVQ_WARP; r < rows;
         r += warps) {
        double squared = 0.0;
        double absolute = 0.0;
        for (int32_t c = threadIdx.x % EVQ_WARP; c < columns; c += EVQ_WARP) {
            const double difference =
                (double)outputs[r * stride + c] - (double)targets[r * columns + c];
            squared += difference * difference;
            absolute += fabs(difference);
        }
        struct evq_row_result result = {};
        result.loss = warp_sum(squared);
        result.abs_loss = warp_sum(absolute);
        result.predicted = -1;
        if (threadIdx.x % EVQ_WARP == 0) {
            results[r] = result;
        }
    }
}

enum evq_status evq_squared_error_launch(const struct evq_cuda_rows *outputs, int32_t rows,
                                         int32_t columns, const float *d_targets,
                                         struct evq_row_result *d_results, cudaStream_t stream,
                                         struct evq_error *err)
{
    assert(rows >= 0);
    assert(columns > 0);
    assert(!outputs->bf16);
    if (rows == 0) {
        return EVQ_OK;
    }
    EVQ_LAUNCH(squared_error_kernel, evq_grid_blocks(rows, EVQ_WARPS), EVQ_THREADS, 0, stream,
               evq_at<float>(outputs, 0), outputs->stride, rows, columns, d_targets, d_results);
    return evq_cuda_status(cudaGetLastError(), "squared_error launch", err);
}
