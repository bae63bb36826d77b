#include "kernels/cuda/tokens.h"

#include <cassert>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/grid.cuh"

__device__ static float value_at(const void *values, enum evq_weight_type type, int64_t at)
{
    switch (type) {
    case EVQ_WEIGHT_F16:
        return __half2float(((const __half *)values)[at]);
    case EVQ_WEIGHT_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)values)[at]);
    default:
        return ((const float *)values)[at];
    }
}

__global__ static void __launch_bounds__(EVQ_THREADS)
    convert_kernel(const void *in, enum evq_weight_type type, bool transposed, int64_t rows,
                   int64_t columns, float *out)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < rows * columns;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t from = transposed ? at % columns * rows + at / columns : at;
        out[at] = value_at(in, type, from);
    }
}

enum evq_status evq_convert_launch(const void *d_in, enum evq_weight_type type, bool transposed,
                                   int32_t rows, int32_t columns, float *d_out, cudaStream_t stream,
                                   struct evq_error *err)
{
    const int64_t count = (int64_t)rows * columns;

    assert(type < EVQ_WEIGHT_TYPE_COUNT);
    if (count == 0) {
        return EVQ_OK;
    }
    convert_kernel<<<evq_grid(count, EVQ_THREADS), EVQ_THREADS, 0, stream>>>(d_in, type, transposed,
                                                                             rows, columns, d_out);
    return evq_cuda_status(cudaGetLastError(), "convert launch", err);
}
