#include "kernels/cuda/launchers.h"

#include <cassert>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

/* One thread for V values of a row. */
template <typename In, typename Out, int V>
__global__ static void __launch_bounds__(EVQ_THREADS)
    gate_kernel(const In *in, int64_t in_stride, int64_t parts, int32_t n,
                enum evq_activation activation, Out *out, int64_t out_stride)
{
    const int32_t row_parts = n / V;

    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < parts;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = at / row_parts;
        const int64_t c = at % row_parts * V;
        float gates[V], values[V];
        evq_load(in + row * in_stride + c, gates);
        evq_load(in + row * in_stride + n + c, values);
        evq_activate(gates, activation);
        for (int i = 0; i < V; i++) {
            values[i] *= gates[i];
        }
        evq_store(out + row * out_stride + c, values);
    }
}

enum evq_status evq_gate_launch(const struct evq_cuda_rows *in, int32_t rows, int32_t n,
                                enum evq_activation activation, const struct evq_cuda_rows *out,
                                cudaStream_t stream, struct evq_error *err)
{
    const bool eights = n % 8 == 0 && in->stride % 8 == 0 && out->stride % 8 == 0;
    const int64_t parts = (int64_t)rows * n / (eights ? 8 : 1);

    assert(n > 0);
    if (parts == 0) {
        return EVQ_OK; // A grid of zero blocks is itself a launch error.
    }
    evq_typed2(in, out, [&](auto from, auto to) {
        typedef decltype(from) In;
        typedef decltype(to) Out;
        if (eights) {
            EVQ_LAUNCH((gate_kernel<In, Out, 8>), evq_grid_blocks(parts, EVQ_THREADS), EVQ_THREADS,
                       0, stream, evq_at<In>(in, 0), in->stride, parts, n, activation,
                       evq_at<Out>(out, 0), out->stride);
        } else {
            EVQ_LAUNCH((gate_kernel<In, Out, 1>), evq_grid_blocks(parts, EVQ_THREADS), EVQ_THREADS,
                       0, stream, evq_at<In>(in, 0), in->stride, parts, n, activation,
                       evq_at<Out>(out, 0), out->stride);
        }
    });
    return evq_cuda_status(cudaGetLastError(), "gate launch", err);
}

template <typename In>
__global__ static void __launch_bounds__(EVQ_THREADS)
    add_kernel(const In *in, int64_t in_stride, int64_t count, int32_t n, float scale,
               const float *residual, int64_t residual_stride, float *out, int64_t out_stride)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = at / n;
        const int64_t c = at % n;
        out[row * out_stride + c] =
            scale * evq_get(in + row * in_stride + c) + residual[row * residual_stride + c];
    }
}

enum evq_status evq_add_launch(const struct evq_cuda_rows *in, int32_t rows, int32_t n, float scale,
                               const struct evq_cuda_rows *residual,
                               const struct evq_cuda_rows *out, cudaStream_t stream,
                               struct evq_error *err)
{
    const int64_t count = (int64_t)rows * n;

    assert(n > 0);
    assert(!residual->bf16 && !out->bf16);
    if (count == 0) {
        return EVQ_OK;
    }
    evq_typed(in, [&](auto type) {
        typedef decltype(type) In;
        EVQ_LAUNCH(add_kernel<In>, evq_grid_blocks(count, EVQ_THREADS), EVQ_THREADS, 0, stream,
                   evq_at<In>(in, 0), in->stride, count, n, scale, evq_at<float>(residual, 0),
                   residual->stride, evq_at<float>(out, 0), out->stride);
    });
    return evq_cuda_status(cudaGetLastError(), "add launch", err);
}

__global__ static void __launch_bounds__(EVQ_THREADS)
    cap_kernel(float *values, int64_t stride, int64_t count, int32_t n, float scale, float cap)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        float *value = values + at / n * stride + at % n;
        const float x = *value * scale;
        *value = cap > 0.0f ? tanhf(x / cap) * cap : x;
    }
}

