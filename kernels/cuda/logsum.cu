#include "kernels/cuda/launchers.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/typed.cuh"

#define LOG2_E 1.44269504f
// Exponents further from 0 than this are rounded by more than fp32 allows.
#define FAR 536870912.0f

/* The state of some of a row's logits. A NaN or an infinite logit makes the total a NaN, in every
 * join. */
struct logsum {
    float top;   // -INFINITY: none was seen, or none is larger.
    float total; // The sum of 2 to the power of (the logit's exponent of two - exponent_of(top)).
    int32_t arg; // The first position of top.
};

/* The product is rounded (no FMA), so that equal tops give equal exponents. Logits that
 * mean "never", such as -1e30, add nothing and are not used as the reference. */
__device__ static inline float exponent_of(float top)
{
    return __fmul_rn(fmaxf(top, -FAR), LOG2_E);
}

__device__ static inline struct logsum join(struct logsum a, struct logsum b)
{
    const bool other = b.top > a.top || (b.top == a.top && b.arg < a.arg);
    struct logsum both = {other ? b.top : a.top, 0.0f, other ? b.arg : a.arg};
    const float base = exponent_of(both.top);

    both.total = a.total * evq_exp2(exponent_of(a.top) - base) +
                 b.total * evq_exp2(exponent_of(b.top) - base);
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

/* Adds the next logits, in ascending order from column c on. The work for each logit decides what
 * the kernel costs: a maximum, a multiply-add, an exponential and a sum. */
template <int COUNT>
__device__ static inline void take(struct logsum &mine, const float (&logits)[COUNT], int32_t c)
{
    float top = logits[0];

    for (int i = 1; i < COUNT; i++) {
        top = fmaxf(top, logits[i]); // fmaxf ignores a NaN, which appears in the total.
    }
    if (top > mine.top) {
        mine.total *= evq_exp2(exponent_of(mine.top) - exponent_of(top));
        mine.top = top;
        for (int i = COUNT - 1; i >= 0; i--) {
            mine.arg = logits[i] == top ? c + i : mine.arg;
        }
    }
    const float base = exponent_of(mine.top);
    for (int i = 0; i < COUNT; i++) {
        mine.total += evq_exp2(fmaf(logits[i], LOG2_E, -base));
    }
}

__device__ static inline struct evq_row_result result_of(struct logsum all, float logit,
                                                         int32_t target)
{
    const double ln_2 = 0.69314718055994531;
    const double ahead = (double)exponent_of(all.top) - (double)logit * (double)LOG2_E;
    struct evq_row_result result = {};

    result.loss = fabsf(all.top) < FAR ? log((double)all.total) + ahead * ln_2 : (double)NAN;
    result.predicted = isnan(all.total) ? -1 : all.arg;
    result.correct = result.predicted == target;
    return result;
}

/* One block for each row, with one pass over its logits. */
__global__ static void __launch_bounds__(EVQ_THREADS)
    logsum_kernel(const float *logits, int64_t stride, int32_t n, const float *bias,
                  const int32_t *targets, struct evq_row_result *results)
{
    EVQ_SHARED(shared);
    struct logsum *warps = (struct logsum *)shared;
    const float *row = logits + blockIdx.x * stride;
    const int32_t fours = n / 4 * 4;
    struct logsum mine = {-INFINITY, 0.0f, 0};

    for (int32_t c = threadIdx.x * 4; c < fours; c += EVQ_THREADS * 4) {
        float values[4];
        evq_load(row + c, values);
        if (bias != nullptr) {
            float shifts[4];
            evq_load(bias + c, shifts);
            for (int i = 0; i < 4; i++) {
                values[i] += shifts[i];
            }
        }
        take(mine, values, c);
    }
    if (fours + (int32_t)threadIdx.x < n) {
        const int32_t c = fours + threadIdx.x;
        const float value[1] = {row[c] + (bias != nullptr ? bias[c] : 0.0f)};
        take(mine, value, c);
    }
    mine = join_warp(mine);
    if (threadIdx.x % EVQ_WARP == 0) {
        warps[threadIdx.x / EVQ_WARP] = mine;
    }
    __syncthreads(); // The state of every warp is stored.
    if (threadIdx.x == 0) {
        for (int w = 1; w < EVQ_WARPS; w++) {
            mine = join(mine, warps[w]);
        }
        const int32_t target = targets[blockIdx.x];
        results[blockIdx.x] =
            result_of(mine, row[target] + (bias != nullptr ? bias[target] : 0.0f), target);
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
