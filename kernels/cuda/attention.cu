#include "kernels/cuda/launchers.h"

#include <cassert>
#include <cmath>

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/typed.cuh"

enum { PART = EVQ_ATTENTION_SIZE_MAX / EVQ_WARP }; // Values of a head that one lane holds.

/* Columns of a row: where heads of queries and of keys follow one another, and the distances from
 * the first query to the first key, and from a key to its value. */
struct heads_shape {
    int32_t query_step, key_step;
    int64_t to_keys, to_values;
    int32_t size, heads, group, window;
    float scale, cap;
};

/* One warp for each row and head. It passes over the keys once and rescales the softmax when its
 * maximum rises. A sink is a key before all others, with values of 0. */
template <typename In, typename Out>
__global__ static void __launch_bounds__(EVQ_THREADS)
    attention_kernel(const In *in, int64_t in_stride, int32_t rows, const int32_t *positions,
                     struct heads_shape shape, const float *sinks, Out *out, int64_t out_stride)
{
    const int64_t items = (int64_t)rows * shape.heads;
    const int32_t lane = threadIdx.x % EVQ_WARP;
    const int32_t size = shape.size;
    const int32_t window = shape.window;

    for (int64_t item = (int64_t)blockIdx.x * EVQ_WARPS + threadIdx.x / EVQ_WARP; item < items;
         item += (int64_t)gridDim.x * EVQ_WARPS) {
        const int64_t row = item / shape.heads;
        const int32_t head = (int32_t)(item % shape.heads);
        const int64_t first_query = (int64_t)head * shape.query_step;
        const int64_t first_key = shape.to_keys + (int64_t)(head / shape.group) * shape.key_step;
        const int32_t position = positions[row];
        const int32_t seen = window > 0 && window <= position ? window : position + 1;
        float q[PART], sum[PART];
        float top = sinks != nullptr ? sinks[head] : -INFINITY;
        float total = sinks != nullptr ? 1.0f : 0.0f;
        for (int32_t p = 0; p < PART; p++) {
            const int32_t c = lane + p * EVQ_WARP;
            q[p] = c < size ? evq_get(in + row * in_stride + first_query + c) : 0.0f;
            sum[p] = 0.0f;
        }
        for (int64_t key = row - seen + 1; key <= row; key++) {
            const In *k = in + key * in_stride + first_key;
            float dot = 0.0f;
            for (int32_t p = 0; p < PART; p++) {
                const int32_t c = lane + p * EVQ_WARP;
                dot += c < size ? q[p] * evq_get(k + c) : 0.0f;
            }
            const float scaled = evq_warp_sum(dot) * shape.scale;
            const float logit = shape.cap > 0.0f ? tanhf(scaled / shape.cap) * shape.cap : scaled;
            const float next = logit > top ? logit : top; // A NaN appears in weight, and stays.
            const float shrink = next == top ? 1.0f : expf(top - next);
            const float weight = expf(logit - next);
            total = total * shrink + weight;
            for (int32_t p = 0; p < PART; p++) {
                const int32_t c = lane + p * EVQ_WARP;
                sum[p] =
                    sum[p] * shrink + (c < size ? weight * evq_get(k + shape.to_values + c) : 0.0f);
            }
            top = next;
        }
        for (int32_t p = 0; p < PART; p++) {
            const int32_t c = lane + p * EVQ_WARP;
            if (c < size) {
                evq_set(out + row * out_stride + (int64_t)head * size + c, sum[p] / total);
            }
        }
    }
}

enum evq_status evq_attention_launch(const struct evq_cuda_rows *in, int32_t rows,
                                     const int32_t *d_positions, const struct evq_op *op,
                                     const float *d_sinks, const struct evq_cuda_rows *out,
                                     cudaStream_t stream, struct evq_error *err)
{
    const bool mixed = op->step > op->n;
    const int32_t step = mixed ? op->step : op->n;
    const struct heads_shape shape = {step,
                                      step,
                                      mixed ? op->n : (int64_t)op->heads * op->n,
                                      mixed ? op->n : (int64_t)op->kv_heads * op->n,
                                      op->n,
                                      op->heads,
                                      op->heads / op->kv_heads,
                                      op->window,
                                      op->scale,
                                      op->cap};

    assert(op->n <= EVQ_ATTENTION_SIZE_MAX);
    if (rows == 0) {
        return EVQ_OK;
    }
    evq_typed2(in, out, [&](auto from, auto to) {
        typedef decltype(from) In;
        typedef decltype(to) Out;
        EVQ_LAUNCH((attention_kernel<In, Out>),
                   evq_grid_blocks((int64_t)rows * op->heads, EVQ_WARPS), EVQ_THREADS, 0, stream,
                   evq_at<In>(in, 0), in->stride, rows, d_positions, shape, d_sinks,
                   evq_at<Out>(out, 0), out->stride);
    });
    return evq_cuda_status(cudaGetLastError(), "attention launch", err);
}
