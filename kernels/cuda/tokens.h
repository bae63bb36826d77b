/*
 * Launchers of the operations on tokens; the rules of kernels/cuda/ops.h. Strides count floats from
 * row to row; positions are those of the rows in their sequences. What an operation computes is in
 * kernels/backend.h.
 */
#ifndef EVQ_KERNELS_CUDA_TOKENS_H
#define EVQ_KERNELS_CUDA_TOKENS_H

#include "kernels/cuda/ops.h"

#define EVQ_ATTENTION_SIZE_MAX 256 // Of a head: a warp holds it in registers.

#ifdef __cplusplus
extern "C" {
#endif

enum evq_status evq_embed_launch(const int32_t *d_tokens, const int32_t *d_positions, int32_t rows,
                                 const struct evq_op *op, const float *d_table,
                                 const float *d_places, float *d_out, int64_t stride,
                                 cudaStream_t stream, struct evq_error *err) EVQ_CHECK_RESULT;

/* out[i, n] = in[which[i], n], out packed. */
enum evq_status evq_gather_launch(const float *d_in, int64_t stride, const int32_t *d_which,
                                  int32_t rows, int32_t n, float *d_out, cudaStream_t stream,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* LAYER_NORM and RMS_NORM; d_bias may be NULL. */
enum evq_status evq_norm_launch(const float *d_in, int64_t in_stride, int32_t rows,
                                const struct evq_op *op, const float *d_weight, const float *d_bias,
                                float *d_out, int64_t out_stride, cudaStream_t stream,
                                struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_rope_launch(float *d_values, int64_t stride, int32_t rows,
                                const int32_t *d_positions, const struct evq_op *op,
                                const float *d_frequencies, cudaStream_t stream,
                                struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_attention_launch(const float *d_in, int64_t in_stride, int32_t rows,
                                     const int32_t *d_positions, const struct evq_op *op,
                                     float *d_out, int64_t out_stride, cudaStream_t stream,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* out[rows, n] = act(in[rows, c]) * in[rows, n + c]. */
enum evq_status evq_gate_launch(const float *d_in, int64_t in_stride, int32_t rows, int32_t n,
                                enum evq_activation activation, float *d_out, int64_t out_stride,
                                cudaStream_t stream, struct evq_error *err) EVQ_CHECK_RESULT;

/* out = act(in + bias) + residual; in is packed, d_bias and d_residual may be NULL, d_residual may
 * be d_out. */
enum evq_status evq_epilogue_launch(const float *d_in, int32_t rows, int32_t n, const float *d_bias,
                                    enum evq_activation activation, const float *d_residual,
                                    int64_t residual_stride, float *d_out, int64_t out_stride,
                                    cudaStream_t stream, struct evq_error *err) EVQ_CHECK_RESULT;

/* A blob of weights as it came, to fp32 rows. */
enum evq_status evq_convert_launch(const void *d_in, enum evq_weight_type type, bool transposed,
                                   int32_t rows, int32_t columns, float *d_out, cudaStream_t stream,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

#ifdef __cplusplus
}
#endif

#endif
