/*
 * The few calls of cuBLAS and cuBLASLt that the backend needs, loaded at run time. A machine
 * without the library gets a message and uses the CPU. The calls are declared here by their C ABI,
 * so that the module can be built where the library is not installed.
 */
#ifndef EVQ_KERNELS_CUDA_CUBLAS_H
#define EVQ_KERNELS_CUDA_CUBLAS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/base/error.h"

enum { EVQ_CUBLAS_OP_N = 0, EVQ_CUBLAS_OP_T = 1 };
enum { EVQ_CUBLAS_PEDANTIC_MATH = 2 }; // fp32 stays fp32, never TF32.

/* Numbers of cuBLASLt's interface, and of CUDA types in it. */
enum { EVQ_CUBLASLT_COMPUTE_32F = 68, EVQ_CUDA_R_32F = 0, EVQ_CUDA_R_16BF = 14 };
enum { // Attributes of a product.
    EVQ_CUBLASLT_TRANS_A = 3,
    EVQ_CUBLASLT_TRANS_B = 4,
    EVQ_CUBLASLT_EPILOGUE = 7,
    EVQ_CUBLASLT_BIAS_POINTER = 8
};
enum { EVQ_CUBLASLT_DEFAULT = 1, EVQ_CUBLASLT_BIAS = 4, EVQ_CUBLASLT_GELU = 32 };  // Epilogues.
enum { EVQ_CUBLASLT_MAX_WORKSPACE_BYTES = 1, EVQ_CUBLASLT_REDUCTION_SCHEMES = 3 }; // Preferences.
enum { EVQ_CUBLASLT_REDUCE_NONE = 0 };    // Sums are not divided into parts.
enum { EVQ_CUBLASLT_LAYOUT_COLUMNS = 3 }; // An attribute of a layout.
enum { EVQ_CUBLAS_INVALID_VALUE = 7, EVQ_CUBLAS_NOT_SUPPORTED = 15 };

struct evq_cublaslt_algo {
    uint64_t data[8];
};

struct evq_cublaslt_found { // What its heuristics return.
    struct evq_cublaslt_algo algo;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};

struct evq_cublas {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*set_math_mode)(void *handle, int mode);
    int (*sgemm)(void *handle, int trans_a, int trans_b, int m, int n, int k, const float *alpha,
                 const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                 int ldc);

    int (*lt_create)(void **handle);
    int (*lt_destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale_type);
    int (*desc_destroy)(void *desc);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t bytes);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride);
    int (*layout_destroy)(void *layout);
    int (*layout_set)(void *layout, int attribute, const void *value, size_t bytes);
    int (*preference_create)(void **preference);
    int (*preference_destroy)(void *preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t bytes);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
                     int wanted, struct evq_cublaslt_found *found, int *ret_count);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                  const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                  void *d, void *d_layout, const struct evq_cublaslt_algo *algo, void *workspace,
                  size_t workspace_bytes, cudaStream_t stream);
};

/* Fills in ret_cublas. The libraries stay loaded. NVIDIA_TF32_OVERRIDE in the environment is set to
 * 0. EVQ_E_DEVICE names the missing file. */
enum evq_status evq_cublas_load(struct evq_cublas *ret_cublas,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether so little memory is left on the device that a call of cuBLAS may have failed because of
 * it. A kernel is loaded at its first launch; without memory it is reported as failed, or as not
 * supported. */
bool evq_cublas_lacks_memory(void);

/* EVQ_OK for 0; otherwise EVQ_E_NOMEM or EVQ_E_DEVICE with cuBLAS's code. */
enum evq_status evq_cublas_status(int code, const char *what,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
