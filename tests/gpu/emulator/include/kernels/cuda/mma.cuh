/*
 * In the place of kernels/cuda/mma.cuh: what these instructions do, as the PTX manual defines them,
 * for a warp of the emulator.
 */
#ifndef EVQ_KERNELS_CUDA_MMA_CUH
#define EVQ_KERNELS_CUDA_MMA_CUH

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "tests/gpu/emulator/emulator.h"

static inline void evq_mma_bf16(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulator_mma(sums, a, b0, b1);
}

static inline void evq_ldmatrix(uint32_t (&parts)[4], const void *shared_row)
{
    emulator_ldmatrix(parts, shared_row, false);
}

static inline void evq_ldmatrix_turned(uint32_t (&parts)[4], const void *shared_row)
{
    emulator_ldmatrix(parts, shared_row, true);
}

/* Subnormal operands and results are 0 of the same sign. */
static inline float evq_exp2(float x)
{
    const float power = std::exp2(std::fabs(x) < FLT_MIN ? 0.0f : x);
    return power < FLT_MIN ? 0.0f : power; // A NaN passes.
}

static inline void evq_copy_begin(void *shared, const void *global, bool there)
{
    emulator_copy_begin(shared, global, there);
}

static inline void evq_copy_close(void)
{
    emulator_copy_close();
}

template <int OPEN> static inline void evq_copy_wait(void)
{
    emulator_copy_wait(OPEN);
}

#endif
