/* Halves as the kernels use them: read only. */
#ifndef EVQ_EMULATOR_CUDA_FP16_H
#define EVQ_EMULATOR_CUDA_FP16_H

#include <cmath>
#include <cstdint>

struct __half {
    uint16_t bits;
};

static inline float __half2float(__half value)
{
    const int exponent = value.bits >> 10 & 31;
    const int fraction = value.bits & 1023;
    const float sign = (value.bits & 0x8000) != 0 ? -1.0f : 1.0f;

    if (exponent == 31) {
        return fraction != 0 ? NAN : sign * INFINITY;
    }
    return exponent == 0 ? sign * std::ldexp((float)fraction, -24)
                         : sign * std::ldexp((float)(1024 + fraction), exponent - 25);
}

#endif
