/*
 * One register of floats of the instruction set that this file is compiled for. C can express this
 * only with the compiler's vector types. Only table.c includes the files of this folder, and it is
 * compiled once for each instruction set.
 */
#ifndef EVQ_KERNELS_CPU_ISA_LANES_H
#define EVQ_KERNELS_CPU_ISA_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// The tile of a matrix product that fills the registers, and the number of lanes of one register.
#if defined(__AVX512F__)
#define LANES        16
#define TILE_ROWS    8
#define TILE_VECTORS 2
#elif defined(__AVX2__)
#define LANES        8
#define TILE_ROWS    4
#define TILE_VECTORS 3
#else
#define LANES        4
#define TILE_ROWS    4
#define TILE_VECTORS 2
#endif
#define PANEL (LANES * TILE_VECTORS)

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint32_t uvec __attribute__((vector_size(LANES * sizeof(uint32_t))));

static inline vec vec_load(const float *from)
{
    vec v;
    memcpy(&v, from, sizeof(v));
    return v;
}

static inline void vec_store(float *to, vec v)
{
    memcpy(to, &v, sizeof(v));
}

/* Loads the first `count` lanes; the others become `rest`. */
static inline vec vec_load_some(const float *from, int32_t count, float rest)
{
    vec v = (vec){0} + rest;
    memcpy(&v, from, (size_t)count * sizeof(float));
    return v;
}

static inline void vec_store_some(float *to, vec v, int32_t count)
{
    memcpy(to, &v, (size_t)count * sizeof(float));
}

static inline vec vec_all(float value)
{
    return (vec){0} + value;
}

/* Each lane of mask is all ones or all zeros, as comparisons return it. */
static inline vec vec_select(ivec mask, vec yes, vec no)
{
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* a if a > b, otherwise b. A NaN in a is lost, and one in b is kept. */
static inline vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return vec_select(a > b, a, b);
#endif
}

static inline vec vec_min(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return vec_select(a < b, a, b);
#endif
}

static inline int32_t vec_any(ivec mask)
{
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#else
    int32_t any = 0;
    for (int32_t i = 0; i < LANES; i++) {
        any |= mask[i];
    }
    return any;
#endif
}

static inline float vec_sum(vec v)
{
    float sum = 0.0f;
    for (int32_t i = 0; i < LANES; i++) {
        sum += v[i];
    }
    return sum;
}

static inline float vec_top(vec v)
{
    float top = v[0];
    for (int32_t i = 1; i < LANES; i++) {
        top = v[i] > top ? v[i] : top;
    }
    return top;
}

#endif
