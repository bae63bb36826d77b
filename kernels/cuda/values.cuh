/*
 * How the kernels read and write values of rows: fp32, or bf16 with fp32 arithmetic; one at a time,
 * or 2, 4 or 8 at a time from addresses that are multiples of so many values.
 */
#ifndef EVQ_KERNELS_CUDA_VALUES_CUH
#define EVQ_KERNELS_CUDA_VALUES_CUH

#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>

#include "kernels/backend.h"

typedef __nv_bfloat16 evq_bf16;

__device__ static inline float evq_get(const float *at)
{
    return *at;
}

__device__ static inline float evq_get(const evq_bf16 *at)
{
    return __bfloat162float(*at);
}

__device__ static inline void evq_set(float *at, float value)
{
    *at = value;
}

__device__ static inline void evq_set(evq_bf16 *at, float value)
{
    *at = __float2bfloat16_rn(value);
}

/* Two values in the form of a product's operand, with the first in the low half. */
__device__ static inline uint32_t evq_pair(float low, float high)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &both, sizeof(bits));
    return bits;
}

__device__ static inline float evq_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* 4, 8 or 16 bytes at once. */
template <int WORDS>
__device__ static inline void evq_load_words(const void *at, uint32_t (&words)[WORDS])
{
    static_assert(WORDS == 1 || WORDS == 2 || WORDS == 4, "as one load takes them");
    if constexpr (WORDS == 1) {
        words[0] = *reinterpret_cast<const uint32_t *>(at);
    } else if constexpr (WORDS == 2) {
        const uint2 all = *reinterpret_cast<const uint2 *>(at);
        words[0] = all.x, words[1] = all.y;
    } else {
        const uint4 all = *reinterpret_cast<const uint4 *>(at);
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    }
}

template <int WORDS>
__device__ static inline void evq_store_words(void *at, const uint32_t (&words)[WORDS])
{
    static_assert(WORDS == 1 || WORDS == 2 || WORDS == 4, "as one store takes them");
    if constexpr (WORDS == 1) {
        *reinterpret_cast<uint32_t *>(at) = words[0];
    } else if constexpr (WORDS == 2) {
        *reinterpret_cast<uint2 *>(at) = {words[0], words[1]};
    } else {
        *reinterpret_cast<uint4 *>(at) = {words[0], words[1], words[2], words[3]};
    }
}

template <int V> __device__ static inline void evq_load(const float *at, float (&values)[V])
{
    constexpr int ONCE = V < 4 ? V : 4;

    for (int first = 0; first < V; first += ONCE) {
        uint32_t words[ONCE];
        evq_load_words(at + first, words);
        for (int i = 0; i < ONCE; i++) {
            values[first + i] = evq_of_bits(words[i]);
        }
    }
}

template <int V> __device__ static inline void evq_load(const evq_bf16 *at, float (&values)[V])
{
    if constexpr (V == 1) {
        values[0] = evq_get(at);
    } else {
        uint32_t pairs[V / 2];
        evq_load_words(at, pairs);
        for (int p = 0; p < V / 2; p++) {
            values[2 * p] = evq_of_bits(pairs[p] << 16);
            values[2 * p + 1] = evq_of_bits(pairs[p] & 0xffff0000u);
        }
    }
}

template <int V> __device__ static inline void evq_store(float *at, const float (&values)[V])
{
    constexpr int ONCE = V < 4 ? V : 4;

    for (int first = 0; first < V; first += ONCE) {
        uint32_t words[ONCE];
        memcpy(words, values + first, sizeof(words));
        evq_store_words(at + first, words);
    }
}

template <int V> __device__ static inline void evq_store(evq_bf16 *at, const float (&values)[V])
{
    if constexpr (V == 1) {
        evq_set(at, values[0]);
    } else {
        uint32_t pairs[V / 2];
        for (int p = 0; p < V / 2; p++) {
            pairs[p] = evq_pair(values[2 * p], values[2 * p + 1]);
        }
        evq_store_words(at, pairs);
    }
}

template <int V, typename Function>
__device__ static inline void evq_each(float (&x)[V], Function function)
{
    for (int i = 0; i < V; i++) {
        x[i] = function(x[i]);
    }
}

/* The activation is tested once for all values. */
template <int V>
__device__ static inline void evq_activate(float (&x)[V], enum evq_activation activation)
{
    switch (activation) {
    case EVQ_ACT_RELU: // Written so that a NaN is kept.
        evq_each(x, [](float v) { return v < 0.0f ? 0.0f : v; });
        break;
    case EVQ_ACT_RELU2:
        evq_each(x, [](float v) { return v < 0.0f ? 0.0f : v * v; });
        break;
    case EVQ_ACT_TANH:
        evq_each(x, [](float v) { return tanhf(v); });
        break;
    case EVQ_ACT_GELU_ERF:
        evq_each(x, [](float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f)); });
        break;
    case EVQ_ACT_GELU_TANH:
        evq_each(x, [](float v) {
            return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
        });
        break;
    case EVQ_ACT_SILU:
        evq_each(x, [](float v) { return v / (1.0f + expf(-v)); });
        break;
    case EVQ_ACT_SIGMOID:
        evq_each(x, [](float v) { return 1.0f / (1.0f + expf(-v)); });
        break;
    case EVQ_ACT_GELU_QUICK:
        evq_each(x, [](float v) { return v / (1.0f + expf(-1.702f * v)); });
        break;
    default:
        break;
    }
}

__device__ static inline float evq_activate(float x, enum evq_activation activation)
{
    float one[1] = {x};

    evq_activate(one, activation);
    return one[0];
}

#endif
