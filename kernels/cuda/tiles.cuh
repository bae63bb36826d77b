/* What the two attention kernels share: which keys the queries of a tile see. */
#ifndef EVQ_KERNELS_CUDA_TILES_CUH
#define EVQ_KERNELS_CUDA_TILES_CUH

#include "kernels/cuda/launchers.h"

/* The first key after all keys that the queries of a tile see. both: they see keys in both
 * directions. */
__device__ static inline int32_t evq_attention_end(const struct evq_attention_tile &at, bool both,
                                                   int32_t window)
{
    const int32_t end = at.first + at.count;

    if (!both) {
        return end;
    }
    return window > 0 && window < at.length - end + 1 ? end + window - 1 : at.length;
}

#endif
