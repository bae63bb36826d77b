/*
 * out[rows, n] = in[rows, k] * weight[n, k]^T in fp32. Our own kernels are the default: they give a
 * row the same bits wherever it stands among the rows, so that shards add up to the whole, and are
 * no slower. OpenBLAS is there on request (EVALQ_BLAS=openblas); some of its kernels round a row by
 * its place. A struct evq_gemm is filled once and then read by any number of threads.
 */
#ifndef EVQ_KERNELS_CPU_GEMM_H
#define EVQ_KERNELS_CPU_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/machine.h"

#define EVQ_GEMM_ROWS_STEP 8 // rows is a multiple of this.

/* cblas_sgemm of an LP64 library; its enums are ints. */
typedef void (*evq_sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                             const float *a, int lda, const float *b, int ldb, float beta, float *c,
                             int ldc);

struct evq_gemm {
    evq_sgemm_fn blas; // NULL: own kernels.
    enum evq_isa isa;
    const char *name; // "openblas" or "own".
};

/* Reads EVALQ_BLAS. Never fails: own kernels are always there. */
void evq_gemm_open(struct evq_gemm *ret_gemm);

/* A weight is kept in the form that the kernel reads best: this many floats, filled from the plain
 * [n, k]. */
size_t evq_gemm_weight_floats(const struct evq_gemm *gemm, int32_t n, int32_t k);
void evq_gemm_pack(const struct evq_gemm *gemm, const float *plain, int32_t n, int32_t k,
                   float *out);

void evq_gemm_run(const struct evq_gemm *gemm, int32_t rows, int32_t n, int32_t k, const float *in,
                  const float *weight, float *out);

#endif
