#include "kernels/cuda/launchers.h"

#include <cassert>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

/* One thread for V values of a row. */
template <typename Table, typename Out, int V>
__global__ static void __launch_bounds__(EVQ_THREADS)
    embed_kernel(const int32_t *tokens, const int32_t *positions, int64_t parts, int32_t n,
                 const Table *table, int64_t table_stride, const float *places, float scale,
                 Out *out, int64_t out_stride)
{
    const int32_t row_parts = n / V;

    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < parts;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = at / row_parts;
        const int64_t c = at % row_parts * V;
        float values[V], shifts[V] = {0};
        evq_load(table + tokens[row] * table_stride + c, values);
        if (places != nullptr) {
            evq_load(places + (int64_t)positions[row] * n + c, shifts);
        }
        for (int i = 0; i < V; i++) {
            values[i] = scale * values[i] + shifts[i];
        }
        evq_store(out + row * out_stride + c, values);
    }
}

enum evq_status evq_embed_launch(const int32_t *d_tokens, const int32_t *d_positions, int32_t rows,
                                 const struct evq_op *op, const struct evq_cuda_rows *table,
                                 const float *d_places, const struct evq_cuda_rows *out,
                                 cudaStream_t stream, struct evq_error *err)
{
    const bool eights = op->n % 8 == 0 && table->stride % 8 == 0 && out->stride % 8 == 0;
    const int64_t parts = (int64_t)rows * op->n / (eights ? 8 : 1);

    assert(op->n > 0);
    if (parts == 0) {
        return EVQ_OK;
    }
    evq_typed2(table, out, [&](auto from, auto to) {
        typedef decltype(from) Table;
        typedef decltype(to) Out;
        if (eights) {
            EVQ_LAUNCH((embed_kernel<Table, Out, 8>), evq_grid_blocks(parts, EVQ_THREADS),
                       EVQ_THREADS, 0, stream, d_tokens, d_positions, parts, op->n,
                       evq_at<Table>(table, 0), table->stride, d_places, op->scale,
                       evq_at<Out>(out, 0), out->stride);
        } else {
            EVQ_LAUNCH((embed_kernel<Table, Out, 1>), evq_grid_blocks(parts, EVQ_THREADS),
                       EVQ_THREADS, 0, stream, d_tokens, d_positions, parts, op->n,
                       evq_at<Table>(table, 0), table->stride, d_places, op->scale,
                       evq_at<Out>(out, 0), out->stride);
        }
    });
    return evq_cuda_status(cudaGetLastError(), "embed launch", err);
}

template <typename In, typename Out, int V>
__global__ static void __launch_bounds__(EVQ_THREADS)
    gather_kernel(const In *in, int64_t in_stride, const int32_t *which, int64_t parts, int32_t n,
                  Out *out, int64_t out_stride)
{
    const int32_t row_parts = n / V;

    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < parts;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = at / row_parts;
        const int64_t from = which != nullptr ? which[row] : row;
        const int64_t c = at % row_parts * V;
        float values[V];
        evq_load(in + from * in_stride + c, values);
        evq_store(out + row * out_stride + c, values);
    }
}

enum evq_status evq_gather_launch(const struct evq_cuda_rows *in, const int32_t *d_which,
                                  int32_t rows, int32_t n, const struct evq_cuda_rows *out,
                                  cudaStream_t stream, struct evq_error *err)
{
    const bool eights = n % 8 == 0 && in->stride % 8 == 0 && out->stride % 8 == 0;
    const int64_t parts = (int64_t)rows * n / (eights ? 8 : 1);

    assert(n > 0);
    if (parts == 0) {
        return EVQ_OK;
    }
    evq_typed2(in, out, [&](auto from, auto to) {
        typedef decltype(from) In;
        typedef decltype(to) Out;
        if (eights) {
            EVQ_LAUNCH((gather_kernel<In, Out, 8>), evq_grid_blocks(parts, EVQ_THREADS),
                       EVQ_THREADS, 0, stream, evq_at<In>(in, 0), in->stride, d_which, parts, n,
                       evq_at<Out>(out, 0), out->stride);
        } else {
            EVQ_LAUNCH((gather_kernel<In, Out, 1>), evq_grid_blocks(parts, EVQ_THREADS),
                       EVQ_THREADS, 0, stream, evq_at<In>(in, 0), in->stride, d_which, parts, n,
                       evq_at<Out>(out, 0), out->stride);
        }
    });
    return evq_cuda_status(cudaGetLastError(), "gather launch", err);
}
