/*
 * Weights from their blobs: copied to the device as they came, converted there.
 */
#include "kernels/cuda/state.h"
#include "kernels/plan.h"

enum evq_status evq_cuda_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                             struct evq_error *err)
{
    struct evq_cuda_state *state = opened;

    static const size_t bytes_of[] = {4, 2, 2};
    const bool known = state->plan != NULL && slot >= 0 && (size_t)slot < state->weight_count;

    enum evq_status status = evq_plan_part_check(state->plan, slot, blob,
                                                 known ? state->weights[slot].rows_put : 0, err);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_cuda_weight *weight = &state->weights[slot];
    const size_t bytes = (size_t)blob->rows * (size_t)weight->columns * bytes_of[blob->type];
    status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &state->staging, bytes, "a part of a weight", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_copy_in(state, state->staging.d_data, blob->values, bytes,
                                  "copy a weight", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_weight_convert(state, weight, state->staging.d_data, blob, err);
    }
    weight->rows_put = status == EVQ_OK ? blob->first_row + blob->rows : 0;
    return status;
}

enum evq_status evq_cuda_settle(void *opened, struct evq_error *err)
{
    const struct evq_cuda_state *state = opened;

    return evq_cuda_status(cudaStreamSynchronize(state->stream), "copy a weight", err);
}
