/*
 * OpenBLAS, loaded at run time: what the engine's own products are held against. Call from one
 * thread, before others read the environment.
 */
#ifndef EVQ_TESTS_BENCH_OPENBLAS_H
#define EVQ_TESTS_BENCH_OPENBLAS_H

#include <stdbool.h>

enum { OPENBLAS_ROW_MAJOR = 101, OPENBLAS_NO_TRANS = 111, OPENBLAS_TRANS = 112 };

/* cblas_sgemm of an LP64 library; its enums are ints. */
typedef void (*openblas_sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k,
                                  float alpha, const float *a, int lda, const float *b, int ldb,
                                  float beta, float *c, int ldc);

/* cblas_sgemm of libopenblas.so.0 with these threads, or NULL when it is not installed. avx512: its
 * SkylakeX kernels; else those it picks by itself. */
openblas_sgemm_fn openblas_load(bool avx512, int threads);

#endif
