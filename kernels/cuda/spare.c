/*
 * A second set of weights, in a state of its own with streams of its own. Another thread fills it
 * while the first state computes, and then both are exchanged.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/state.h"
#include "kernels/plan.h"

/* This fraction of the device's memory stays free, for batches that grow and for others who share
 * the device. */
#define FREE_SHARES 16

static enum evq_status check_room(const struct evq_cuda_state *state, const struct evq_plan *plan,
                                  struct evq_error *err)
{
    size_t missing = 0;
    size_t unused = 0;
    size_t total = 0;

    enum evq_status status = evq_cuda_weights_missing(state, plan, &missing, err);
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaMemGetInfo(&unused, &total), "ask for free memory", err);
    }
    if (status == EVQ_OK && missing > 0 && missing + total / FREE_SHARES > unused) {
        status = evq_error_set(err, EVQ_E_NOMEM,
                               "%zu bytes of weights beside the present ones: %zu are free",
                               missing, unused);
    }
    return status;
}

enum evq_status evq_cuda_reserve(void *opened, const struct evq_plan *plan, struct evq_error *err)
{
    struct evq_cuda_state *state = opened;

    state->plan = NULL;
    enum evq_status status = evq_plan_check(plan, err);
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    }
    if (status == EVQ_OK) {
        status = check_room(state, plan, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_weights_prepare(state, plan, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaStreamSynchronize(state->stream), "prepare", err);
    }
    if (status == EVQ_OK) {
        state->plan = plan;
        state->weights_alone = true;
    }
    return status;
}

static size_t weight_bytes(const struct evq_cuda_state *state)
{
    size_t bytes = 0;

    for (size_t i = 0; i < state->weight_count; i++) {
        bytes += state->weights[i].block.bytes + state->weights[i].rounded.bytes;
    }
    return bytes;
}

enum evq_status evq_cuda_exchange(void *opened, void *other, struct evq_error *err)
{
    struct evq_cuda_state *a = opened;
    struct evq_cuda_state *b = other;

    if (a->device != b->device) {
        return evq_error_set(err, EVQ_E_BUG, "weights of device %d for device %d", b->device,
                             a->device);
    }
    enum evq_status status = evq_cuda_settle(a, err);
    if (status == EVQ_OK) {
        status = evq_cuda_settle(b, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const size_t a_bytes = weight_bytes(a);
    const size_t b_bytes = weight_bytes(b);
    struct evq_cuda_weight *const weights = a->weights;
    const size_t count = a->weight_count;
    a->weights = b->weights;
    a->weight_count = b->weight_count;
    b->weights = weights;
    b->weight_count = count;
    a->memory = a->memory - a_bytes + b_bytes;
    b->memory = b->memory - b_bytes + a_bytes;
    a->plan = b->plan = NULL;
    return EVQ_OK;
}
