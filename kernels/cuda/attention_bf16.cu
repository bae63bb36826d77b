/*
 * Attention in tiles on tensor cores. A block works on one tile of queries of one head. Keys and
 * values pass through shared memory BLOCK at a time, the softmax is updated on the way, and scores
 * and weights never leave the registers. While the scores of a block of keys are computed,
 * its values are copied, and the other way round. Blocks of keys begin at multiples of BLOCK in the
 * sequence, and each row's products are separate, so the bits of a result depend only on its own
 * sequence.
 */
#include "kernels/cuda/launchers.h"

#include <cassert>
#include <cmath>
#include <cstdlib>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tiles.cuh"
#include "kernels/cuda/typed.cuh"

enum { WARPS = 4, THREADS = WARPS * EVQ_WARP };

static constexpr float LOG2_E = 1.44269504f;

struct tile_shape {
    bool both;         // Queries see keys in both directions.
    uint32_t in_bytes; // Bytes between rows.
    int64_t out_stride;
    int32_t heads, group; // Query heads, and how many of them share a key head.
    int32_t step;         // Columns from one head to the next.
    // Columns from a row's first query to its first key, and to its first value.
    int64_t to_keys, to_values;
    int32_t window;
    float scale;     // Converts products, or scores within the cap, to exponents of two; above 0.
    float cap;       // Exponents of two stay within it; 0: they have no cap.
    float cap_scale; // Converts products to twice their part of the cap, as an exponent of two.
};

/* SIZE: values of a head. STACKS: stacks of 16 queries for each warp. */
template <int SIZE, int STACKS, int BLOCK> struct tile {
    static constexpr int QUERIES = 16 * STACKS * WARPS;
    // 16 bytes more than a row, so that 8 consecutive rows are in different banks.
    static constexpr int LINE = SIZE + 8;
    static constexpr int BYTES = (QUERIES + 2 * BLOCK) * LINE * (int)sizeof(evq_bf16);
};

/* The address of a row. With a distance in bytes, this is one multiply-add of 32 by 32 bits; with a
 * distance in values, it would be five instructions. */
__device__ static inline const evq_bf16 *row_at(const evq_bf16 *rows, int32_t row, uint32_t bytes)
{
    return (const evq_bf16 *)((const char *)rows + (uint64_t)(uint32_t)row * bytes);
}

/* Begins to copy this thread's parts of a row, which are STRIDE values apart. */
template <int SIZE, int STRIDE>
__device__ static inline void copy_parts(evq_bf16 *to, const evq_bf16 *from, bool there)
{
#pragma unroll
    for (int c = 0; c < SIZE; c += STRIDE) {
        evq_copy_begin(to + c, from + c, there);
    }
}

/* Begins to copy COUNT rows of SIZE values. Only the first `there` rows exist; later rows become
 * zeros. In most calls all rows exist. */
template <int SIZE, int COUNT>
__device__ static inline void copy_rows(evq_bf16 *to, const evq_bf16 *from, uint32_t bytes,
                                        int32_t there)
{
    constexpr int LINE = SIZE + 8;
    constexpr int PARTS = SIZE / 8;      // Parts of 16 bytes.
    constexpr int SIDE = PARTS & -PARTS; // Threads beside each other in a row; a power of two.
    constexpr int STEP = THREADS / SIDE; // Rows that are copied at once.
    static_assert(COUNT % STEP == 0, "every thread copies as much");
    // 8 threads write shared memory together. With rows that are SIDE apart, each uses other banks.
    const int32_t row = SIDE >= 8 ? threadIdx.x / SIDE
                                  : threadIdx.x / (8 * SIDE) * 8 + threadIdx.x / 8 % SIDE +
                                        threadIdx.x % 8 / SIDE * SIDE;

    to += row * LINE + threadIdx.x % SIDE * 8;
    from += threadIdx.x % SIDE * 8;
    if (there >= COUNT) {
        from = row_at(from, row, bytes);
#pragma unroll
        for (int r = 0; r < COUNT; r += STEP) {
            copy_parts<SIZE, SIDE * 8>(to + r * LINE, row_at(from, r, bytes), true);
        }
    } else {
#pragma unroll 1
        for (int r = 0; r < COUNT; r += STEP) {
            const bool copied = row + r < there;
            copy_parts<SIZE, SIDE * 8>(to + r * LINE, row_at(from, copied ? row + r : 0, bytes),
                                       copied);
        }
    }
}

