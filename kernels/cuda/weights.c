/*
 * The weights of a plan on the device. fp32 weights are stored as they come. In bf16, matrices and
 * tables are rounded; their rows begin at multiples of 8 values, and rows of zeros fill up to a
 * multiple of 8. A device has the slots that its part of the plan reads; the others have no rows.
 */
#include <stdlib.h>

#include "kernels/cuda/state.h"

/* What the plan's operations need of a slot. */
struct form {
    bool matrix;  // A product or a lookup reads it.
    bool vector;  // Something else reads it.
    bool is_bias; // A product adds it.
    bool here;    // This device's part of the plan reads it.
    bool read;    // Any part does.
};

static void note_slot(struct form *forms, int32_t slot, enum evq_op_kind kind, bool weight)
{
    if (slot < 0) {
        return;
    }
    const bool matrix =
        weight && (kind == EVQ_OP_GEMM || kind == EVQ_OP_SCORE || kind == EVQ_OP_EMBEDDING);
    forms[slot].matrix = forms[slot].matrix || matrix;
    forms[slot].vector = forms[slot].vector || !matrix;
    forms[slot].is_bias = forms[slot].is_bias || (!weight && kind == EVQ_OP_GEMM);
}

/* Notes which part of the plan reads a slot. One that nothing reads belongs to the first. */
static void note_places(const struct evq_cuda_state *state, const struct evq_plan *plan,
                        struct form *forms)
{
    for (size_t i = 0; i < plan->op_count; i++) {
        int32_t slots[EVQ_CUDA_OP_SLOTS];
        evq_cuda_op_slots(&plan->ops[i], slots);
        for (int s = 0; s < EVQ_CUDA_OP_SLOTS; s++) {
            if (slots[s] >= 0) {
                forms[slots[s]].read = true;
                forms[slots[s]].here |= i >= state->part.first && i < state->part.end;
            }
        }
    }
    for (size_t i = 0; i < plan->slot_count && state->part.first == 0; i++) {
        forms[i].here = forms[i].here || !forms[i].read;
    }
}

static enum evq_status find_forms(const struct evq_cuda_state *state, const struct evq_plan *plan,
                                  struct form **ret_forms, struct evq_error *err)
{
    struct form *forms = calloc(plan->slot_count + 1, sizeof(*forms));

    if (forms == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu weights", plan->slot_count);
    }
    for (size_t i = 0; i < plan->op_count; i++) {
        const struct evq_op *op = &plan->ops[i];
        const bool has_bias = op->kind == EVQ_OP_GEMM || op->kind == EVQ_OP_EMBEDDING ||
                              op->kind == EVQ_OP_LAYER_NORM || op->kind == EVQ_OP_SCORE;
        const bool has_weight = has_bias || op->kind == EVQ_OP_RMS_NORM;
        note_slot(forms, has_weight ? op->weight : -1, op->kind, true);
        note_slot(forms, has_bias ? op->bias : -1, op->kind, false);
    }
    for (size_t i = 0; i < plan->slot_count; i++) {
        if (plan->compute == EVQ_COMPUTE_BF16 && forms[i].matrix && forms[i].vector) {
            free(forms);
            return evq_error_set(err, EVQ_E_UNSUPPORTED,
                                 "weight '%s' is both a matrix and something else, which this "
                                 "backend does not do in bf16",
                                 plan->slots[i].name);
        }
    }
    note_places(state, plan, forms);
    *ret_forms = forms;
    return EVQ_OK;
}

/* A weight in the shape that a slot needs, without memory. */
static struct evq_cuda_weight shape_of(const struct evq_weight_slot *slot, const struct form *form,
                                       bool in_bf16)
{
    const bool bf16 = in_bf16 && form->matrix;

    return (struct evq_cuda_weight){.rows = slot->rows,
                                    .columns = slot->columns,
                                    .stride = bf16 ? evq_cuda_up(slot->columns, 8) : slot->columns,
                                    .bf16 = bf16,
                                    .has_rounded = in_bf16 && form->is_bias};
}

/* Whether it has memory and the wanted shape. */
static bool is_there(const struct evq_cuda_weight *weight, const struct evq_cuda_weight *wanted)
{
    return weight->block.d_data != NULL &&
           (!wanted->has_rounded || weight->rounded.d_data != NULL) &&
           weight->rows == wanted->rows && weight->columns == wanted->columns &&
           weight->bf16 == wanted->bf16 && weight->has_rounded == wanted->has_rounded;
}

