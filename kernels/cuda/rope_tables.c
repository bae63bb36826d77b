/*
 * Tables of cosines and sines for ROPE, one for all operations that are alike.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/state.h"

static int32_t turned(const struct evq_op *op)
{
    return op->k != 0 ? op->k : op->n;
}

static bool same(const struct evq_op *op, const float *a, const float *b)
{
    return a == b ||
           (a != NULL && b != NULL && memcmp(a, b, (size_t)(turned(op) / 2) * sizeof(float)) == 0);
}

static bool alike(const struct evq_op *a, const struct evq_op *b)
{
    return turned(a) == turned(b) && memcmp(&a->scale, &b->scale, sizeof(a->scale)) == 0 &&
           same(a, a->frequencies, b->frequencies) &&
           same(a, a->far_frequencies, b->far_frequencies) &&
           (a->far_frequencies == NULL || a->near == b->near);
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

/* Fills lines of the table, from `first` on, for the positions from 0 on. The plan keeps the
 * frequencies until it is replaced, and everything that runs now has ended by then. */
static enum evq_status fill(struct evq_cuda_state *state, const struct evq_cuda_rope_table *turns,
                            const float *frequencies, int32_t lines, size_t first,
                            struct evq_error *err)
{
    const int32_t half = turned(turns->op) / 2;
    float *d_lines = (float *)turns->block.d_data + first * 2 * (size_t)half;

    const enum evq_status status =
        evq_cuda_copy_in(state, turns->d_frequencies.d_data, frequencies,
                         (size_t)half * sizeof(float), "copy rope frequencies", err);
    return status == EVQ_OK ? evq_rope_table_launch(turns->d_frequencies.d_data, half, lines,
                                                    turns->op->scale, d_lines, state->stream, err)
                            : status;
}

static enum evq_status add(struct evq_cuda_state *state, const struct evq_plan *plan,
                           const struct evq_op *op, struct evq_error *err)
{
    const int32_t half = turned(op) / 2;
    const size_t bytes = (size_t)half * sizeof(float);
    const size_t near = op->far_frequencies != NULL ? (size_t)op->near : 0;

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
        status = evq_cuda_block_grow(state, &turns->block,
                                     2 * bytes * ((size_t)plan->length_max + near), "rope", err);
    }
    if (status == EVQ_OK) {
        status =
            fill(state, turns, op->frequencies, near > 0 ? op->near : plan->length_max, 0, err);
    }
    if (status == EVQ_OK && near > 0) {
        status = fill(state, turns, op->far_frequencies, plan->length_max, near, err);
    }
    state->rope_table_count += status == EVQ_OK;
    return status;
}

enum evq_status evq_cuda_rope_table_prepare(struct evq_cuda_state *state,
                                            const struct evq_plan *plan, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    state->rope_table_count = 0;
    for (size_t i = state->part.first; i < state->part.end && status == EVQ_OK; i++) {
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
