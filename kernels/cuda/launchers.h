/*
 * The C launchers of the kernels: operations on rows in device memory, in order on one stream.
 * kernels/backend.h says what each operation computes. Launchers check the launch, do not allocate
 * and do not wait. A fault inside a kernel appears at the next synchronisation. Zero rows are
 * allowed and do nothing.
 *
 * Positions are those of the rows in their sequences. Values are read and written as their rows
 * say, and the arithmetic is fp32. An operation's column counts from the start of its rows. fp32
 * values beside them (norms, biases, positions, rope tables) are aligned like rows.
 */
#ifndef EVQ_KERNELS_CUDA_LAUNCHERS_H
#define EVQ_KERNELS_CUDA_LAUNCHERS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/status.h"

#define EVQ_ATTENTION_SIZE_MAX 256 // Values of a head; a block holds its queries and keys.

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend.h" // The C headers declare C functions.

struct evq_cuda_lookup { // What EMBEDDING reads.
    const int32_t *d_tokens, *d_positions;
    const int32_t *d_types; // NULL: all are 0.
    struct evq_cuda_rows table;
    const float *d_places;     // [positions, n]; NULL: there are no learned positions.
    const float *d_type_table; // [types, n]; NULL: there are no types.
};

enum evq_status evq_embed_launch(const struct evq_cuda_lookup *lookup, int32_t rows,
                                 const struct evq_op *op, const struct evq_cuda_rows *out,
                                 cudaStream_t stream, struct evq_error *err) EVQ_CHECK_RESULT;

