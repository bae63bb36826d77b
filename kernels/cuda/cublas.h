/*
 * The few calls of cuBLAS that the backend makes, loaded at run time: a machine without it gets a
 * sentence and the CPU. Declared here by their C ABI, so that the module builds where the library
 * is not installed.
 */
#ifndef EVQ_KERNELS_CUDA_CUBLAS_H
#define EVQ_KERNELS_CUDA_CUBLAS_H

#include <cuda_runtime_api.h>

#include "shared/error.h"

enum { EVQ_CUBLAS_OP_N = 0, EVQ_CUBLAS_OP_T = 1 };
enum { EVQ_CUBLAS_PEDANTIC_MATH = 2 }; // fp32 as fp32: never TF32.

struct evq_cublas {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*set_math_mode)(void *handle, int mode);
    int (*sgemm)(void *handle, int trans_a, int trans_b, int m, int n, int k, const float *alpha,
                 const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                 int ldc);
};

/* Fills ret_cublas. The library stays loaded. EVQ_E_DEVICE says which file is missing. */
enum evq_status evq_cublas_load(struct evq_cublas *ret_cublas,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_OK for 0, else EVQ_E_NOMEM or EVQ_E_DEVICE with cuBLAS's code. */
enum evq_status evq_cublas_status(int code, const char *what,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
