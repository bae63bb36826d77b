/*
 * The inner loops, built once for each instruction set from kernels/cpu/isa/. Any thread: nothing
 * here keeps state.
 *
 * Values lie in rows `stride` floats apart. What follows a row's columns, up to EVQ_KERNELS_PAD of
 * them, may be read and overwritten: rows have that room. Each value is computed from its own row
 * alone, in an order that depends on nothing else: a row's bits do not depend on the rows beside
 * it, so shards add up to the whole. NaN in, NaN out.
 */
#ifndef EVQ_KERNELS_CPU_KERNELS_H
#define EVQ_KERNELS_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cpu/machine.h"

#define EVQ_KERNELS_PAD 32 // No panel and no register is wider.

/*
 * out[rows, n] = act(in[rows, k] * weight[n, k]^T + bias[n]) + residual[rows, n]. The weight comes
 * in panels (kernels/cpu/weights.h). With pairs, in and the weight are pairs of bf16 values in the
 * place of floats, and stride and lines count pairs.
 */
struct evq_gemm {
    int32_t rows, n, k;
    bool pairs; // Only where evq_kernels.round is there.
    const float *in;
    size_t in_stride;
    const float *panels;
    const float *bias; // With room like a row; or NULL.
    enum evq_activation activation;
    const float *residual; // May be out; or NULL.
    size_t residual_stride;
    float *out; // Not in.
    size_t out_stride;
    float *scratch; // evq_kernels.gemm_scratch_floats(rows) of them, aligned to 64 bytes.
};

/* One head, `count` queries (at most a panel's width) from `first` on, of one sequence. */
struct evq_attention {
    const float *q, *k, *v; // Of the sequence's first row.
    size_t in_stride;       // Of all three.
    int32_t size;           // Of the head.
    int32_t first, count;
    int32_t window; // 0: all before.
    float scale;
    float *out; // Of the sequence's first row.
    size_t out_stride;
    bool pairs;     // Multiply in bf16; only where evq_kernels.round is there.
    float *scratch; // evq_kernels.attention_scratch_floats(size) of them, aligned to 64 bytes.
};

/* The state of one row's logits as tiles of the vocabulary go by. */
struct evq_logsum {
    float top;   // Largest so far; starts as -INFINITY.
    double sum;  // Of exp(logit - top).
    int32_t arg; // First place of top.
};

struct evq_kernels {
    int32_t panel; // Columns of a panel of weights; queries of an attention block.

    size_t (*gemm_scratch_floats)(int32_t rows);
    void (*gemm)(const struct evq_gemm *gemm);
    /* Rounds rows of k floats to (k + 1) / 2 pairs, the last with a zero where k is odd. out has
     * room for whole registers. NULL: this processor does not multiply bf16. */
    void (*round)(const float *in, size_t in_stride, int32_t rows, int32_t k, float *out,
                  size_t out_stride);

    size_t (*attention_scratch_floats)(int32_t size);
    void (*attention)(const struct evq_attention *attention);

    /* values[rows, n] = act(values); in place. */
    void (*activate)(float *values, size_t stride, int32_t rows, int32_t n,
                     enum evq_activation activation);
    /* out[rows, n] = act(in[rows, c]) * in[rows, n + c]. */
    void (*gate)(const float *in, size_t in_stride, int32_t rows, int32_t n,
                 enum evq_activation activation, float *out, size_t out_stride);
    /* bias may be NULL; out may be in. */
    void (*layer_norm)(const float *in, size_t in_stride, int32_t rows, int32_t n,
                       const float *weight, const float *bias, float epsilon, float *out,
                       size_t out_stride);
    /* heads of n columns one after another; out may be in. */
    void (*rms_norm)(const float *in, size_t in_stride, int32_t rows, int32_t heads, int32_t n,
                     const float *weight, float epsilon, float *out, size_t out_stride);
    /* Row r turns by turns[positions[r]]: n / 2 cosines, then n / 2 sines. */
    void (*rope)(float *values, size_t stride, int32_t rows, int32_t heads, int32_t n,
                 const float *turns, const int32_t *positions);
    /* Takes logits for [first, first + n) of the vocabulary into each row's state. */
    void (*logsum)(const float *logits, size_t stride, int32_t rows, int32_t first, int32_t n,
                   struct evq_logsum *sums);
};

/* Floats from row to row of `round`'s output: an odd number of cache lines, so that rows one above
 * the other fall into different places of the cache. */
size_t evq_kernels_rounded_stride(int32_t k);

/* isa: at most what the machine has, evq_machine_isa(). */
const struct evq_kernels *evq_kernels_of(enum evq_isa isa);

#endif
