/* What the kernels share: how items are distributed over threads, and sums across a warp. */
#ifndef EVQ_KERNELS_CUDA_GRID_CUH
#define EVQ_KERNELS_CUDA_GRID_CUH

#include <cstdint>

#include "kernels/cuda/launch.cuh"

enum { EVQ_THREADS = 256, EVQ_WARP = 32, EVQ_WARPS = EVQ_THREADS / EVQ_WARP };

#if !defined(EVQ_BLOCKS_MAX) // Tests use few blocks, so that kernels must stride.
#define EVQ_BLOCKS_MAX 65535
#endif

/* Number of blocks, at least one. Kernels stride over items beyond the grid. */
static inline unsigned int evq_grid_blocks(int64_t items, int64_t per_block)
{
    const int64_t blocks = (items - 1) / per_block + 1;
    return (unsigned int)(blocks < EVQ_BLOCKS_MAX ? blocks : EVQ_BLOCKS_MAX);
}

/* Sums over LANES neighbours, a power of two. All lanes of the warp must call it together. */
template <int LANES = EVQ_WARP> __device__ static inline float evq_warp_sum(float value)
{
    for (int offset = LANES / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    return value;
}

#endif
