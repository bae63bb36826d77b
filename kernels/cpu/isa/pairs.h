/*
 * Pairs of bf16 values in the space of one float, for products of pairs. The first value is the low
 * half. Values are rounded to the nearest, ties to even.
 */
#ifndef EVQ_KERNELS_CPU_ISA_PAIRS_H
#define EVQ_KERNELS_CPU_ISA_PAIRS_H

#include <stddef.h>

#include "kernels/cpu/isa/lanes.h"

#if defined(__AVX512BF16__)

/* Lane i: first[i], second[i]. */
static inline vec pairs_of(vec first, vec second)
{
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);

    return (vec)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both);
}

/* Joins neighbours in each row: (k + 1) / 2 pairs. If k is odd, the last pair has a zero. */
static void pairs_round(const float *in, size_t in_stride, int32_t rows, int32_t k, float *out,
                        size_t out_stride)
{
    for (int32_t r = 0; r < rows; r++) {
        const float *from = in + (size_t)r * in_stride;
        float *to = out + (size_t)r * out_stride;
        for (int32_t c = 0; c < k; c += 2 * LANES) {
            const int32_t left = k - c;
            const vec low =
                left >= LANES ? vec_load(from + c) : vec_load_some(from + c, left, 0.0f);
            const vec high = left >= 2 * LANES ? vec_load(from + c + LANES)
                             : left > LANES    ? vec_load_some(from + c + LANES, left - LANES, 0.0f)
                                               : (vec){0};
            vec_store(to + c / 2, (vec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
        }
    }
}

/* Joins each row with the next one: [ceil(rows / 2)][columns]. An odd last row gets zeros. */
static void pairs_of_rows(const float *in, size_t in_stride, int32_t rows, int32_t columns,
                          float *out, size_t out_stride)
{
    for (int32_t r = 0; r < rows; r += 2) {
        const float *first = in + (size_t)r * in_stride;
        const float *second = first + in_stride;
        float *to = out + (size_t)(r / 2) * out_stride;
        for (int32_t c = 0; c < columns; c += LANES) {
            // Behind the columns it reads the row's spare room.
            const vec low = vec_load(first + c);
            const vec high = r + 1 < rows ? vec_load(second + c) : (vec){0};
            vec_store(to + c, pairs_of(low, high));
        }
    }
}

#endif

#endif