/* scores[stack][n] (16 queries x 8 keys each) = queries * keys^T. */
template <int SIZE, int STACKS, int BLOCK>
__device__ static inline void multiply_keys(const evq_bf16 *queries, const evq_bf16 *keys,
                                            float (&scores)[STACKS][BLOCK / 8][4])
{
    constexpr int LINE = SIZE + 8;
    const int32_t lane = threadIdx.x % EVQ_WARP;
    const int32_t matrix = lane / 8;
    const int32_t row = lane % 8;

#pragma unroll
    for (int s = 0; s < STACKS; s++) {
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
            scores[s][n][0] = scores[s][n][1] = scores[s][n][2] = scores[s][n][3] = 0.0f;
        }
    }
#pragma unroll
    for (int k = 0; k < SIZE; k += 16) {
        uint32_t a[STACKS][4];
#pragma unroll
        for (int s = 0; s < STACKS; s++) {
            evq_ldmatrix(a[s],
                         queries + (s * 16 + matrix % 2 * 8 + row) * LINE + k + matrix / 2 * 8);
        }
#pragma unroll
        for (int n = 0; n < BLOCK; n += 16) {
            uint32_t b[4];
            evq_ldmatrix(b, keys + (n + matrix / 2 * 8 + row) * LINE + k + matrix % 2 * 8);
#pragma unroll
            for (int s = 0; s < STACKS; s++) {
                evq_mma_bf16(scores[s][n / 8], a[s], b[0], b[1]);
                evq_mma_bf16(scores[s][n / 8 + 1], a[s], b[2], b[3]);
            }
        }
    }
}

/* sums[stack][d] (16 queries x 8 columns each) += weights * values. */
template <int SIZE, int STACKS, int BLOCK>
__device__ static inline void multiply_values(const float (&weights)[STACKS][BLOCK / 8][4],
                                              const evq_bf16 *values,
                                              float (&sums)[STACKS][SIZE / 8][4])
{
    constexpr int LINE = SIZE + 8;
    const int32_t lane = threadIdx.x % EVQ_WARP;
    const int32_t matrix = lane / 8;
    const int32_t row = lane % 8;

#pragma unroll
    for (int k = 0; k < BLOCK; k += 16) {
        uint32_t a[STACKS][4]; // The layout of the sums equals the layout that an operand needs.
#pragma unroll
        for (int s = 0; s < STACKS; s++) {
            const float(&left)[4] = weights[s][k / 8];
            const float(&right)[4] = weights[s][k / 8 + 1];
            a[s][0] = evq_pair(left[0], left[1]);
            a[s][1] = evq_pair(left[2], left[3]);
            a[s][2] = evq_pair(right[0], right[1]);
            a[s][3] = evq_pair(right[2], right[3]);
        }
#pragma unroll
        for (int d = 0; d < SIZE; d += 16) {
            uint32_t b[4];
            evq_ldmatrix_turned(b, values + (k + matrix % 2 * 8 + row) * LINE + d + matrix / 2 * 8);
#pragma unroll
            for (int s = 0; s < STACKS; s++) {
                evq_mma_bf16(sums[s][d / 8], a[s], b[0], b[1]);
                evq_mma_bf16(sums[s][d / 8 + 1], a[s], b[2], b[3]);
            }
        }
    }
}

/* The largest value of the four lanes of a row. fmaxf ignores a NaN, which appears in the sum. */
__device__ static inline float row_top(float value)
{
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

/* What a lane keeps of the softmax of its rows: halves 0 and 1 of each stack. */
template <int STACKS> struct softmax {
    float top[STACKS][2];   // The largest exponent of two; -INFINITY: none was seen.
    float total[STACKS][2]; // Sums over this lane's columns.
};

/* Turns scores into exponents of two within the cap: tanh(x) = 1 - 2 / (2^(2 x log2(e)) + 1). */
template <int STACKS, int BLOCK>
__device__ static inline void bound(const struct tile_shape &shape,
                                    float (&scores)[STACKS][BLOCK / 8][4])
{
#pragma unroll
    for (int s = 0; s < STACKS; s++) {
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float power = evq_exp2(scores[s][n][i] * shape.cap_scale);
                scores[s][n][i] = shape.cap - __fdividef(2.0f * shape.cap, power + 1.0f);
            }
        }
    }
}