enum evq_status evq_cap_launch(const struct evq_cuda_rows *values, int32_t rows, int32_t n,
                               float scale, float cap, cudaStream_t stream, struct evq_error *err)
{
    const int64_t count = (int64_t)rows * n;

    assert(n > 0);
    assert(!values->bf16);
    if (count == 0) {
        return EVQ_OK;
    }
    EVQ_LAUNCH(cap_kernel, evq_grid_blocks(count, EVQ_THREADS), EVQ_THREADS, 0, stream,
               evq_at<float>(values, 0), values->stride, count, n, scale, cap);
    return evq_cuda_status(cudaGetLastError(), "cap launch", err);
}

template <typename T, int V>
__global__ static void __launch_bounds__(EVQ_THREADS)
    activate_kernel(T *values, int64_t stride, int64_t parts, int32_t n,
                    enum evq_activation activation)
{
    const int32_t row_parts = n / V;

    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < parts;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        T *to = values + at / row_parts * stride + at % row_parts * V;
        float x[V];
        evq_load(to, x);
        evq_activate(x, activation);
        evq_store(to, x);
    }
}

enum evq_status evq_activate_launch(const struct evq_cuda_rows *values, int32_t rows, int32_t n,
                                    enum evq_activation activation, cudaStream_t stream,
                                    struct evq_error *err)
{
    const bool eights = n % 8 == 0 && values->stride % 8 == 0;
    const int64_t parts = (int64_t)rows * n / (eights ? 8 : 1);

    assert(n > 0);
    if (parts == 0 || activation == EVQ_ACT_NONE) {
        return EVQ_OK;
    }
    evq_typed(values, [&](auto type) {
        typedef decltype(type) T;
        if (eights) {
            EVQ_LAUNCH((activate_kernel<T, 8>), evq_grid_blocks(parts, EVQ_THREADS), EVQ_THREADS, 0,
                       stream, evq_at<T>(values, 0), values->stride, parts, n, activation);
        } else {
            EVQ_LAUNCH((activate_kernel<T, 1>), evq_grid_blocks(parts, EVQ_THREADS), EVQ_THREADS, 0,
                       stream, evq_at<T>(values, 0), values->stride, parts, n, activation);
        }
    });
    return evq_cuda_status(cudaGetLastError(), "activate launch", err);
}

template <typename Out>
__global__ static void __launch_bounds__(EVQ_THREADS)
    epilogue_kernel(const float *in, int64_t count, int32_t n, const float *bias,
                    enum evq_activation activation, const float *residual, int64_t residual_stride,
                    Out *out, int64_t out_stride)
{
    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = at / n;
        const int64_t c = at % n;
        const float x = evq_activate(in[at] + (bias != nullptr ? bias[c] : 0.0f), activation);
        // Without a residual, nothing is added, so that -0 stays -0.
        evq_set(out + row * out_stride + c,
                residual != nullptr ? x + residual[row * residual_stride + c] : x);
    }
}

enum evq_status evq_epilogue_launch(const float *d_in, int32_t rows, int32_t n, const float *d_bias,
                                    enum evq_activation activation,
                                    const struct evq_cuda_rows *residual,
                                    const struct evq_cuda_rows *out, cudaStream_t stream,
                                    struct evq_error *err)
{
    const int64_t count = (int64_t)rows * n;
    const float *d_residual = residual != nullptr ? (const float *)residual->d_data : nullptr;
    const int64_t residual_stride = residual != nullptr ? residual->stride : 0;

    assert(n > 0);
    assert(residual == nullptr || !residual->bf16);
    if (count == 0) {
        return EVQ_OK;
    }
    evq_typed(out, [&](auto type) {
        typedef decltype(type) Out;
        EVQ_LAUNCH(epilogue_kernel<Out>, evq_grid_blocks(count, EVQ_THREADS), EVQ_THREADS, 0,
                   stream, d_in, count, n, d_bias, activation, d_residual, residual_stride,
                   evq_at<Out>(out, 0), out->stride);
    });
    return evq_cuda_status(cudaGetLastError(), "epilogue launch", err);
}
