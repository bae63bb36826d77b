/*
 * Attention in tiles with products in fp32, for heads of any size up to EVQ_ATTENTION_SIZE_MAX and
 * for rows in fp32 or bf16. A block works on one tile of queries of one head. Keys and values pass
 * through shared memory KEYS at a time, and the softmax is updated on the way. The threads of a
 * block form GROUPS groups of LANES: a group has every GROUPS-th query, and its lanes share the
 * keys, and then the columns of the values. Blocks of keys begin at multiples of KEYS in the
 * sequence, and no row's sums meet another's, so the bits of a result depend only on its own
 * sequence.
 */
#include "kernels/cuda/launchers.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tiles.cuh"
#include "kernels/cuda/typed.cuh"

enum { THREADS = 128, LANES = 16, GROUPS = THREADS / LANES };

/* SIZE: values of a head, rounded up with zeros. */
template <int SIZE> struct tile {
    static constexpr int ROWS = SIZE > 128 ? 4 : 8; // Queries of a thread.
    static constexpr int QUERIES = ROWS * GROUPS;
    static constexpr int KEYS = SIZE > 128 ? 32 : 64;
    static constexpr int MINE = KEYS / LANES;        // Keys of a thread.
    static constexpr int PAIRS = SIZE / (2 * LANES); // Pairs of columns of a thread.
    // 16 bytes more than a row, so that rows beside each other are in different banks.
    static constexpr int LINE = SIZE + 4;
    static constexpr int WEIGHTS_LINE = KEYS + 4;
    // Queries; keys, and then values in their place; weights.
    static constexpr int BYTES =
        ((QUERIES + KEYS) * LINE + QUERIES * WEIGHTS_LINE) * (int)sizeof(float);
    static_assert(BYTES <= 99 * 1024, "the smallest devices have no more for a block");
};

struct heads_shape {
    int32_t query_step, key_step; // Columns from one head to the next.
    // Columns from a row's first query to its first key, and from there to its first value.
    int64_t to_keys, to_values;
    int32_t size, heads, group, window;
    float scale, cap;
    bool both; // Queries see keys in both directions.
};

/* Copies COUNT rows of `size` values to shared memory as fp32. Only the first `there` rows exist:
 * later rows, and columns from `size` on, become zeros. V: values that are read at once. */
template <int SIZE, int COUNT, int V, typename T>
__device__ static inline void copy_rows(float *to, const T *from, int64_t stride, int32_t there,
                                        int32_t size)
{
    constexpr int PARTS = SIZE / V;

#pragma unroll 4
    for (int32_t i = threadIdx.x; i < COUNT * PARTS; i += THREADS) {
        const int32_t row = i / PARTS;
        const int32_t c = i % PARTS * V;
        float values[V] = {};
        if (row < there && c < size) {
            evq_load(from + row * stride + c, values);
        }
        evq_store(to + row * tile<SIZE>::LINE + c, values);
    }
}

/* The same for rows of either type. `column` counts from the start of a row of the batch. */
template <int SIZE, int COUNT>
__device__ static inline void copy_rows(float *to, const struct evq_cuda_rows &in, int64_t row,
                                        int64_t column, int32_t there, int32_t size)
{
    const int64_t at = row * in.stride + column;
    const bool aligned = in.stride % 4 == 0 && size % 4 == 0;

    if (in.bf16 && aligned) {
        copy_rows<SIZE, COUNT, 4>(to, (const evq_bf16 *)in.d_data + at, in.stride, there, size);
    } else if (in.bf16) {
        copy_rows<SIZE, COUNT, 1>(to, (const evq_bf16 *)in.d_data + at, in.stride, there, size);
    } else if (aligned) {
        copy_rows<SIZE, COUNT, 4>(to, (const float *)in.d_data + at, in.stride, there, size);
    } else {
        copy_rows<SIZE, COUNT, 1>(to, (const float *)in.d_data + at, in.stride, there, size);
    }
}

/* The products of this thread's queries and keys. */
template <int SIZE>
__device__ static inline void multiply_keys(const float *queries, const float *keys,
                                            float (&scores)[tile<SIZE>::ROWS][tile<SIZE>::MINE])
{
    typedef tile<SIZE> T;
    const int32_t lane = threadIdx.x % LANES;
    const int32_t group = threadIdx.x / LANES;

#pragma unroll
    for (int r = 0; r < T::ROWS; r++) {
#pragma unroll
        for (int k = 0; k < T::MINE; k++) {
            scores[r][k] = 0.0f;
        }
    }
#pragma unroll 2
    for (int c = 0; c < SIZE; c += 4) {
        float query[T::ROWS][4];
#pragma unroll
        for (int r = 0; r < T::ROWS; r++) {
            evq_load(queries + (r * GROUPS + group) * T::LINE + c, query[r]);
        }
#pragma unroll
        for (int k = 0; k < T::MINE; k++) {
            float key[4];
            evq_load(keys + (k * LANES + lane) * T::LINE + c, key);
#pragma unroll
            for (int r = 0; r < T::ROWS; r++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scores[r][k] = fmaf(query[r][i], key[i], scores[r][k]);
                }
            }
        }
    }
}