/* Sets the scores of keys that a query does not see to -INFINITY. The warp's first query is `ahead`
 * positions after the block's first key. Blocks that every query sees completely do not need this.
 */
template <int STACKS, int BLOCK>
__device__ static inline void hide(int32_t window, int32_t ahead,
                                   float (&scores)[STACKS][BLOCK / 8][4])
{
    const int32_t lane = threadIdx.x % EVQ_WARP;

#pragma unroll
    for (int s = 0; s < STACKS; s++) {
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t query = ahead + s * 16 + i / 2 * 8 + lane / 4;
                const int32_t back = query - (n * 8 + lane % 4 * 2 + i % 2);
                if (back < 0 || (window > 0 && back >= window)) {
                    scores[s][n][i] = -INFINITY;
                }
            }
        }
    }
}

/* The same if queries see keys in both directions. The first `there` keys of the block exist. */
template <int STACKS, int BLOCK>
__device__ static inline void hide_both(int32_t window, int32_t ahead, int32_t there,
                                        float (&scores)[STACKS][BLOCK / 8][4])
{
    const int32_t lane = threadIdx.x % EVQ_WARP;

#pragma unroll
    for (int s = 0; s < STACKS; s++) {
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t key = n * 8 + lane % 4 * 2 + i % 2;
                const int32_t back = ahead + s * 16 + i / 2 * 8 + lane / 4 - key;
                if (key >= there || (window > 0 && abs(back) >= window)) {
                    scores[s][n][i] = -INFINITY;
                }
            }
        }
    }
}

/* Turns scores into weights, and rescales the sums so far to the new maximum. The inner loops
 * decide what attention costs besides its products: a comparison, a multiply-add, an exponential
 * and a sum. */
template <int SIZE, int STACKS, int BLOCK>
__device__ static inline void weigh(float scale, float (&scores)[STACKS][BLOCK / 8][4],
                                    struct softmax<STACKS> &kept,
                                    float (&sums)[STACKS][SIZE / 8][4])
{
#pragma unroll
    for (int s = 0; s < STACKS; s++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < BLOCK / 8; n++) {
                top = fmaxf(top, fmaxf(scores[s][n][half * 2], scores[s][n][half * 2 + 1]));
            }
            top = fmaxf(kept.top[s][half], row_top(top) * scale);
            const float base = top == -INFINITY ? 0.0f : top;
            const float shrink = evq_exp2(kept.top[s][half] - base);
            float total = 0.0f;
#pragma unroll
            for (int n = 0; n < BLOCK / 8; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &score = scores[s][n][half * 2 + i];
                    score = evq_exp2(fmaf(score, scale, -base));
                    total += score;
                }
            }
            kept.total[s][half] = kept.total[s][half] * shrink + total;
            kept.top[s][half] = top;
#pragma unroll
            for (int d = 0; d < SIZE / 8; d++) {
                sums[s][d][half * 2] *= shrink;
                sums[s][d][half * 2 + 1] *= shrink;
            }
        }
    }
}

/* out is the row of query `first`, for this head. The sink is one more key, with values of 0; NULL:
 * there is none. */
template <int SIZE, int STACKS>
__device__ static inline void write_rows(evq_bf16 *out, int64_t stride, int32_t count,
                                         const float *sink, const struct softmax<STACKS> &kept,
                                         const float (&sums)[STACKS][SIZE / 8][4])
{
    const int32_t lane = threadIdx.x % EVQ_WARP;

#pragma unroll
    for (int s = 0; s < STACKS; s++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t row = s * 16 + half * 8 + lane / 4;
            float total = kept.total[s][half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            if (sink != nullptr) {
                total += evq_exp2(*sink * LOG2_E - kept.top[s][half]);
            }
            const float share = 1.0f / total;
            if (row < count) {
                evq_bf16 *to = out + row * stride + lane % 4 * 2;
#pragma unroll
                for (int d = 0; d < SIZE / 8; d++) {
                    *reinterpret_cast<uint32_t *>(to + d * 8) =
                        evq_pair(sums[s][d][half * 2] * share, sums[s][d][half * 2 + 1] * share);
                }
            }
        }
    }
}

