/*
 * Matrix products over panels. Bias, activation and residual are applied while the sums are still
 * in the cache.
 */
#ifndef EVQ_KERNELS_CPU_ISA_GEMM_H
#define EVQ_KERNELS_CPU_ISA_GEMM_H

#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vecmath.h"
#include "kernels/cpu/kernels.h"

// Depth of a block of a panel. With its rows it fits into the first-level cache.
#define GEMM_DEPTH 192

static size_t gemm_scratch_floats(int32_t rows)
{
    return (size_t)rows * PANEL; // The sums of one panel.
}

static void gemm_finish(const struct evq_gemm *gemm, int32_t column, const float *sums)
{
    for (int32_t r = 0; r < gemm->rows; r++) {
        float *out = gemm->out + (size_t)r * gemm->out_stride + column;
        for (int32_t v = 0; v < PANEL; v += LANES) {
            vec x = vec_load(sums + (size_t)r * PANEL + v);
            if (gemm->bias != NULL) {
                x += vec_load(gemm->bias + column + v);
            }
            if (gemm->activation != EVQ_ACT_NONE) {
                x = vec_activate(x, gemm->activation);
            }
            if (gemm->residual != NULL) {
                x += vec_load(gemm->residual + (size_t)r * gemm->residual_stride + column + v);
            }
            vec_store(out + v, x);
        }
    }
}

static void gemm_run(const struct evq_gemm *gemm)
{
    const int32_t lines = gemm->pairs ? (gemm->k + 1) / 2 : gemm->k;
    const float *panel = gemm->panels;
    float *sums = gemm->scratch;

    for (int32_t column = 0; column < gemm->n; column += PANEL) {
        for (int32_t from = 0; from < lines; from += GEMM_DEPTH) {
            const int32_t depth = lines - from < GEMM_DEPTH ? lines - from : GEMM_DEPTH;
            tile_run(gemm->pairs, gemm->rows, gemm->in + from, gemm->in_stride, 1, panel, depth,
                     sums, from == 0);
            panel += (size_t)depth * PANEL;
        }
        gemm_finish(gemm, column, sums);
    }
}

#endif
