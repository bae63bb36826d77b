/*
 * Products of bf16 matrices by cuBLASLt, each in one way whatever its rows, so that a row's bits do
 * not depend on the batch that it is in. Its heuristics are asked once a product, and never about
 * the rows that there are: for others they name other tiles, in which k is summed in another order.
 * A tile sums all its values in one order where k is not cut into parts, which is ruled out here.
 * So such kernels are made; NVIDIA does not promise it.
 */
#ifndef EVQ_KERNELS_CUDA_PRODUCT_H
#define EVQ_KERNELS_CUDA_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/cublas.h"

#define EVQ_CUDA_PRODUCTS        512 // Kept at most.
#define EVQ_CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

/* Rows that the heuristics are asked about: what is good for these is good for fewer. More than a
 * batch has, unless one sequence is longer. */
#define EVQ_CUDA_ASKED_ROWS 65536

/* out[rows, n] = in[rows, k] * weight[n, k]^T, then, if it is to be so: + out, + bias, tanh-GELU.
 * All of it decides how it is computed; nothing else does. */
struct evq_cuda_product {
    int64_t weight_stride, in_stride, out_stride;
    int32_t asked_rows, n, k; // asked_rows: EVQ_CUDA_ASKED_ROWS, or a chunk of scores.
    int32_t epilogue;         // EVQ_CUBLASLT_DEFAULT, or the others joined.
    int32_t out_type;         // EVQ_CUDA_R_16BF or _32F; the bias has it too.
    int32_t adds;             // 1: to what is in out. Else 0.
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
    int32_t rows; // Any number.
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
