/*
 * Values of rows as the kernels read and write them: fp32, or bf16 with fp32 arithmetic between;
 * one by one, or 8 at a time from addresses that are multiples of 8 values.
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

/* Two values as an operand of a product takes them, the first in the low half. */
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

template <int V> __device__ static inline void evq_load(const float *at, float (&values)[V])
{
    static_assert(V == 1 || V == 8, "values come one by one or 8 at a time");
    if constexpr (V == 1) {
        values[0] = *at;
    } else {
        const float4 low = *reinterpret_cast<const float4 *>(at);
        const float4 high = *reinterpret_cast<const float4 *>(at + 4);
        values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
        values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    }
}

template <int V> __device__ static inline void evq_load(const evq_bf16 *at, float (&values)[V])
{
    static_assert(V == 1 || V == 8, "values come one by one or 8 at a time");
    if constexpr (V == 1) {
        values[0] = evq_get(at);
    } else {
        const uint4 all = *reinterpret_cast<const uint4 *>(at);
        const uint32_t pairs[4] = {all.x, all.y, all.z, all.w};
        for (int p = 0; p < 4; p++) {
            values[2 * p] = evq_of_bits(pairs[p] << 16);
            values[2 * p + 1] = evq_of_bits(pairs[p] & 0xffff0000u);
        }
    }
}

template <int V> __device__ static inline void evq_store(float *at, const float (&values)[V])
{
    if constexpr (V == 1) {
        *at = values[0];
    } else {
        *reinterpret_cast<float4 *>(at) = {values[0], values[1], values[2], values[3]};
        *reinterpret_cast<float4 *>(at + 4) = {values[4], values[5], values[6], values[7]};
    }
}

template <int V> __device__ static inline void evq_store(evq_bf16 *at, const float (&values)[V])
{
    if constexpr (V == 1) {
        evq_set(at, values[0]);
    } else {
        *reinterpret_cast<uint4 *>(at) = {
            evq_pair(values[0], values[1]), evq_pair(values[2], values[3]),
            evq_pair(values[4], values[5]), evq_pair(values[6], values[7])};
    }
}

__device__ static inline float evq_activate(float x, enum evq_activation activation)
{
    switch (activation) {
    case EVQ_ACT_RELU:
        return x < 0.0f ? 0.0f : x; // Written so that a NaN passes.
    case EVQ_ACT_TANH:
        return tanhf(x);
    case EVQ_ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case EVQ_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case EVQ_ACT_SILU:
        return x / (1.0f + expf(-x));
    case EVQ_ACT_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    case EVQ_ACT_GELU_QUICK:
        return x / (1.0f + expf(-1.702f * x));
    default:
        return x;
    }
}

#endif
