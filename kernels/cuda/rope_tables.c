/*
 * Tables of cosines and sines for ROPE, one for all operations that are alike.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/state.h"

static bool alike(const struct evq_op *a, const struct evq_op *b)
{
    return a->n == b->n && memcmp(&a->scale, &b->scale, sizeof(a->scale)) == 0 &&
           (a->frequencies == b->frequencies ||
            memcmp(a->frequencies, b->frequencies, (size_t)(a->n / 2) * sizeof(float)) == 0);
}

static struct evq_cuda_rope_table *find(const struct evq_cuda_state *state, const struct evq_op *op)
{
    for (size_t i = 0; i < state->rope_table_count; i++) {
        if (alike(state->turns[i].op, op)) {
            return &state->turns[i];
        }
    }
    return NULL;
}

static enum evq_status add(struct evq_cuda_state *state, const struct evq_plan *plan,
                           const struct evq_op *op, struct evq_error *err)
{
    const size_t bytes = (size_t)(op->n / 2) * sizeof(float);

    if (state->rope_table_count == state->rope_table_room) {
        struct evq_cuda_rope_table *grown =
            realloc(state->turns, (state->rope_table_room + 1) * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "rope");
        }
        state->turns = grown;
        state->turns[state->rope_table_room++] = (struct evq_cuda_rope_table){0};
    }
    struct evq_cuda_rope_table *turns = &state->turns[state->rope_table_count];
    turns->op = op;
    enum evq_status status =
        evq_cuda_block_grow(state, &turns->d_frequencies, bytes, "rope frequencies", err);
    if (status == EVQ_OK) {
        status = evq_cuda_block_grow(state, &turns->block, 2 * bytes * (size_t)plan->length_max,
                                     "rope", err);
    }
    if (status == EVQ_OK) {
        // The plan keeps the frequencies until it is replaced, and everything that runs now has
        // ended by then.
        status = evq_cuda_copy_in(state, turns->d_frequencies.d_data, op->frequencies, bytes,
                                  "copy rope frequencies", err);
    }
    if (status == EVQ_OK) {
        status = evq_rope_table_launch(turns->d_frequencies.d_data, op->n / 2, plan->length_max,
                                       op->scale, turns->block.d_data, state->stream, err);
    }
    state->rope_table_count += status == EVQ_OK;
    return status;
}

enum evq_status evq_cuda_rope_table_prepare(struct evq_cuda_state *state,
                                            const struct evq_plan *plan, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    state->rope_table_count = 0;
    for (size_t i = 0; i < plan->op_count && status == EVQ_OK; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_ROPE && find(state, op) == NULL) {
            status = add(state, plan, op, err);
        }
    }
    return status;
}

const float *evq_cuda_rope_table_of(const struct evq_cuda_state *state, const struct evq_op *op)
{
    return find(state, op)->block.d_data;
}
