/*
 * Matrix products over panels, with bias, activation and residual joined on while the sums are
 * near.
 */
#ifndef EVQ_KERNELS_CPU_ISA_GEMM_H
#define EVQ_KERNELS_CPU_ISA_GEMM_H

#include "kernels/cpu/isa/tile.h"
#include "kernels/cpu/isa/vecmath.h"
#include "kernels/cpu/kernels.h"

#define GEMM_DEPTH 192 // Of a block of a panel: with its rows it stays in the first-level cache.

static size_t gemm_scratch_floats(int32_t rows, int32_t k)
{
    // The sums of one panel; for bf16 also the rows, rounded, two to a float.
    return (size_t)rows * (PANEL + ((size_t)k + 1) / 2);
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
    const float *panel = gemm->panels;
    float *sums = gemm->scratch;

    for (int32_t column = 0; column < gemm->n; column += PANEL) {
        for (int32_t from = 0; from < gemm->k; from += GEMM_DEPTH) {
            const int32_t depth = gemm->k - from < GEMM_DEPTH ? gemm->k - from : GEMM_DEPTH;
            tile_run(gemm->rows, gemm->in + from, gemm->in_stride, 1, panel, depth, sums,
                     from == 0);
            panel += (size_t)depth * PANEL;
        }
        gemm_finish(gemm, column, sums);
    }
}

#endif
