/*
 * The inner loops, compiled once for each instruction set from kernels/cpu/isa/. They keep no
 * state; any thread. Rows are `stride` floats apart. Up to EVQ_KERNELS_PAD values behind a row's
 * columns may be read and overwritten, and rows have that room. Each value is computed only from
 * its own row, in a fixed order, so its bits do not depend on the rows beside it, and shards add up
 * to the whole. NaN in, NaN out.
 */
#ifndef EVQ_KERNELS_CPU_KERNELS_H
#define EVQ_KERNELS_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cpu/machine.h"

#define EVQ_KERNELS_PAD 32 // No panel and no register is wider than this.

/*
 * out[rows, n] = act(in[rows, k] * weight[n, k]^T + bias[n]) + residual[rows, n]. The weight is
 * stored in panels (kernels/cpu/weights.h). With pairs, in and the weight hold pairs of bf16 values
 * in the space of floats, and stride and lines count pairs.
 */
struct evq_gemm {
    int32_t rows, n, k;
    bool pairs; // Only if evq_kernels.round exists.
    const float *in;
    size_t in_stride;
    const float *panels;
    const float *bias; // It has spare room like a row; or NULL.
    enum evq_activation activation;
    const float *residual; // It may be out; or NULL.
    size_t residual_stride;
    float *out; // It must not be in.
    size_t out_stride;
    float *scratch; // evq_kernels.gemm_scratch_floats(rows) floats, aligned to 64 bytes.
};

/* One head and `count` queries (at most the width of a panel) of one sequence, from `first` on. */
struct evq_attention {
    const float *q, *k, *v; // They point to the first row of the sequence.
    size_t in_stride;       // The stride of all three.
    int32_t size;           // Values of a head.
    int32_t first, count;
    int32_t length; // Rows of the sequence.
    bool both;      // Later positions are seen too.
    int32_t window; // 0: all positions are seen.
    float scale;
    float cap;  // Scores x become cap * tanh(x / cap); 0: they stay.
    float sink; // One more score without a value; -INFINITY: there is none.
    float *out; // It points to the first row of the sequence.
    size_t out_stride;
    bool pairs;     // Products use bf16; only if evq_kernels.round exists.
    float *scratch; // evq_kernels.attention_scratch_floats(size) floats, aligned to 64 bytes.
};

/* How heads are rotated. */
struct evq_turn {
    int32_t heads, step;  // Number of heads, and the distance between their first values.
    int32_t n;            // So many values of each head are rotated.
    bool neighbours;      // The pairs are (2 i, 2 i + 1); otherwise (i, i + n / 2).
    const float *table;   // Lines of n / 2 cosines, then n / 2 sines.
    const int32_t *lines; // The line of each row.
};

/* The state of one row while the tiles of the vocabulary are processed. */
struct evq_logsum {
    float top;   // The largest logit so far; starts as -INFINITY.
    double sum;  // The sum of exp(logit - top).
    int32_t arg; // The first position of top.
};

struct evq_kernels {
    int32_t panel; // Columns of a panel of weights, and queries of an attention block.

    size_t (*gemm_scratch_floats)(int32_t rows);
    void (*gemm)(const struct evq_gemm *gemm);
    /* Rounds rows of k floats to (k + 1) / 2 pairs; if k is odd, the last pair has a zero. out has
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
    /* Gates in[rows, 2 c] and ups in[rows, 2 c + 1], as EXPERTS has them if they are neighbours. */
    void (*gate_pairs)(const float *in, size_t in_stride, int32_t rows, int32_t n, float slope,
                       float cap, float *out, size_t out_stride);
    /* bias may be NULL; out may be in. */
    void (*layer_norm)(const float *in, size_t in_stride, int32_t rows, int32_t n,
                       const float *weight, const float *bias, float epsilon, float *out,
                       size_t out_stride);
    /* The heads have n columns each and follow one another; out may be in. */
    void (*rms_norm)(const float *in, size_t in_stride, int32_t rows, int32_t heads, int32_t n,
                     const float *weight, float epsilon, float *out, size_t out_stride);
    void (*rope)(float *values, size_t stride, int32_t rows, const struct evq_turn *turn);
    /* out[rows, n] = scale * in + residual; out may be either. */
    void (*add)(const float *in, size_t in_stride, int32_t rows, int32_t n, float scale,
                const float *residual, size_t residual_stride, float *out, size_t out_stride);
    /* Values x become scale * x, and then cap * tanh(x / cap) if cap is above 0; in place. */
    void (*cap)(float *values, size_t stride, int32_t rows, int32_t n, float scale, float cap);
    /* Adds the logits [first, first + n) of the vocabulary to each row's state. */
    void (*logsum)(const float *logits, size_t stride, int32_t rows, int32_t first, int32_t n,
                   struct evq_logsum *sums);
};

/* Distance between rows of round()'s output, in floats: an odd number of cache lines, so that
 * consecutive rows use different parts of the cache. */
size_t evq_kernels_rounded_stride(int32_t k);

/* isa: at most what the machine has, evq_machine_isa(). */
const struct evq_kernels *evq_kernels_of(enum evq_isa isa);

#endif
