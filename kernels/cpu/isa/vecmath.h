/*
 * Exponential, tanh, erf and the activations on registers, by minimax polynomials that were fitted
 * for this file. Errors, tested against double: exp, 1 / (1 + exp(-x)) and tanh are within 3 units
 * in the last place, or zero if the result is denormal; the GELUs and SiLU are within 2e-7 of
 * max(1, |x|). NaN in, NaN out.
 */
#ifndef EVQ_KERNELS_CPU_ISA_VECMATH_H
#define EVQ_KERNELS_CPU_ISA_VECMATH_H

#include "kernels/backend.h"
#include "kernels/cpu/isa/lanes.h"

/* x * 2^n for integers n from -150 to 129. It uses two factors, so that the smallest results are
 * denormal and the largest infinite. */
static inline vec vec_scale2(vec x, vec n)
{
#if defined(__AVX512F__)
    return (vec)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
    const ivec whole = __builtin_convertvector(n, ivec);
    const ivec half = whole >> 1;
    const vec low = (vec)((uvec)(half + 127) << 23);
    const vec high = (vec)((uvec)(whole - half + 127) << 23);
    return (x * low) * high;
#endif
}

/* e^x = 2^n e^r with |r| <= ln(2) / 2. */
static inline vec vec_exp(vec x)
{
    const vec shift = vec_all(0x1.8p23f); // Adding it rounds to an integer.

    x = vec_min(vec_all(89.0f), vec_max(vec_all(-104.0f), x));
    const vec n = (x * 0x1.715476p+0f + shift) - shift;
    const vec r = (x - n * 0x1.62e400p-1f) - n * 0x1.7f7d1cp-20f;
    vec p = r * 0.00138144639f + 0.008368780382f;
    p = p * r + 0.04166839426f;
    p = p * r + 0.1666652011f;
    p = p * r + 0.4999999341f;
    return vec_scale2((p * r) * r + r + 1.0f, n);
}

/* x / (1 + e^-t). */
static inline vec vec_times_sigmoid(vec x, vec t)
{
    return x / (1.0f + vec_exp(-t));
}

static inline vec vec_tanh(vec x)
{
    const vec size = vec_select(x < 0.0f, -x, x);
    const vec u = x * x;
    vec p = u * 0.01631544381f - 0.05258932092f;
    p = p * u + 0.1331887696f;
    p = p * u - 0.3333279503f;
    p = p * u + 0.9999999676f;
    const vec far = 1.0f - 2.0f / (vec_exp(size + size) + 1.0f);
    return vec_select(size > 0.55f, vec_select(x < 0.0f, -far, far), p * x);
}

/* The normal distribution function, (1 + erf(x / sqrt(2))) / 2, computed by erfc if the sum would
 * cancel. */
static inline vec vec_normal(vec x)
{
    const vec z = vec_select(x < 0.0f, -x, x) * 0.70710678118654752f;
    const vec u = z * z;
    vec p = u * -0.0006965941497f + 0.005140183901f;
    p = p * u - 0.02684533022f;
    p = p * u + 0.1128355569f;
    p = p * u - 0.376126291f;
    p = (p * u + 1.128379166f) * z;
    const vec near = vec_select(x < 0.0f, -p, p) * 0.5f + 0.5f;

    const vec t = 1.0f / (z * 0.4f + 1.0f);
    vec q = t * 0.05458823335f - 0.2003761415f;
    q = q * t + 0.1978543482f;
    q = q * t - 0.03063491679f;
    q = q * t + 0.1538809308f;
    q = q * t + 0.1649676968f;
    q = q * t + 0.2084106391f;
    q = q * t + 0.2256248829f;
    q = q * t + 0.2256771739f;
    const vec tail = (q * t) * (vec_exp(-u) * 0.5f);
    return vec_select(z > 0.69f, vec_select(x < 0.0f, tail, 1.0f - tail), near);
}

static inline vec vec_activate(vec x, enum evq_activation activation)
{
    switch (activation) {
    case EVQ_ACT_RELU:
        return vec_select(x < 0.0f, (vec){0}, x); // Written so that a NaN is kept.
    case EVQ_ACT_RELU2:
        x = vec_select(x < 0.0f, (vec){0}, x);
        return x * x;
    case EVQ_ACT_TANH:
        return vec_tanh(x);
    case EVQ_ACT_GELU_ERF:
        return x * vec_normal(x);
    case EVQ_ACT_GELU_TANH: // (1 + tanh(u)) / 2 is the sigmoid of 2 u.
        return vec_times_sigmoid(x, x * (1.5957691216057308f + 0.071354816272f * (x * x)));
    case EVQ_ACT_SILU:
        return vec_times_sigmoid(x, x);
    case EVQ_ACT_SIGMOID:
        return vec_times_sigmoid(vec_all(1.0f), x);
    case EVQ_ACT_GELU_QUICK:
        return vec_times_sigmoid(x, 1.702f * x);
    case EVQ_ACT_NONE:
    case EVQ_ACT_COUNT:
        break;
    }
    return x;
}

#endif
