/* bf16 as the kernels use it: rounded to the nearest, ties to even, a NaN stays one. */
#ifndef EVQ_EMULATOR_CUDA_BF16_H
#define EVQ_EMULATOR_CUDA_BF16_H

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};

struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 value)
{
    const uint32_t bits = (uint32_t)value.bits << 16;
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
}

static inline __nv_bfloat16 __float2bfloat16_rn(float value)
{
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return {0x7fff};
    }
    return {(uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif
