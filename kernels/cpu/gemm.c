#include "kernels/cpu/gemm.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/blas.h"

#define DEPTH 256 // Of a panel block: 8 to 32 KiB, so that it stays in the first-level cache.

enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };

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

#if defined(__x86_64__)
#define TILE_NAME    avx512
#define TILE_TARGET  __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#define TILE_LANES   16
#define TILE_ROWS    8
#define TILE_VECTORS 2
#include "kernels/cpu/gemm_tile.h"

#define TILE_NAME    avx2
#define TILE_TARGET  __attribute__((target("avx2,fma")))
#define TILE_LANES   8
#define TILE_ROWS    4
#define TILE_VECTORS 3
#include "kernels/cpu/gemm_tile.h"
#endif

#define TILE_NAME base
#define TILE_TARGET
#define TILE_LANES   4
#define TILE_ROWS    4
#define TILE_VECTORS 2
#include "kernels/cpu/gemm_tile.h"

static const struct {
    int32_t width; // Columns of a panel.
    void (*run)(const struct block *block);
} kernels[] = {
    [EVQ_ISA_BASE] = {8, block_base},
#if defined(__x86_64__)
    [EVQ_ISA_AVX2] = {24, block_avx2},
    [EVQ_ISA_AVX512] = {32, block_avx512},
#endif
};

void evq_gemm_open(struct evq_gemm *ret_gemm)
{
    const char *choice = getenv("EVALQ_BLAS");

    ret_gemm->isa = evq_machine_isa();
    ret_gemm->blas =
        choice != NULL && strcmp(choice, "openblas") == 0 ? evq_blas_load(ret_gemm->isa) : NULL;
    ret_gemm->name = ret_gemm->blas != NULL ? "openblas" : "own";
}

size_t evq_gemm_weight_floats(const struct evq_gemm *gemm, int32_t n, int32_t k)
{
    if (gemm->blas != NULL) {
        return (size_t)n * (size_t)k;
    }
    const int32_t width = kernels[gemm->isa].width;
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
    const int32_t width = kernels[gemm->isa].width;
    for (int32_t first = 0; first < n; first += width) {
        for (int32_t p = 0; p < k; p++) {
            for (int32_t c = 0; c < width; c++) {
                *out++ = first + c < n ? plain[(size_t)(first + c) * (size_t)k + (size_t)p] : 0.0f;
            }
        }
    }
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
    const int32_t width = kernels[gemm->isa].width;
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
            kernels[gemm->isa].run(&block);
        }
    }
}
