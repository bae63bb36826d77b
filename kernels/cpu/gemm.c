#include "kernels/cpu/gemm.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/blas.h"

#define INLINE   inline __attribute__((always_inline))
#define LANES    16  // Floats in a vector; the compiler splits it where registers are shorter.
#define VECTORS  2   // Vectors in a panel, at most.
#define TILE_MAX 8   // Rows of a tile, at most.
#define DEPTH    256 // Of a panel block: 32 KiB, so that it stays in the first-level cache.

typedef float vector
    __attribute__((vector_size(LANES * sizeof(float)))); // C has no other way to say it.

enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };

void evq_gemm_open(struct evq_gemm *ret_gemm)
{
    const char *choice = getenv("EVALQ_BLAS");

    ret_gemm->isa = evq_machine_isa();
    ret_gemm->blas =
        choice != NULL && strcmp(choice, "own") == 0 ? NULL : evq_blas_load(ret_gemm->isa);
    ret_gemm->name = ret_gemm->blas != NULL ? "openblas" : "own";
}

static int32_t panel_columns(const struct evq_gemm *gemm)
{
    return gemm->isa == EVQ_ISA_AVX512 ? VECTORS * LANES : LANES;
}

size_t evq_gemm_weight_floats(const struct evq_gemm *gemm, int32_t n, int32_t k)
{
    if (gemm->blas != NULL) {
        return (size_t)n * (size_t)k;
    }
    const int32_t width = panel_columns(gemm);
    const size_t panels = ((size_t)n + (size_t)width - 1) / (size_t)width;
    return panels * (size_t)width * (size_t)k;
}

/* Panels of `width` columns of out, each k deep: [panel][k][width], the last one filled up with
 * zeros. */
void evq_gemm_pack(const struct evq_gemm *gemm, const float *plain, int32_t n, int32_t k,
                   float *out)
{
    if (gemm->blas != NULL) {
        memcpy(out, plain, (size_t)n * (size_t)k * sizeof(float));
        return;
    }
    const int32_t width = panel_columns(gemm);
    for (int32_t first = 0; first < n; first += width) {
        for (int32_t p = 0; p < k; p++) {
            for (int32_t c = 0; c < width; c++) {
                *out++ = first + c < n ? plain[(size_t)(first + c) * (size_t)k + (size_t)p] : 0.0f;
            }
        }
    }
}

/*
 * One tile: `tile` rows of in times one panel block. Sums over k in order, one accumulator per
 * element, whatever the instruction set. Called with constants only, so that every loop over rows
 * and vectors unrolls into registers.
 */
static INLINE void tile_run(const float *in, size_t in_stride, const float *panel, int32_t depth,
                            float *out, size_t out_stride, bool fresh, const int32_t tile,
                            const int32_t vectors)
{
    vector sums[TILE_MAX][VECTORS];

#pragma GCC unroll 8
    for (int32_t r = 0; r < tile; r++) {
#pragma GCC unroll 2
        for (int32_t v = 0; v < vectors; v++) {
            if (fresh) {
                sums[r][v] = (vector){0};
            } else {
                memcpy(&sums[r][v], out + (size_t)r * out_stride + v * LANES, sizeof(vector));
            }
        }
    }
    for (int32_t p = 0; p < depth; p++) {
        vector column[VECTORS];
#pragma GCC unroll 2
        for (int32_t v = 0; v < vectors; v++) {
            memcpy(&column[v], panel + v * LANES, sizeof(vector));
        }
        panel += vectors * LANES;
#pragma GCC unroll 8
        for (int32_t r = 0; r < tile; r++) {
#pragma GCC unroll 2
            for (int32_t v = 0; v < vectors; v++) {
                sums[r][v] += in[(size_t)r * in_stride + (size_t)p] * column[v];
            }
        }
    }
#pragma GCC unroll 8
    for (int32_t r = 0; r < tile; r++) {
#pragma GCC unroll 2
        for (int32_t v = 0; v < vectors; v++) {
            memcpy(out + (size_t)r * out_stride + v * LANES, &sums[r][v], sizeof(vector));
        }
    }
}

struct block { // One panel block against all rows.
    const float *in;
    size_t in_stride;
    const float *panel;
    int32_t depth;
    float *out;
    size_t out_stride;
    int32_t rows;
    int32_t columns; // Of out that exist; fewer than a panel's in the last one.
    bool fresh;
};

static INLINE void block_run(const struct block *block, const int32_t tile, const int32_t vectors)
{
    const int32_t width = vectors * LANES;

    for (int32_t row = 0; row < block->rows; row += tile) {
        const float *in = block->in + (size_t)row * block->in_stride;
        float *out = block->out + (size_t)row * block->out_stride;
        if (block->columns == width) {
            tile_run(in, block->in_stride, block->panel, block->depth, out, block->out_stride,
                     block->fresh, tile, vectors);
            continue;
        }
        float edge[TILE_MAX * VECTORS * LANES] = {0};
        const size_t bytes = (size_t)block->columns * sizeof(float);
        for (int32_t r = 0; r < tile && !block->fresh; r++) {
            memcpy(edge + r * width, out + (size_t)r * block->out_stride, bytes);
        }
        tile_run(in, block->in_stride, block->panel, block->depth, edge, (size_t)width,
                 block->fresh, tile, vectors);
        for (int32_t r = 0; r < tile; r++) {
            memcpy(out + (size_t)r * block->out_stride, edge + r * width, bytes);
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))) static void
block_avx512(const struct block *block)
{
    block_run(block, 8, 2);
}

__attribute__((target("avx2,fma"))) static void block_avx2(const struct block *block)
{
    block_run(block, 4, 1);
}
#endif

static void block_base(const struct block *block)
{
    block_run(block, 2, 1);
}

static void block_dispatch(enum evq_isa isa, const struct block *block)
{
#if defined(__x86_64__)
    if (isa == EVQ_ISA_AVX512) {
        block_avx512(block);
        return;
    }
    if (isa == EVQ_ISA_AVX2) {
        block_avx2(block);
        return;
    }
#endif
    (void)isa;
    block_base(block);
}

void evq_gemm_run(const struct evq_gemm *gemm, int32_t rows, int32_t n, int32_t k, const float *in,
                  const float *weight, float *out)
{
    assert(rows % EVQ_GEMM_ROWS_STEP == 0);
    if (gemm->blas != NULL) {
        gemm->blas(CBLAS_ROW_MAJOR, CBLAS_NO_TRANS, CBLAS_TRANS, rows, n, k, 1.0f, in, k, weight, k,
                   0.0f, out, n);
        return;
    }
    const int32_t width = panel_columns(gemm);
    for (int32_t from = 0; from < k; from += DEPTH) {
        for (int32_t first = 0; first < n; first += width) {
            const struct block block = {
                .in = in + from,
                .in_stride = (size_t)k,
                .panel = weight + (size_t)first * (size_t)k + (size_t)from * (size_t)width,
                .depth = k - from < DEPTH ? k - from : DEPTH,
                .out = out + first,
                .out_stride = (size_t)n,
                .rows = rows,
                .columns = n - first < width ? n - first : width,
                .fresh = from == 0,
            };
            block_dispatch(gemm->isa, &block);
        }
    }
}
