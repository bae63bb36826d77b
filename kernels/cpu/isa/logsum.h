/*
 * Computes the logarithm of a sum of exponentials, and the first largest logit, over tiles of a
 * vocabulary.
 */
#ifndef EVQ_KERNELS_CPU_ISA_LOGSUM_H
#define EVQ_KERNELS_CPU_ISA_LOGSUM_H

#include <math.h>

#include "kernels/cpu/isa/vecmath.h"
#include "kernels/cpu/kernels.h"

static float logsum_top(const float *row, int32_t n)
{
    vec top = vec_all(-INFINITY);
    int32_t c = 0;

    for (; c + LANES <= n; c += LANES) {
        top = vec_max(vec_load(row + c), top);
    }
    if (c < n) {
        top = vec_max(vec_load_some(row + c, n - c, -INFINITY), top);
    }
    return vec_top(top);
}

static float logsum_of(const float *row, int32_t n, float top)
{
    vec sum = {0};
    int32_t c = 0;

    for (; c + LANES <= n; c += LANES) {
        sum += vec_exp(vec_load(row + c) - top);
    }
    if (c < n) {
        sum += vec_exp(vec_load_some(row + c, n - c, -INFINITY) - top);
    }
    return vec_sum(sum);
}

static void logsum_take(const float *logits, size_t stride, int32_t rows, int32_t first, int32_t n,
                        struct evq_logsum *sums)
{
    for (int32_t r = 0; r < rows; r++) {
        const float *row = logits + (size_t)r * stride;
        struct evq_logsum *state = &sums[r];
        const float top = logsum_top(row, n); // A NaN appears in the sum.
        if (top > state->top) {
            int32_t c = 0;
            while (row[c] != top) {
                c++;
            }
            state->arg = first + c;
            state->sum *= exp((double)state->top - (double)top);
            state->top = top;
        }
        const float base = state->top == -INFINITY ? 0.0f : state->top;
        state->sum += (double)logsum_of(row, n, base);
    }
}

#endif