/* MEAN; in is not out. d_positions and d_lengths are those of the rows. */
enum evq_status evq_mean_launch(const struct evq_cuda_rows *in, int32_t rows, int32_t n,
                                const int32_t *d_positions, const int32_t *d_lengths,
                                const struct evq_cuda_rows *out, cudaStream_t stream,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* out[i, n] = in[which[i], n], in the type of out. d_which NULL: in[i, n]. */
enum evq_status evq_gather_launch(const struct evq_cuda_rows *in, const int32_t *d_which,
                                  int32_t rows, int32_t n, const struct evq_cuda_rows *out,
                                  cudaStream_t stream, struct evq_error *err) EVQ_CHECK_RESULT;

/* LAYER_NORM and RMS_NORM; d_bias may be NULL. */
enum evq_status evq_norm_launch(const struct evq_cuda_rows *in, int32_t rows,
                                const struct evq_op *op, const float *d_weight, const float *d_bias,
                                const struct evq_cuda_rows *out, cudaStream_t stream,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* What is done to heads in place: RMS_NORM of some, then ROPE of all. */
struct evq_cuda_rope {
    int32_t n, heads, column;
    int32_t turned,
        step;        // Rotated values of a head, and columns between heads; 0: n. With norms: 0.
    bool neighbours; // As in struct evq_op.
    int32_t first_heads; // So many heads are scaled by first_norm, and the rest by rest_norm.
    const float *d_first_norm, *d_rest_norm; // [n]; both NULL: no norm.
    float first_epsilon, rest_epsilon;
    const float *d_rope_table; // Lines of as many cosines as pairs, then sines.
    // The line is the row's position, plus `near` in a sequence of more tokens than that. NULL:
    // always the position.
    const int32_t *d_lengths;
    int32_t near;
};

enum evq_status evq_rope_launch(const struct evq_cuda_rows *values, int32_t rows,
                                const int32_t *d_positions, const struct evq_cuda_rope *rope,
                                cudaStream_t stream, struct evq_error *err) EVQ_CHECK_RESULT;

/* Fills d_rope_table[positions, 2 * half]. Angles are fp32; their cosines and sines are computed in
 * double and multiplied by scale. */
enum evq_status evq_rope_table_launch(const float *d_frequencies, int32_t half, int32_t positions,
                                      float scale, float *d_rope_table, cudaStream_t stream,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Queries [first, first + count) of the sequence whose first row is `row`. */
struct evq_attention_tile {
    int32_t row, first, count;
    int32_t length; // Of the sequence.
};

/* Most queries in a tile for heads of `size` values. */
int32_t evq_attention_fp32_queries(int32_t size);

/* Any rows, with products in fp32. d_sinks may be NULL. The tiles are in the order in which they
 * should begin. Each first is a multiple of the tile size in use, which may be any multiple of 32
 * up to evq_attention_fp32_queries(). */
enum evq_status evq_attention_fp32_launch(const struct evq_cuda_rows *in,
                                          const struct evq_attention_tile *d_tiles, int32_t tiles,
                                          const struct evq_op *op, const float *d_sinks,
                                          const struct evq_cuda_rows *out, cudaStream_t stream,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* As evq_attention_fp32_queries(); 0: tensor cores do not support this size. */
int32_t evq_attention_bf16_queries(int32_t size);

/* The same for bf16 rows and a scale above 0, with products on tensor cores. */
enum evq_status evq_attention_bf16_launch(const struct evq_cuda_rows *in,
                                          const struct evq_attention_tile *d_tiles, int32_t tiles,
                                          const struct evq_op *op, const float *d_sinks,
                                          const struct evq_cuda_rows *out, cudaStream_t stream,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* out[rows, n] = act(in[rows, c]) * in[rows, n + c]. */
enum evq_status evq_gate_launch(const struct evq_cuda_rows *in, int32_t rows, int32_t n,
                                enum evq_activation activation, const struct evq_cuda_rows *out,
                                cudaStream_t stream, struct evq_error *err) EVQ_CHECK_RESULT;

/* out[rows, n] = scale * in + residual; residual and out are fp32. */
enum evq_status evq_add_launch(const struct evq_cuda_rows *in, int32_t rows, int32_t n, float scale,
                               const struct evq_cuda_rows *residual,
                               const struct evq_cuda_rows *out, cudaStream_t stream,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* fp32 values x become scale * x, and then cap * tanh(x / cap) if cap is above 0. */
enum evq_status evq_cap_launch(const struct evq_cuda_rows *values, int32_t rows, int32_t n,
                               float scale, float cap, cudaStream_t stream,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* values[rows, n] = act(values), in place. */
enum evq_status evq_activate_launch(const struct evq_cuda_rows *values, int32_t rows, int32_t n,
                                    enum evq_activation activation, cudaStream_t stream,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* out = act(in + bias) + residual. in is fp32 and packed; residual is fp32. d_bias and residual may
 * be NULL. residual may be out, and so may in if out is fp32 and packed. */
enum evq_status evq_epilogue_launch(const float *d_in, int32_t rows, int32_t n, const float *d_bias,
                                    enum evq_activation activation,
                                    const struct evq_cuda_rows *residual,
                                    const struct evq_cuda_rows *out, cudaStream_t stream,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Computes SCORE's results from logits[rows, n] in fp32, with rows a multiple of 4 values apart.
 * d_bias may be NULL. It sums fp32 exponentials and is meant for products in bf16. If a row's
 * largest logit is further than 2^29 from 0, its loss is a NaN. */
enum evq_status evq_logsum_launch(const struct evq_cuda_rows *logits, int32_t rows, int32_t n,
                                  const float *d_bias, const int32_t *d_targets,
                                  struct evq_row_result *d_results, cudaStream_t stream,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Converts a blob of weights as it came to rows. */
enum evq_status evq_convert_launch(const void *d_in, enum evq_weight_type type, bool transposed,
                                   int32_t rows, int32_t columns, const struct evq_cuda_rows *out,
                                   cudaStream_t stream, struct evq_error *err) EVQ_CHECK_RESULT;

/* The losses, on fp32 rows. kernels/cpu/losses.h gives the same numbers. The result i is that of
 * logits[which[i]] and labels[i]; d_which NULL: of logits[i]. */
enum evq_status evq_cross_entropy_launch(const struct evq_cuda_rows *logits, const int32_t *d_which,
                                         int32_t rows, int32_t classes, const int32_t *d_labels,
                                         int32_t top_k, struct evq_row_result *d_results,
                                         cudaStream_t stream,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* d_targets is packed. */
enum evq_status evq_squared_error_launch(const struct evq_cuda_rows *outputs, int32_t rows,
                                         int32_t columns, const float *d_targets,
                                         struct evq_row_result *d_results, cudaStream_t stream,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#ifdef __cplusplus
}
#endif

#endif
