/*
 * Stores weights from their blobs. A blob is copied to a stage on the device on a stream of its
 * own, and the main stream converts it from there into its place. So the next copy runs while the
 * previous blob is converted. Events tell the host which blobs are no longer read.
 */
#include "kernels/cuda/state.h"
#include "kernels/plan.h"

enum evq_status evq_cuda_copies_open(struct evq_cuda_state *state, struct evq_error *err)
{
    enum evq_status status = evq_cuda_status(
        cudaStreamCreateWithFlags(&state->copies, cudaStreamNonBlocking), "make a stream", err);

    for (int i = 0; i < EVQ_CUDA_STAGES && status == EVQ_OK; i++) {
        struct evq_cuda_stage *stage = &state->stages[i];
        status = evq_cuda_status(cudaEventCreateWithFlags(&stage->copied, cudaEventDisableTiming),
                                 "make an event", err);
        if (status == EVQ_OK) {
            status =
                evq_cuda_status(cudaEventCreateWithFlags(&stage->converted, cudaEventDisableTiming),
                                "make an event", err);
        }
    }
    return status;
}

void evq_cuda_copies_close(struct evq_cuda_state *state)
{
    // None of these errors can be reported, and all of them occur if the device has failed.
    if (state->copies != NULL) {
        (void)cudaStreamSynchronize(state->copies);
    }
    for (int i = 0; i < EVQ_CUDA_STAGES; i++) {
        struct evq_cuda_stage *stage = &state->stages[i];
        if (stage->copied != NULL) {
            (void)cudaEventDestroy(stage->copied);
        }
        if (stage->converted != NULL) {
            (void)cudaEventDestroy(stage->converted);
        }
        evq_cuda_block_free(state, &stage->block);
    }
    if (state->copies != NULL) {
        (void)cudaStreamDestroy(state->copies);
    }
}

/* All stages have the same size, because the blobs of the next checkpoint may use them in another
 * order. Freeing a stage waits for its users. */
static enum evq_status stages_grow(struct evq_cuda_state *state, size_t bytes,
                                   struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (int i = 0; i < EVQ_CUDA_STAGES && status == EVQ_OK; i++) {
        status =
            evq_cuda_block_grow(state, &state->stages[i].block, bytes, "a part of a weight", err);
    }
    return status;
}

/* Copies host memory into the stage, after its previous content was converted. The main stream
 * continues when the copy has arrived. */
static enum evq_status stage_fill(struct evq_cuda_state *state, struct evq_cuda_stage *stage,
                                  const void *values, size_t bytes, struct evq_error *err)
{
    static const char what[] = "copy a weight";
    enum evq_status status = EVQ_OK;

    if (state->puts >= EVQ_CUDA_STAGES) {
        status =
            evq_cuda_status(cudaStreamWaitEvent(state->copies, stage->converted, 0), what, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaMemcpyAsync(stage->block.d_data, values, bytes,
                                                 cudaMemcpyHostToDevice, state->copies),
                                 what, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaEventRecord(stage->copied, state->copies), what, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaStreamWaitEvent(state->stream, stage->copied, 0), what, err);
    }
    return status;
}

enum evq_status evq_cuda_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                             struct evq_error *err)
{
    struct evq_cuda_state *state = opened;

    static const size_t bytes_of[] = {4, 2, 2};
    const bool known = state->plan != NULL && slot >= 0 && (size_t)slot < state->weight_count;

    enum evq_status status = evq_plan_blob_check(state->plan, slot, blob,
                                                 known ? state->weights[slot].rows_put : 0, err);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_cuda_weight *weight = &state->weights[slot];
    struct evq_cuda_stage *stage = &state->stages[state->puts % EVQ_CUDA_STAGES];
    const size_t bytes = (size_t)blob->rows * (size_t)weight->columns * bytes_of[blob->type];
    status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status = stages_grow(state, bytes, err);
    }
    if (status == EVQ_OK) {
        status = stage_fill(state, stage, blob->values, bytes, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_weight_convert(state, weight, stage->block.d_data, blob, err);
    }
    if (status == EVQ_OK) {
        status =
            evq_cuda_status(cudaEventRecord(stage->converted, state->stream), "copy a weight", err);
    }
    // A kernel may also have lacked memory.
    state->lacks_memory = state->lacks_memory || status == EVQ_E_NOMEM;
    state->puts += status == EVQ_OK;
    weight->rows_put = status == EVQ_OK ? blob->first_row + blob->rows : 0;
    return status;
}

enum evq_status evq_cuda_settle(void *opened, struct evq_error *err)
{
    const struct evq_cuda_state *state = opened;

    // This does not use an event, because a failed put() may have left a copy after the last event.
    enum evq_status status =
        evq_cuda_status(cudaStreamSynchronize(state->copies), "copy a weight", err);
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaStreamSynchronize(state->stream), "convert a weight", err);
    }
    return status;
}

/* Copies end in order. If a later put() has recorded an event again, waiting for that is enough. */
enum evq_status evq_cuda_catch_up(void *opened, uint32_t most, uint32_t *ret_reading,
                                  struct evq_error *err)
{
    const struct evq_cuda_state *state = opened;
    const uint64_t behind = most < EVQ_CUDA_STAGES ? most : EVQ_CUDA_STAGES - 1;

    *ret_reading = (uint32_t)(behind < state->puts ? behind : state->puts);
    if (behind >= state->puts) {
        return EVQ_OK;
    }
    const uint64_t last = state->puts - behind - 1;
    return evq_cuda_status(cudaEventSynchronize(state->stages[last % EVQ_CUDA_STAGES].copied),
                           "copy a weight", err);
}