/* MORE: the kernel also handles a cap, sinks, and keys in both directions. */
template <int SIZE, int STACKS, int BLOCK, bool MORE>
__global__ static void __launch_bounds__(THREADS)
    tiles_kernel(const evq_bf16 *in, const struct evq_attention_tile *tiles,
                 struct tile_shape shape, const float *sinks, evq_bf16 *out)
{
    typedef tile<SIZE, STACKS, BLOCK> T;
    EVQ_SHARED(shared);
    evq_bf16 *queries = (evq_bf16 *)shared;
    evq_bf16 *keys = queries + T::QUERIES * T::LINE;
    evq_bf16 *values = keys + BLOCK * T::LINE;
    const struct evq_attention_tile at = tiles[blockIdx.x / shape.heads];
    const int32_t head = (int32_t)(blockIdx.x % shape.heads);
    const evq_bf16 *sequence = row_at(in, at.row, shape.in_bytes);
    const evq_bf16 *key_rows =
        sequence + shape.to_keys + (int64_t)(head / shape.group) * shape.step;
    const evq_bf16 *value_rows = key_rows + shape.to_values - shape.to_keys;
    const bool both = MORE && shape.both;
    // No query sees the key `end` or a later one.
    const int32_t end = evq_attention_end(at, both, shape.window);
    const int32_t low =
        shape.window > 0 && at.first >= shape.window ? at.first - shape.window + 1 : 0;
    // mine: this warp's first row in the tile. first: the query of that row; a warp without rows
    // gets a position before all keys, so it only copies.
    const int32_t mine = threadIdx.x / EVQ_WARP * 16 * STACKS;
    const int32_t first = mine < at.count ? at.first + mine : -16 * STACKS;
    float scores[STACKS][BLOCK / 8][4];
    float sums[STACKS][SIZE / 8][4] = {};
    struct softmax<STACKS> kept;

    for (int s = 0; s < STACKS; s++) {
        kept.top[s][0] = kept.top[s][1] = -INFINITY;
        kept.total[s][0] = kept.total[s][1] = 0.0f;
    }
    int32_t key = low / BLOCK * BLOCK;
    copy_rows<SIZE, T::QUERIES>(
        queries, row_at(sequence + (int64_t)head * shape.step, at.first, shape.in_bytes),
        shape.in_bytes, at.count);
    copy_rows<SIZE, BLOCK>(keys, row_at(key_rows, key, shape.in_bytes), shape.in_bytes, end - key);
    evq_copy_close();
    for (; key < end; key += BLOCK) {
        const int32_t next = key + BLOCK;
        const int32_t ahead = first - key;
        const bool works =
            both ? mine < at.count
                 : ahead > -16 * STACKS && // Its last query sees a key, and its first one too.
                       (shape.window == 0 || ahead - BLOCK + 1 < shape.window);
        evq_copy_wait<0>();
        __syncthreads(); // The keys have arrived, and no thread needs the values any more.
        copy_rows<SIZE, BLOCK>(values, row_at(value_rows, key, shape.in_bytes), shape.in_bytes,
                               end - key);
        evq_copy_close();
        if (works) {
            multiply_keys<SIZE, STACKS, BLOCK>(queries + mine * T::LINE, keys, scores);
        }
        __syncthreads(); // No thread needs the keys any more.
        if (next < end) {
            copy_rows<SIZE, BLOCK>(keys, row_at(key_rows, next, shape.in_bytes), shape.in_bytes,
                                   end - next);
        }
        evq_copy_close();
        if (works) {
            const bool whole =
                ahead >= BLOCK - 1 && (shape.window == 0 || ahead + 16 * STACKS - 1 < shape.window);
            if (MORE && shape.cap > 0.0f) {
                bound<STACKS, BLOCK>(shape, scores);
            }
            if (both) {
                hide_both<STACKS, BLOCK>(shape.window, ahead, end - key, scores);
            } else if (!whole) {
                hide<STACKS, BLOCK>(shape.window, ahead, scores);
            }
            weigh<SIZE, STACKS, BLOCK>(shape.scale, scores, kept, sums);
        }
        evq_copy_wait<1>();
        __syncthreads(); // The values have arrived.
        if (works) {
            multiply_values<SIZE, STACKS, BLOCK>(scores, values, sums);
        }
    }
    if (mine < at.count) {
        write_rows<SIZE, STACKS>(out + (at.row + at.first + mine) * shape.out_stride +
                                     (int64_t)head * SIZE,
                                 shape.out_stride, at.count - mine,
                                 MORE && sinks != nullptr ? sinks + head : nullptr, kept, sums);
    }
}

