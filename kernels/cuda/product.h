/*
 * Products of bf16 matrices by cuBLASLt. Each product is always computed in the same way, so that
 * the bits of a row do not depend on its batch. The heuristics are asked once for each product, and
 * never with the actual number of rows, because for other numbers they choose other tiles, which
 * sum k in another order. A tile sums all its values in one order if k is not divided into parts,
 * which is ruled out here. Such kernels behave like that today, but NVIDIA does not promise it.
 */
#ifndef EVQ_KERNELS_CUDA_PRODUCT_H
#define EVQ_KERNELS_CUDA_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/cublas.h"

#define EVQ_CUDA_PRODUCTS        512 // Most products that are kept.
#define EVQ_CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

/* The number of rows that the heuristics are asked about. What is good for so many is good for
 * fewer. A batch has no more, unless one sequence is longer. */
#define EVQ_CUDA_ASKED_ROWS 65536

/* out[rows, n] = in[rows, k] * weight[n, k]^T, optionally + out, + bias, and tanh-GELU. Only these
 * fields decide how it is computed. */
struct evq_cuda_product {
    int64_t weight_stride, in_stride, out_stride;
    int32_t asked_rows, n, k; // asked_rows: EVQ_CUDA_ASKED_ROWS, or the size of a chunk of scores.
    int32_t epilogue;         // EVQ_CUBLASLT_DEFAULT, or a combination of the others.
    int32_t out_type;         // EVQ_CUDA_R_16BF or _32F; the bias has the same type.
    int32_t adds;             // 1: adds to the content of out; otherwise 0.
};

struct evq_cuda_known { // A product for which the heuristics were asked.
    struct evq_cuda_product product;
    void *desc, *weight, *in, *out; // NULL: cuBLASLt cannot compute it.
    struct evq_cublaslt_algo algo;
    size_t workspace_bytes;
    bool filled;
};

struct evq_cuda_products {
    void *handle;
    struct evq_cuda_known *known; // [EVQ_CUDA_PRODUCTS], by hash.
    uint64_t lookups;             // Number of questions to the heuristics.
};

struct evq_cuda_operands {
    int32_t rows; // Any number of rows.
    const void *d_weight, *d_in, *d_bias;
    void *d_out;
    void *d_workspace; // EVQ_CUDA_WORKSPACE_BYTES bytes.
};

enum evq_status evq_cuda_products_open(struct evq_cuda_products *products,
                                       const struct evq_cublas *cublas,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
void evq_cuda_products_close(struct evq_cuda_products *products, const struct evq_cublas *cublas);

/* Enqueues the product. *ret_done false with EVQ_OK: cuBLASLt cannot compute it, and nothing was
 * enqueued. */
enum evq_status evq_cuda_product_run(struct evq_cuda_products *products,
                                     const struct evq_cublas *cublas,
                                     const struct evq_cuda_product *product,
                                     const struct evq_cuda_operands *operands, cudaStream_t stream,
                                     bool *ret_done, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
