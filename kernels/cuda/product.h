/*
 * Products of bf16 matrices by cuBLASLt. What its heuristics find for a shape is kept: asking takes
 * tens of microseconds, and a model asks for the same few shapes with every batch.
 */
#ifndef EVQ_KERNELS_CUDA_PRODUCT_H
#define EVQ_KERNELS_CUDA_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/cublas.h"

#define EVQ_CUDA_PRODUCTS        512 // Kept at most.
#define EVQ_CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

/* out[rows, n] = in[rows, k] * weight[n, k]^T, then, if it is to be so: + out, + bias, tanh-GELU.
 * All of it decides how it is computed. */
struct evq_cuda_product {
    int64_t weight_stride, in_stride, out_stride;
    int32_t rows, n, k;
    int32_t epilogue; // EVQ_CUBLASLT_DEFAULT, or the others joined.
    int32_t out_type; // EVQ_CUDA_R_16BF or _32F; the bias has it too.
    int32_t adds;     // 1: to what is in out. Else 0.
};

struct evq_cuda_known { // A product that was asked for.
    struct evq_cuda_product product;
    void *desc, *weight, *in, *out; // NULL: cuBLASLt has no way to do it.
    struct evq_cublaslt_algo algo;
    size_t workspace_bytes;
    bool filled;
};

struct evq_cuda_products {
    void *handle;
    struct evq_cuda_known *known; // [EVQ_CUDA_PRODUCTS], by hash.
    uint64_t lookups;             // Questions to the heuristics.
};

struct evq_cuda_operands {
    const void *d_weight, *d_in, *d_bias;
    void *d_out;
    void *d_workspace; // EVQ_CUDA_WORKSPACE_BYTES.
};

enum evq_status evq_cuda_products_open(struct evq_cuda_products *products,
                                       const struct evq_cublas *cublas,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
void evq_cuda_products_close(struct evq_cuda_products *products, const struct evq_cublas *cublas);

/* Enqueues it. ret_done false and EVQ_OK: cuBLASLt has no way to do it, nothing was enqueued. */
enum evq_status evq_cuda_product_run(struct evq_cuda_products *products,
                                     const struct evq_cublas *cublas,
                                     const struct evq_cuda_product *product,
                                     const struct evq_cuda_operands *operands, cudaStream_t stream,
                                     bool *ret_done, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
