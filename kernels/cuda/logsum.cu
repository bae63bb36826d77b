#include "kernels/cuda/tokens.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

/* The state of some of a row's logits. A NaN or an infinite one makes the total a NaN, through
 * every join. */
struct logsum {
    float top;   // -INFINITY: none seen, or none larger.
    float total; // Of exp(logit - top).
    int32_t arg; // First place of top.
};

__device__ static inline struct logsum join(struct logsum a, struct logsum b)
{
    const bool other = b.top > a.top || (b.top == a.top && b.arg < a.arg);
    struct logsum both = {other ? b.top : a.top, 0.0f, other ? b.arg : a.arg};
    const float base = both.top == -INFINITY ? 0.0f : both.top;

    both.total = a.total * expf(a.top - base) + b.total * expf(b.top - base);
    return both;
}

__device__ static inline struct logsum join_warp(struct logsum mine)
{
    for (int offset = EVQ_WARP / 2; offset > 0; offset /= 2) {
        struct logsum other;
        other.top = __shfl_xor_sync(0xffffffffu, mine.top, offset);
        other.total = __shfl_xor_sync(0xffffffffu, mine.total, offset);
        other.arg = __shfl_xor_sync(0xffffffffu, mine.arg, offset);
        mine = join(mine, other);
    }
    return mine;
}

/* Takes the next logits, ascending from column c on. */
template <int COUNT>
__device__ static inline void take(struct logsum &mine, const float (&logits)[COUNT], int32_t c)
{
    float top = mine.top;

    for (int i = 0; i < COUNT; i++) {
        if (logits[i] > top || mine.arg == INT32_MAX) {
            top = logits[i];
            mine.arg = c + i;
        }
    }
    const float base = top == -INFINITY ? 0.0f : top;
    mine.total = top > mine.top ? mine.total * expf(mine.top - base) : mine.total;
    mine.top = top;
    for (int i = 0; i < COUNT; i++) {
        mine.total += expf(logits[i] - base);
    }
}

/* A block for each row, one pass over its logits. */
__global__ static void __launch_bounds__(EVQ_THREADS)
    logsum_kernel(const float *logits, int64_t stride, int32_t n, const float *bias,
                  const int32_t *targets, struct evq_row_result *results)
{
    EVQ_SHARED(shared);
    struct logsum *warps = (struct logsum *)shared;
    const float *row = logits + blockIdx.x * stride;
    struct logsum mine = {-INFINITY, 0.0f, INT32_MAX};

    for (int32_t c = threadIdx.x * 4; c < n; c += EVQ_THREADS * 4) {
        if (c + 4 <= n) {
            const float4 four = *reinterpret_cast<const float4 *>(row + c);
            float values[4] = {four.x, four.y, four.z, four.w};
            if (bias != nullptr) {
                const float4 shifts = *reinterpret_cast<const float4 *>(bias + c);
                values[0] += shifts.x, values[1] += shifts.y;
                values[2] += shifts.z, values[3] += shifts.w;
            }
            take(mine, values, c);
            continue;
        }
        for (int32_t i = c; i < n; i++) {
            const float value[1] = {row[i] + (bias != nullptr ? bias[i] : 0.0f)};
            take(mine, value, i);
        }
    }
    mine = join_warp(mine);
    if (threadIdx.x % EVQ_WARP == 0) {
        warps[threadIdx.x / EVQ_WARP] = mine;
    }
    __syncthreads(); // Every warp's state is there.
    if (threadIdx.x == 0) {
        for (int w = 1; w < EVQ_WARPS; w++) {
            mine = join(mine, warps[w]);
        }
        const int32_t target = targets[blockIdx.x];
        const double logit = (double)(row[target] + (bias != nullptr ? bias[target] : 0.0f));
        const double sum = log((double)mine.total) + (double)mine.top;
        struct evq_row_result result = {};
        result.loss = sum - logit;
        result.predicted = isnan(sum) ? -1 : mine.arg;
        result.correct = result.predicted == target;
        results[blockIdx.x] = result;
    }
}

enum evq_status evq_logsum_launch(const struct evq_cuda_rows *logits, int32_t rows, int32_t n,
                                  const float *d_bias, const int32_t *d_targets,
                                  struct evq_row_result *d_results, cudaStream_t stream,
                                  struct evq_error *err)
{
    assert(n > 0);
    assert(!logits->bf16 && logits->stride % 4 == 0);
    if (rows == 0) {
        return EVQ_OK;
    }
    EVQ_LAUNCH(logsum_kernel, (unsigned int)rows, EVQ_THREADS, EVQ_WARPS * sizeof(struct logsum),
               stream, evq_at<float>(logits, 0), logits->stride, n, d_bias, d_targets, d_results);
    return evq_cuda_status(cudaGetLastError(), "logsum launch", err);
}
