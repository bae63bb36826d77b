/* Chooses the kernel that was compiled for the types that rows have at run time. */
#ifndef EVQ_KERNELS_CUDA_TYPED_CUH
#define EVQ_KERNELS_CUDA_TYPED_CUH

#include "kernels/cuda/rows.h"
#include "kernels/cuda/values.cuh"

template <typename T> static inline T *evq_at(const struct evq_cuda_rows *rows, int64_t column)
{
    return (T *)rows->d_data + column;
}

/* Calls use() with a value of the type. */
template <typename Use> static inline void evq_typed(const struct evq_cuda_rows *rows, Use use)
{
    if (rows->bf16) {
        use(evq_bf16());
    } else {
        use(float());
    }
}

template <typename Use>
static inline void evq_typed2(const struct evq_cuda_rows *in, const struct evq_cuda_rows *out,
                              Use use)
{
    evq_typed(in, [&](auto from) { evq_typed(out, [&](auto to) { use(from, to); }); });
}

#endif
