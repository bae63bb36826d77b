#include "kernels/cuda/launchers.h"

#include <cassert>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

/* One thread for V values of a row. first: the row of `places` for the position 0. */
template <typename Table, typename Out, int V>
__global__ static void __launch_bounds__(EVQ_THREADS)
    embed_kernel(struct evq_cuda_lookup lookup, int64_t parts, int32_t n, int32_t first,
                 float scale, Out *out, int64_t out_stride)
{
    const int32_t row_parts = n / V;
    const Table *table = (const Table *)lookup.table.d_data;

    for (int64_t at = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; at < parts;
         at += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = at / row_parts;
        const int64_t c = at % row_parts * V;
        float values[V], shifts[V] = {0}, types[V] = {0};
        evq_load(table + lookup.d_tokens[row] * lookup.table.stride + c, values);
        if (lookup.d_places != nullptr) {
            const int64_t place = (int64_t)lookup.d_positions[row] + first;
            evq_load(lookup.d_places + place * n + c, shifts);
        }
        if (lookup.d_type_table != nullptr) {
            const int64_t type = lookup.d_types != nullptr ? lookup.d_types[row] : 0;
            evq_load(lookup.d_type_table + type * n + c, types);
        }
        for (int i = 0; i < V; i++) {
            values[i] = scale * values[i] + shifts[i] + types[i];
        }
        evq_store(out + row * out_stride + c, values);
    }
}

enum evq_status evq_embed_launch(const struct evq_cuda_lookup *lookup, int32_t rows,
                                 const struct evq_op *op, const struct evq_cuda_rows *out,
                                 cudaStream_t stream, struct evq_error *err)
{
    const bool eights = op->n % 8 == 0 && lookup->table.stride % 8 == 0 && out->stride % 8 == 0;
    const int64_t parts = (int64_t)rows * op->n / (eights ? 8 : 1);

    assert(op->n > 0);
    if (parts == 0) {
        return EVQ_OK;
    }
    evq_typed2(&lookup->table, out, [&](auto from, auto to) {
        typedef decltype(from) Table;
        typedef decltype(to) Out;
        auto *const kernel = eights ? embed_kernel<Table, Out, 8> : embed_kernel<Table, Out, 1>;
        EVQ_LAUNCH(kernel, evq_grid_blocks(parts, EVQ_THREADS), EVQ_THREADS, 0, stream, *lookup,
                   parts, op->n, op->column, op->scale, evq_at<Out>(out, 0), out->stride);
    });
    return evq_cuda_status(cudaGetLastError(), "embed launch", err);
}

/* One thread for a column of a sequence; it sums in double. */
template <typename In, typename Out>
__global__ static void __launch_bounds__(EVQ_THREADS)
    mean_kernel(const In *in, int64_t in_stride, int64_t items, int32_t n, const int32_t *positions,
                const int32_t *lengths, Out *out, int64_t out_stride)
{
    for (int64_t item = (int64_t)blockIdx.x * EVQ_THREADS + threadIdx.x; item < items;
         item += (int64_t)gridDim.x * EVQ_THREADS) {
        const int64_t row = item / n;
        const int64_t c = item % n;
        const int32_t length = lengths[row];
        double sum = 0.0;
        if (positions[row] != 0) {
            continue; // The thread of the sequence's first row does the work.
        }
        for (int32_t r = 0; r < length; r++) {
            sum += (double)evq_get(in + (row + r) * in_stride + c);
        }
        for (int32_t r = 0; r < length; r++) {
            evq_set(out + (row + r) * out_stride + c, (float)(sum / length));
        }
    }
}

enum evq_status evq_mean_launch(const struct evq_cuda_rows *in, int32_t rows, int32_t n,
                                const int32_t *d_positions, const int32_t *d_lengths,
                                const struct evq_cuda_rows *out, cudaStream_t stream,
                                struct evq_error *err)
{
    const int64_t items = (int64_t)rows * n;

    if (items == 0) {
        return EVQ_OK;
    }
    evq_typed2(in, out, [&](auto from, auto to) {
        typedef decltype(from) In;
        typedef decltype(to) Out;
        EVQ_LAUNCH((mean_kernel<In, Out>), evq_grid_blocks(items, EVQ_THREADS), EVQ_THREADS, 0,
                   stream, evq_at<In>(in, 0), in->stride, items, n, d_positions, d_lengths,
                   evq_at<Out>(out, 0), out->stride);
    });
    return evq_cuda_status(cudaGetLastError(), "mean launch", err);
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
