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

static enum evq_status device_put(struct evq_cuda_state *state, int32_t slot,
                                  const struct evq_weight_blob *blob, struct evq_error *err)
{
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

static bool has_slot(const struct evq_cuda_state *state, int32_t slot)
{
    return state->plan != NULL && slot >= 0 && (size_t)slot < state->weight_count &&
           state->weights[slot].rows > 0;
}

/* A slot may belong to several parts, as tied embeddings belong to the first and the last. */
enum evq_status evq_cuda_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                             struct evq_error *err)
{
    struct evq_cuda_state *first = opened;
    enum evq_status status = EVQ_OK;
    uint64_t receivers = 0;
    int number = 0;

    for (struct evq_cuda_state *state = first; state != NULL && status == EVQ_OK;
         state = state->next, number++) {
        if (has_slot(state, slot)) {
            status = evq_cuda_of_device(first, state, device_put(state, slot, blob, err), err);
            receivers |= (uint64_t)1 << number;
        }
    }
    if (receivers == 0) { // There is no such slot, and this says so.
        return device_put(first, slot, blob, err);
    }
    if (status == EVQ_OK) {
        first->receivers[first->calls++ % EVQ_CUDA_STAGES] = receivers;
    }
    return status;
}

static enum evq_status device_settle(const struct evq_cuda_state *state, struct evq_error *err)
{
    // This does not use an event, because a failed put() may have left a copy after the last event.
    enum evq_status status =
        evq_cuda_status(cudaStreamSynchronize(state->copies), "copy a weight", err);
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaStreamSynchronize(state->stream), "convert a weight", err);
    }
    return status;
}

enum evq_status evq_cuda_settle(void *opened, struct evq_error *err)
{
    const struct evq_cuda_state *first = opened;
    enum evq_status status = EVQ_OK;

    for (const struct evq_cuda_state *state = first; state != NULL && status == EVQ_OK;
         state = state->next) {
        status = evq_cuda_of_device(first, state, device_settle(state, err), err);
    }
    return status;
}

/* Copies end in order. If a later put() has recorded an event again, waiting for that is enough.
 * most is below EVQ_CUDA_STAGES. */
static enum evq_status device_catch_up(const struct evq_cuda_state *state, uint32_t most,
                                       struct evq_error *err)
{
    if (most >= state->puts) {
        return EVQ_OK;
    }
    const uint64_t last = state->puts - most - 1;
    return evq_cuda_status(cudaEventSynchronize(state->stages[last % EVQ_CUDA_STAGES].copied),
                           "copy a weight", err);
}

enum evq_status evq_cuda_catch_up(void *opened, uint32_t most, uint32_t *ret_reading,
                                  struct evq_error *err)
{
    const struct evq_cuda_state *first = opened;
    const uint32_t behind = most < EVQ_CUDA_STAGES ? most : EVQ_CUDA_STAGES - 1;
    enum evq_status status = EVQ_OK;
    int number = 0;

    *ret_reading = behind < first->calls ? behind : (uint32_t)first->calls;
    for (const struct evq_cuda_state *state = first; state != NULL && status == EVQ_OK;
         state = state->next, number++) {
        uint32_t own = 0; // How many of the latest calls this device got.
        for (uint32_t i = 0; i < *ret_reading; i++) {
            own += first->receivers[(first->calls - 1 - i) % EVQ_CUDA_STAGES] >> number & 1;
        }
        status = evq_cuda_of_device(first, state, device_catch_up(state, own, err), err);
    }
    return status;
}
