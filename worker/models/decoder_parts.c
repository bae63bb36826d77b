#include "worker/models/decoder_parts.h"

#include <string.h>

#define FIRST_ROOM 64 // Items of each array at first.

const char *evq_decoder_tensor_name(struct evq_decoder_plan *plan, int32_t layer, const char *part,
                                    const char *leaf)
{
    const char *dot = leaf[0] != '\0' ? "." : "";
    const char *name =
        layer < 0
            ? evq_arena_printf(plan->arena, "%s%s%s%s",
                               layer == EVQ_DECODER_OUTSIDE ? "" : plan->inside, part, dot, leaf)
            : evq_arena_printf(plan->arena, "%s%s%d.%s%s%s", plan->inside, plan->names->layer,
                               (int)layer, part, dot, leaf);

    plan->failed = plan->failed || name == NULL;
    return name != NULL ? name : "";
}

/* Room for one more item. Returns NULL if memory runs out, and the plan then fails at its end. */
static void *grown(struct evq_decoder_plan *plan, const void *items, size_t count, size_t *room,
                   size_t item_bytes)
{
    const size_t more = *room == 0 ? FIRST_ROOM : 2 * *room;
    void *all = evq_arena_array(plan->arena, more, item_bytes);

    plan->failed = plan->failed || all == NULL;
    if (all != NULL) {
        *room = more;
    }
    return all != NULL && count > 0 ? memcpy(all, items, count * item_bytes) : all;
}

bool evq_decoder_arrays_begin(struct evq_decoder_plan *plan)
{
    plan->ops = grown(plan, NULL, 0, &plan->op_room, sizeof(*plan->ops));
    plan->slots = grown(plan, NULL, 0, &plan->slot_room, sizeof(*plan->slots));
    plan->wanted = grown(plan, NULL, 0, &plan->wanted_room, sizeof(*plan->wanted));
    return !plan->failed;
}

int32_t evq_decoder_add_slot(struct evq_decoder_plan *plan, const char *name, int32_t rows,
                             int32_t columns)
{
    if (plan->slot_count == plan->slot_room) {
        struct evq_weight_slot *all =
            grown(plan, plan->slots, plan->slot_count, &plan->slot_room, sizeof(*plan->slots));
        if (all == NULL) {
            return 0; // The plan fails, so this slot is not used.
        }
        plan->slots = all;
    }
    plan->slots[plan->slot_count] =
        (struct evq_weight_slot){.name = name, .rows = rows, .columns = columns};
    return (int32_t)plan->slot_count++;
}

void evq_decoder_want(struct evq_decoder_plan *plan, const struct evq_wanted *wanted)
{
    if (plan->wanted_count == plan->wanted_room) {
        struct evq_wanted *all = grown(plan, plan->wanted, plan->wanted_count, &plan->wanted_room,
                                       sizeof(*plan->wanted));
        if (all == NULL) {
            return;
        }
        plan->wanted = all;
    }
    plan->wanted[plan->wanted_count++] = *wanted;
}

void evq_decoder_add_op(struct evq_decoder_plan *plan, const struct evq_op *op)
{
    if (plan->op_count == plan->op_room) {
        struct evq_op *all =
            grown(plan, plan->ops, plan->op_count, &plan->op_room, sizeof(*plan->ops));
        if (all == NULL) {
            return;
        }
        plan->ops = all;
    }
    plan->ops[plan->op_count++] = *op;
}

int32_t evq_decoder_add_vector(struct evq_decoder_plan *plan, int32_t layer,
                               const struct evq_decoder_part *parts, size_t count, const char *leaf,
                               enum evq_source_kind kind)
{
    const char *name = evq_decoder_tensor_name(plan, layer, parts[0].name, leaf);
    int32_t length = 0;

    for (size_t i = 0; i < count; i++) {
        length += parts[i].rows;
    }
    const int32_t slot = evq_decoder_add_slot(plan, name, 1, length);
    for (size_t i = 0, first = 0; i < count; first += (size_t)parts[i].rows, i++) {
        evq_decoder_want(plan, &(struct evq_wanted){.name = evq_decoder_tensor_name(
                                                        plan, layer, parts[i].name, leaf),
                                                    .slot = slot,
                                                    .first_row = (int32_t)first,
                                                    .rows = parts[i].rows,
                                                    .kind = kind});
    }
    return slot;
}

int32_t evq_decoder_add_matrix(struct evq_decoder_plan *plan, int32_t layer,
                               const struct evq_decoder_part *parts, size_t count, int32_t columns)
{
    const char *name = evq_decoder_tensor_name(plan, layer, parts[0].name, "weight");
    int32_t rows = 0;

    for (size_t i = 0; i < count; i++) {
        rows += parts[i].rows;
    }
    const int32_t slot = evq_decoder_add_slot(plan, name, rows, columns);
    if (rows == 1) { // A slot of one row is filled like a vector.
        evq_decoder_want(plan,
                         &(struct evq_wanted){
                             .name = name, .slot = slot, .rows = columns, .shape = {1, columns}});
        return slot;
    }
    for (size_t i = 0, first = 0; i < count; first += (size_t)parts[i].rows, i++) {
        evq_decoder_want(plan, &(struct evq_wanted){.name = evq_decoder_tensor_name(
                                                        plan, layer, parts[i].name, "weight"),
                                                    .slot = slot,
                                                    .first_row = (int32_t)first,
                                                    .rows = parts[i].rows,
                                                    .columns = columns,
                                                    .transposed = layer >= 0 && plan->transposed});
    }
    return slot;
}

void evq_decoder_add_norm(struct evq_decoder_plan *plan, int32_t layer, const char *name,
                          int32_t in, int32_t out)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_part part = {name, shape->hidden};
    const enum evq_source_kind kind =
        shape->norm_one_plus ? EVQ_SOURCE_ONE_PLUS : EVQ_SOURCE_TENSOR;
    struct evq_op op = {.kind = shape->layer_norm ? EVQ_OP_LAYER_NORM : EVQ_OP_RMS_NORM,
                        .in = in,
                        .out = out,
                        .bias = -1,
                        .n = shape->hidden,
                        .heads = 1,
                        .epsilon = shape->epsilon};

    op.weight = evq_decoder_add_vector(plan, layer, &part, 1, "weight", kind);
    if (shape->norm_bias) {
        op.bias = evq_decoder_add_vector(plan, layer, &part, 1, "bias", EVQ_SOURCE_TENSOR);
    }
    evq_decoder_add_op(plan, &op);
}

void evq_decoder_add_gemm(struct evq_decoder_plan *plan, int32_t layer,
                          const struct evq_decoder_part *parts, size_t count, int32_t columns,
                          bool bias, struct evq_op op)
{
    op.kind = EVQ_OP_GEMM;
    op.weight = evq_decoder_add_matrix(plan, layer, parts, count, columns);
    op.bias =
        bias ? evq_decoder_add_vector(plan, layer, parts, count, "bias", EVQ_SOURCE_TENSOR) : -1;
    op.n = plan->slots[op.weight].rows;
    op.k = columns;
    evq_decoder_add_op(plan, &op);
}