/* The largest value of the lanes of a group. fmaxf ignores a NaN, which appears in the sum. */
__device__ static inline float group_top(float value)
{
    for (int offset = LANES / 2; offset > 0; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
}

/* What a thread keeps of the softmax of its queries. */
template <int SIZE> struct softmax {
    float top[tile<SIZE>::ROWS];   // The largest score; -INFINITY: none was seen.
    float total[tile<SIZE>::ROWS]; // Sums over this lane's keys.
    float sums[tile<SIZE>::ROWS][2 * tile<SIZE>::PAIRS];
};

/* Whether a query does not see a key. The key is `back` positions before the query (after it, if
 * `back` is negative), and `left` positions before the end of what the tile sees. */
__device__ static inline bool hides(int32_t back, int32_t left, const struct heads_shape &shape)
{
    const int32_t apart = shape.both && back < 0 ? -back : back;

    return apart < 0 || left <= 0 || (shape.window > 0 && apart >= shape.window);
}

__device__ static inline float score_of(float product, const struct heads_shape &shape)
{
    const float scaled = product * shape.scale;

    return shape.cap > 0.0f ? tanhf(scaled / shape.cap) * shape.cap : scaled;
}

/* Turns the scores of this block's keys into softmax weights, and rescales the sums so far to the
 * new maximum. The tile's first query is `ahead` positions after the block's first key. The end of
 * what the tile sees is `left` positions after that key. */
template <int SIZE>
__device__ static inline void weigh(const struct heads_shape &shape, int32_t ahead, int32_t left,
                                    float (&scores)[tile<SIZE>::ROWS][tile<SIZE>::MINE],
                                    struct softmax<SIZE> &kept, float *weights)
{
    typedef tile<SIZE> T;
    const int32_t lane = threadIdx.x % LANES;
    const int32_t group = threadIdx.x / LANES;

#pragma unroll
    for (int r = 0; r < T::ROWS; r++) {
        const int32_t query = r * GROUPS + group;
        float top = -INFINITY;
#pragma unroll
        for (int k = 0; k < T::MINE; k++) {
            const int32_t key = k * LANES + lane;
            scores[r][k] = hides(ahead + query - key, left - key, shape)
                               ? -INFINITY
                               : score_of(scores[r][k], shape);
            top = fmaxf(top, scores[r][k]);
        }
        top = fmaxf(kept.top[r], group_top(top));
        const float base = top == -INFINITY ? 0.0f : top;
        const float shrink = expf(kept.top[r] - base);
        kept.top[r] = top;
        kept.total[r] *= shrink;
#pragma unroll
        for (int k = 0; k < T::MINE; k++) {
            const float weight = expf(scores[r][k] - base);
            kept.total[r] += weight;
            weights[query * T::WEIGHTS_LINE + k * LANES + lane] = weight;
        }
#pragma unroll
        for (int c = 0; c < 2 * T::PAIRS; c++) {
            kept.sums[r][c] *= shrink;
        }
    }
}

/* Adds weights * values, for this thread's queries and columns. */
template <int SIZE>
__device__ static inline void
multiply_values(const float *weights, const float *values,
                float (&sums)[tile<SIZE>::ROWS][2 * tile<SIZE>::PAIRS])
{
    typedef tile<SIZE> T;
    const int32_t lane = threadIdx.x % LANES;
    const int32_t group = threadIdx.x / LANES;

#pragma unroll 1
    for (int k = 0; k < T::KEYS; k += 4) {
        float weight[T::ROWS][4];
#pragma unroll
        for (int r = 0; r < T::ROWS; r++) {
            evq_load(weights + (r * GROUPS + group) * T::WEIGHTS_LINE + k, weight[r]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int p = 0; p < T::PAIRS; p++) {
                float pair[2];
                evq_load(values + (k + i) * T::LINE + (p * LANES + lane) * 2, pair);
#pragma unroll
                for (int r = 0; r < T::ROWS; r++) {
                    sums[r][2 * p] = fmaf(weight[r][i], pair[0], sums[r][2 * p]);
                    sums[r][2 * p + 1] = fmaf(weight[r][i], pair[1], sums[r][2 * p + 1]);
                }
            }
        }
    }
}

/* The sink is one more key, with values of 0; NULL: there is none. */
template <int SIZE>
__device__ static inline void
write_rows(const struct evq_cuda_rows &out, const struct evq_attention_tile &at, int32_t head,
           int32_t size, const float *sink, const struct softmax<SIZE> &kept)
{
    typedef tile<SIZE> T;
    const int32_t lane = threadIdx.x % LANES;
    const int32_t group = threadIdx.x / LANES;

#pragma unroll
    for (int r = 0; r < T::ROWS; r++) {
        const int32_t query = r * GROUPS + group;
        const float total = evq_warp_sum<LANES>(kept.total[r]) +
                            (sink != nullptr ? expf(*sink - kept.top[r]) : 0.0f);
        const int64_t place = (int64_t)(at.row + at.first + query) * out.stride + head * size;
#pragma unroll
        for (int c = 0; c < 2 * T::PAIRS; c++) {
            const int32_t column = (c / 2 * LANES + lane) * 2 + c % 2;
            if (query >= at.count || column >= size) {
                continue;
            }
            if (out.bf16) {
                evq_set((evq_bf16 *)out.d_data + place + column, kept.sums[r][c] / total);
            } else {
                evq_set((float *)out.d_data + place + column, kept.sums[r][c] / total);
            }
        }
    }
}

template <int SIZE>
__global__ static void __launch_bounds__(THREADS, SIZE > 32 ? 2 : 3)
    attention_kernel(struct evq_cuda_rows in, const struct evq_attention_tile *tiles,
                     struct heads_shape shape, const float *sinks, struct evq_cuda_rows out)
{
    typedef tile<SIZE> T;
    EVQ_SHARED(shared);
    float *queries = (float *)shared;
    float *block = queries + T::QUERIES * T::LINE; // Keys, and then values.
    float *weights = block + T::KEYS * T::LINE;
    const struct evq_attention_tile at = tiles[blockIdx.x / shape.heads];
    const int32_t head = (int32_t)(blockIdx.x % shape.heads);
    const int64_t keys = shape.to_keys + (int64_t)(head / shape.group) * shape.key_step;
    // No query sees the key `end` or a later one.
    const int32_t end = evq_attention_end(at, shape.both, shape.window);
    const int32_t low =
        shape.window > 0 && at.first >= shape.window ? at.first - shape.window + 1 : 0;
    float scores[T::ROWS][T::MINE];
    struct softmax<SIZE> kept = {
    };

    for (int r = 0; r < T::ROWS; r++) {
        kept.top[r] = -INFINITY;
    }
    copy_rows<SIZE, T::QUERIES>(queries, in, at.row + at.first, (int64_t)head * shape.query_step,
                                at.count, shape.size);
    for (int32_t key = low / T::KEYS * T::KEYS; key < end; key += T::KEYS) {
        __syncthreads(); // No thread needs the values of the block before any more.
        copy_rows<SIZE, T::KEYS>(block, in, at.row + key, keys, end - key, shape.size);
        __syncthreads(); // The queries and keys have arrived.
        multiply_keys<SIZE>(queries, block, scores);
        weigh<SIZE>(shape, at.first - key, end - key, scores, kept, weights);
        __syncthreads(); // No thread needs the keys any more.
        copy_rows<SIZE, T::KEYS>(block, in, at.row + key, keys + shape.to_values, end - key,
                                 shape.size);
        __syncthreads(); // The values and the weights have arrived.
        multiply_values<SIZE>(weights, block, kept.sums);
    }
    write_rows<SIZE>(out, at, head, shape.size, sinks != nullptr ? sinks + head : nullptr, kept);
}

template <int SIZE>
static cudaError_t launch(const struct evq_cuda_rows *in, const struct evq_attention_tile *d_tiles,
                          int32_t tiles, const struct heads_shape *shape, const float *d_sinks,
                          const struct evq_cuda_rows *out, cudaStream_t stream)
{
    typedef tile<SIZE> T;

    const cudaError_t code = cudaFuncSetAttribute(
        attention_kernel<SIZE>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::BYTES);
    if (code != cudaSuccess) {
        return code;
    }
    EVQ_LAUNCH((attention_kernel<SIZE>), (unsigned int)(tiles * shape->heads), THREADS, T::BYTES,
               stream, *in, d_tiles, *shape, d_sinks, *out);
    return cudaGetLastError();
}

int32_t evq_attention_fp32_queries(int32_t size)
{
    return size > 128 ? tile<256>::QUERIES : tile<128>::QUERIES;
}

enum evq_status evq_attention_fp32_launch(const struct evq_cuda_rows *in,
                                          const struct evq_attention_tile *d_tiles, int32_t tiles,
                                          const struct evq_op *op, const float *d_sinks,
                                          const struct evq_cuda_rows *out, cudaStream_t stream,
                                          struct evq_error *err)
{
    const bool mixed = op->step > op->n; // Keys and values stand behind the queries of their head.
    const int32_t step = mixed ? op->step : op->n;
    const struct heads_shape shape = {step,
                                      step,
                                      mixed ? op->n : (int64_t)op->heads * op->n,
                                      mixed ? op->n : (int64_t)op->kv_heads * op->n,
                                      op->n,
                                      op->heads,
                                      op->heads / op->kv_heads,
                                      op->window,
                                      op->scale,
                                      op->cap,
                                      op->both};

    assert(op->n <= EVQ_ATTENTION_SIZE_MAX);
    assert((int64_t)tiles * op->heads <= INT32_MAX);
    if (tiles == 0) {
        return EVQ_OK;
    }
    auto *const run = op->n <= 32    ? launch<32>
                      : op->n <= 64  ? launch<64>
                      : op->n <= 96  ? launch<96>
                      : op->n <= 128 ? launch<128>
                                     : launch<256>;
    return evq_cuda_status(run(in, d_tiles, tiles, &shape, d_sinks, out, stream),
                           "attention launch", err);
}