static size_t block_bytes(const struct evq_cuda_weight *weight)
{
    const int64_t rows = weight->bf16 ? evq_cuda_up(weight->rows, 8) : weight->rows;

    return (size_t)rows * (size_t)weight->stride * (weight->bf16 ? 2 : sizeof(float));
}

static size_t rounded_bytes(const struct evq_cuda_weight *weight)
{
    return weight->has_rounded ? (size_t)weight->columns * 2 : 0;
}

static void weight_free(struct evq_cuda_state *state, struct evq_cuda_weight *weight)
{
    evq_cuda_block_free(state, &weight->block);
    evq_cuda_block_free(state, &weight->rounded);
    *weight = (struct evq_cuda_weight){0};
}

static enum evq_status prepare_slot(struct evq_cuda_state *state, struct evq_cuda_weight *weight,
                                    const struct evq_weight_slot *slot, const struct form *form,
                                    bool in_bf16, struct evq_error *err)
{
    struct evq_cuda_weight wanted = shape_of(slot, form, in_bf16);

    if (!form->here) {
        weight_free(state, weight);
        return EVQ_OK;
    }
    if (is_there(weight, &wanted)) {
        return EVQ_OK; // The slot keeps its values too.
    }
    wanted.block = weight->block;
    wanted.rounded = weight->rounded;
    *weight = wanted;
    const size_t bytes = block_bytes(weight);
    enum evq_status status = evq_cuda_block_grow(state, &weight->block, bytes, slot->name, err);
    if (status == EVQ_OK) {
        status =
            evq_cuda_block_grow(state, &weight->rounded, rounded_bytes(weight), slot->name, err);
    }
    if (status == EVQ_OK && weight->bf16) {
        status = evq_cuda_status(cudaMemsetAsync(weight->block.d_data, 0, bytes, state->stream),
                                 "clear a weight", err);
    }
    return status;
}

enum evq_status evq_cuda_weights_trim(struct evq_cuda_state *state, const struct evq_plan *plan,
                                      struct evq_error *err)
{
    struct form *forms = NULL;

    const enum evq_status status = find_forms(state, plan, &forms, err);
    for (size_t i = 0; i < state->weight_count && status == EVQ_OK; i++) {
        struct evq_cuda_weight wanted = {0};
        if (i < plan->slot_count && forms[i].here) {
            wanted = shape_of(&plan->slots[i], &forms[i], plan->compute == EVQ_COMPUTE_BF16);
        }
        if (state->weights[i].rows_put == 0 || !is_there(&state->weights[i], &wanted)) {
            weight_free(state, &state->weights[i]);
        }
    }
    free(forms);
    return status;
}

enum evq_status evq_cuda_weights_prepare(struct evq_cuda_state *state, const struct evq_plan *plan,
                                         struct evq_error *err)
{
    struct form *forms = NULL;

    while (state->weight_count > plan->slot_count) {
        weight_free(state, &state->weights[--state->weight_count]);
    }
    struct evq_cuda_weight *grown =
        realloc(state->weights, (plan->slot_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu weights", plan->slot_count);
    }
    state->weights = grown;
    for (; state->weight_count < plan->slot_count; state->weight_count++) {
        state->weights[state->weight_count] = (struct evq_cuda_weight){0};
    }
    enum evq_status status = find_forms(state, plan, &forms, err);
    for (size_t i = 0; i < plan->slot_count && status == EVQ_OK; i++) {
        status = prepare_slot(state, &state->weights[i], &plan->slots[i], &forms[i],
                              plan->compute == EVQ_COMPUTE_BF16, err);
    }
    free(forms);
    return status;
}

enum evq_status evq_cuda_weight_convert(struct evq_cuda_state *state,
                                        struct evq_cuda_weight *weight, const void *d_blob,
                                        const struct evq_weight_blob *blob, struct evq_error *err)
{
    const size_t at = (size_t)blob->first_row * (size_t)weight->stride * (weight->bf16 ? 2 : 4);
    const struct evq_cuda_rows to = {(char *)weight->block.d_data + at, weight->stride,
                                     weight->bf16};
    const struct evq_cuda_rows rounded = {weight->rounded.d_data, weight->columns, true};

    enum evq_status status = evq_convert_launch(d_blob, blob->type, blob->transposed, blob->rows,
                                                weight->columns, &to, state->stream, err);
    if (status == EVQ_OK && weight->has_rounded) {
        status = evq_convert_launch(d_blob, blob->type, blob->transposed, blob->rows,
                                    weight->columns, &rounded, state->stream, err);
    }
    return status;
}
