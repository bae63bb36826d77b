/*
 * One plan on the devices of an opened backend. Each device has the weights of its part of the plan
 * and runs that part when the device before has done its own, so only one of them works at a time.
 * Every part runs the same kernels on the same shapes as one device does, and gives the same bits.
 */
#include <string.h>

#include "kernels/cuda/state.h"
#include "kernels/plan.h"

enum evq_status evq_cuda_of_device(const struct evq_cuda_state *first,
                                   const struct evq_cuda_state *state, enum evq_status status,
                                   struct evq_error *err)
{
    int number = 0;
    int count = 0;

    for (const struct evq_cuda_state *at = first; at != NULL; at = at->next) {
        count++;
        number = at == state ? count : number;
    }
    if (status != EVQ_OK && count > 1) {
        (void)evq_error_prefix(err, "GPU %d of %d", number, count); // It returns the same status.
    }
    return status;
}

static enum evq_status cut(struct evq_cuda_state *first, const struct evq_plan *plan,
                           struct evq_error *err)
{
    struct evq_cuda_part parts[EVQ_BACKEND_DEVICES_MAX];
    size_t count = 0;

    for (const struct evq_cuda_state *state = first; state != NULL; state = state->next) {
        count++;
    }
    const enum evq_status status = evq_cuda_cut(plan, count, parts, err);
    count = 0;
    for (struct evq_cuda_state *state = first; state != NULL && status == EVQ_OK;
         state = state->next) {
        state->part = parts[count++];
    }
    return status;
}

/* If the plan does not fit, nothing is left allocated, because others may share the devices. */
enum evq_status evq_cuda_prepare(void *opened, const struct evq_plan *plan, struct evq_error *err)
{
    struct evq_cuda_state *first = opened;

    for (struct evq_cuda_state *state = first; state != NULL; state = state->next) {
        state->plan = NULL;
    }
    enum evq_status status = evq_plan_check(plan, err);
    if (status == EVQ_OK) {
        status = evq_cuda_check_supported(plan, err);
    }
    if (status == EVQ_OK) {
        status = cut(first, plan, err);
    }
    for (struct evq_cuda_state *state = first; state != NULL && status == EVQ_OK;
         state = state->next) {
        status = evq_cuda_of_device(first, state, evq_cuda_device_prepare(state, plan, err), err);
    }
    for (struct evq_cuda_state *state = first; state != NULL; state = state->next) {
        if (status == EVQ_E_NOMEM) {
            (void)!evq_cuda_make_room(state, plan, NULL); // The first error is the one to report.
        }
        state->plan = status == EVQ_OK ? plan : NULL;
    }
    return status;
}

static enum evq_status check_weights(const struct evq_cuda_state *first, struct evq_error *err)
{
    for (const struct evq_cuda_state *state = first; state != NULL; state = state->next) {
        for (size_t i = 0; i < state->plan->slot_count; i++) {
            if (state->weights[i].rows_put < state->weights[i].rows) {
                return evq_error_set(err, EVQ_E_BUG, "weight '%s' was never put",
                                     state->plan->slots[i].name);
            }
        }
    }
    return EVQ_OK;
}

/* Enqueues all parts that have operations. *ret_last: the device of the last such part. */
static enum evq_status enqueue_parts(struct evq_cuda_state *first, const struct evq_batch *batch,
                                     size_t result_bytes, struct evq_cuda_state **ret_last,
                                     struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct evq_cuda_state *last = NULL;

    for (struct evq_cuda_state *state = first;
         state != NULL && state->part.first < state->part.end && status == EVQ_OK;
         state = state->next) {
        status = evq_cuda_of_device(first, state,
                                    evq_cuda_enqueue(state, last, batch, result_bytes, err), err);
        // Loading a kernel can run out of memory too.
        state->lacks_memory = state->lacks_memory || status == EVQ_E_NOMEM;
        last = state;
    }
    *ret_last = last;
    return status;
}

/* Waits for the parts in order, and reports progress to the batch's listener. */
static enum evq_status wait_parts(struct evq_cuda_state *first, const struct evq_cuda_state *last,
                                  const struct evq_batch *batch, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (struct evq_cuda_state *state = first; state != last->next && status == EVQ_OK;
         state = state->next) {
        status = evq_cuda_wait_marks(state, batch, err);
        if (status == EVQ_OK) {
            status = evq_cuda_status(cudaStreamSynchronize(state->stream), "run the plan", err);
        }
        status = evq_cuda_of_device(first, state, status, err);
        state->lacks_memory = state->lacks_memory || status == EVQ_E_NOMEM;
    }
    return status;
}

static enum evq_status run_batch(struct evq_cuda_state *first, const struct evq_batch *batch,
                                 struct evq_row_result *results, struct evq_error *err)
{
    const size_t bytes = (size_t)evq_plan_results(first->plan, batch) * sizeof(*results);
    struct evq_cuda_state *last = NULL;

    enum evq_status status = enqueue_parts(first, batch, bytes, &last, err);
    if (status == EVQ_OK) {
        status = wait_parts(first, last, batch, err);
    }
    for (const struct evq_cuda_state *state = first; state != NULL && status != EVQ_OK;
         state = state->next) {
        (void)cudaStreamSynchronize(
            state->stream); // The caller may reuse the batch afterwards. The first error counts.
    }
    if (status == EVQ_OK) {
        memcpy(results, last->h_results, bytes);
    }
    return status;
}

enum evq_status evq_cuda_exec(void *opened, const struct evq_batch *batch,
                              struct evq_row_result *results, struct evq_error *err)
{
    struct evq_cuda_state *first = opened;

    if (first->plan == NULL) {
        return evq_error_set(err, EVQ_E_BUG, "exec before prepare");
    }
    enum evq_status status = evq_plan_batch_check(first->plan, batch, err);
    if (status == EVQ_OK) {
        status = check_weights(first, err);
    }
    if (status == EVQ_OK && batch->rows > 0) {
        status = run_batch(first, batch, results, err);
    }
    if (status == EVQ_OK) {
        first->stats.exec_calls++;
        first->stats.rows += (uint64_t)batch->rows;
        first->stats.flops += evq_plan_flops(first->plan, batch);
    }
    return status;
}