template <int SIZE, int STACKS, int BLOCK, bool MORE>
static cudaError_t launch(const struct evq_cuda_rows *in, const struct evq_attention_tile *d_tiles,
                          int32_t tiles, const struct tile_shape *shape, const float *d_sinks,
                          const struct evq_cuda_rows *out, cudaStream_t stream)
{
    constexpr int BYTES = tile<SIZE, STACKS, BLOCK>::BYTES;
    auto *const kernel = tiles_kernel<SIZE, STACKS, BLOCK, MORE>;

    const cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (code != cudaSuccess) {
        return code;
    }
    EVQ_LAUNCH(kernel, (unsigned int)(tiles * shape->heads), THREADS, BYTES, stream,
               evq_at<evq_bf16>(in, 0), d_tiles, *shape, d_sinks, evq_at<evq_bf16>(out, 0));
    return cudaGetLastError();
}

/* With MORE, large heads have fewer keys in a block, so that the registers suffice. */
template <int SIZE, int STACKS, int BLOCK>
static cudaError_t launch(const struct evq_cuda_rows *in, const struct evq_attention_tile *d_tiles,
                          int32_t tiles, const struct tile_shape *shape, const float *d_sinks,
                          const struct evq_cuda_rows *out, cudaStream_t stream)
{
    const bool more = shape->both || shape->cap > 0.0f || d_sinks != nullptr;
    auto *const run = more ? launch < SIZE, STACKS, SIZE < 128 ? BLOCK : 32,
                true >     : launch<SIZE, STACKS, BLOCK, false>;

    return run(in, d_tiles, tiles, shape, d_sinks, out, stream);
}

int32_t evq_attention_bf16_queries(int32_t size)
{
    switch (size) {
    case 32:
    case 64:
    case 80:
    case 96:
    case 128:
        return 128;
    case 256:
        return 64;
    default:
        return 0;
    }
}

enum evq_status evq_attention_bf16_launch(const struct evq_cuda_rows *in,
                                          const struct evq_attention_tile *d_tiles, int32_t tiles,
                                          const struct evq_op *op, const float *d_sinks,
                                          const struct evq_cuda_rows *out, cudaStream_t stream,
                                          struct evq_error *err)
{
    const double log2_e = 1.4426950408889634;
    const bool mixed = op->step > op->n; // Keys and values stand behind the queries of their head.
    const struct tile_shape shape = {
        op->both,
        (uint32_t)((uint64_t)in->stride * sizeof(evq_bf16)),
        out->stride,
        op->heads,
        op->heads / op->kv_heads,
        mixed ? op->step : op->n,
        mixed ? op->n : (int64_t)op->heads * op->n,
        mixed ? 2 * (int64_t)op->n : (int64_t)(op->heads + op->kv_heads) * op->n,
        op->window,
        op->cap > 0.0f ? 1.0f : (float)((double)op->scale * log2_e),
        (float)((double)op->cap * log2_e),
        op->cap > 0.0f ? (float)(2.0 * (double)op->scale * log2_e / (double)op->cap) : 0.0f};
    cudaError_t code = cudaErrorInvalidValue;

    assert(in->bf16 && out->bf16 && in->stride % 8 == 0 && out->stride % 8 == 0);
    assert((int64_t)tiles * op->heads <= INT32_MAX);
    assert(op->scale > 0.0f); // With a scale above 0, the largest product is the largest score.
    if (tiles == 0) {
        return EVQ_OK;
    }
    switch (op->n) {
    case 32:
        code = launch<32, 2, 64>(in, d_tiles, tiles, &shape, d_sinks, out, stream);
        break;
    case 64:
        code = launch<64, 2, 64>(in, d_tiles, tiles, &shape, d_sinks, out, stream);
        break;
    case 80:
        code = launch<80, 2, 64>(in, d_tiles, tiles, &shape, d_sinks, out, stream);
        break;
    case 96:
        code = launch<96, 2, 64>(in, d_tiles, tiles, &shape, d_sinks, out, stream);
        break;
    case 128:
        code = launch<128, 2, 64>(in, d_tiles, tiles, &shape, d_sinks, out, stream);
        break;
    case 256:
        code = launch<256, 1, 32>(in, d_tiles, tiles, &shape, d_sinks, out, stream);
        break;
    default:
        break;
    }
    return evq_cuda_status(code, "attention launch", err);
}
