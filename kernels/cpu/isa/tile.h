/*
 * The inner loop of every matrix product: sums[rows][PANEL] += a[rows, depth] * panel[depth,
 * PANEL]. Each value is summed over depth in order, in one accumulator, so its bits do not depend
 * on the rows of the tile or on where the loops are divided. With pairs, a and the panel hold two
 * bf16 values in the space of a float, which are multiplied and added together; depth then counts
 * pairs.
 */
#ifndef EVQ_KERNELS_CPU_ISA_TILE_H
#define EVQ_KERNELS_CPU_ISA_TILE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/isa/lanes.h"

#define TILE_INLINE static inline __attribute__((always_inline))

TILE_INLINE vec tile_step(const bool pairs, vec sum, const float *a, vec line)
{
#if defined(__AVX512BF16__)
    if (pairs) {
        int32_t pair;
        memcpy(&pair, a, sizeof(pair));
        return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair),
                                     (__m512bh)line);
    }
#endif
    (void)pairs;
    return sum + *a * line;
}

/* pairs and rows must be constants at the call, so that the loops over rows unroll and the sums
 * stay in registers. The rows of a are row_step apart, the values for consecutive lines of the
 * panel depth_step apart, and the rows of sums PANEL apart. fresh: the sums start at zero. */
TILE_INLINE void tile_of(const bool pairs, const int32_t rows, const float *a, size_t row_step,
                         size_t depth_step, const float *panel, int32_t depth, float *sums,
                         bool fresh)
{
    vec held[TILE_ROWS][TILE_VECTORS];

#pragma GCC unroll 16
    for (int32_t r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int32_t v = 0; v < TILE_VECTORS; v++) {
            held[r][v] = fresh ? (vec){0} : vec_load(sums + (size_t)r * PANEL + v * LANES);
        }
    }
    for (int32_t p = 0; p < depth; p++) {
        vec line[TILE_VECTORS];
#pragma GCC unroll 16
        for (int32_t v = 0; v < TILE_VECTORS; v++) {
            line[v] = vec_load(panel + v * LANES);
        }
        panel += PANEL;
#pragma GCC unroll 16
        for (int32_t r = 0; r < rows; r++) {
#pragma GCC unroll 16
            for (int32_t v = 0; v < TILE_VECTORS; v++) {
                held[r][v] = tile_step(pairs, held[r][v], a + (size_t)r * row_step, line[v]);
            }
        }
        a += depth_step;
    }
#pragma GCC unroll 16
    for (int32_t r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int32_t v = 0; v < TILE_VECTORS; v++) {
            vec_store(sums + (size_t)r * PANEL + v * LANES, held[r][v]);
        }
    }
}

TILE_INLINE void tile_rows(const bool pairs, int32_t rows, const float *a, size_t row_step,
                           size_t depth_step, const float *panel, int32_t depth, float *sums,
                           bool fresh)
{
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS) {
        tile_of(pairs, TILE_ROWS, a, row_step, depth_step, panel, depth, sums, fresh);
        a += TILE_ROWS * row_step;
        sums += TILE_ROWS * PANEL;
    }
    if (TILE_ROWS > 4 && rows >= 4) {
        tile_of(pairs, 4, a, row_step, depth_step, panel, depth, sums, fresh);
        a += 4 * row_step;
        sums += 4 * PANEL;
        rows -= 4;
    }
    for (; rows > 0; rows--) {
        tile_of(pairs, 1, a, row_step, depth_step, panel, depth, sums, fresh);
        a += row_step;
        sums += PANEL;
    }
}

/* The same for any number of rows. */
static void tile_run(bool pairs, int32_t rows, const float *a, size_t row_step, size_t depth_step,
                     const float *panel, int32_t depth, float *sums, bool fresh)
{
    if (pairs) {
        tile_rows(true, rows, a, row_step, depth_step, panel, depth, sums, fresh);
    } else {
        tile_rows(false, rows, a, row_step, depth_step, panel, depth, sums, fresh);
    }
}

#endif
