#include "worker/models/decoder_experts.h"

#include "worker/models/decoder_parts.h"

/* The name of a matrix of an expert, without ".weight". */
static const char *expert_name(struct evq_decoder_plan *plan, int32_t expert, const char *part)
{
    const char *name =
        evq_arena_printf(plan->arena, "%s%d.%s", plan->names->expert, (int)expert, part);

    plan->failed = plan->failed || name == NULL;
    return name != NULL ? name : "";
}

static const char *joined_name(struct evq_decoder_plan *plan, const char *name, const char *end)
{
    const char *whole = evq_arena_printf(plan->arena, "%s%s", name, end);

    plan->failed = plan->failed || whole == NULL;
    return whole != NULL ? whole : "";
}

/* Adds a slot for each expert's matrix; one tensor has the matrices of all experts. If the family
 * has biases, adds one slot for all of them. Returns the first slot. */
static int32_t add_joined(struct evq_decoder_plan *plan, int32_t layer, const char *part,
                          int32_t rows, int32_t columns, int32_t *ret_bias)
{
    const int32_t experts = plan->shape->experts;
    const bool alone = plan->names->expert == NULL;
    const char *name = evq_decoder_tensor_name(plan, layer, part, "");
    const char *bias = joined_name(plan, name, "_bias");
    const char *values = plan->packed ? joined_name(plan, name, "_blocks") : name;
    const char *scale = plan->packed ? joined_name(plan, name, "_scales") : NULL;
    const int32_t first = (int32_t)plan->slot_count;

    for (int32_t expert = 0; expert < experts; expert++) {
        evq_decoder_want(
            plan, &(struct evq_wanted){.name = values,
                                       .slot = evq_decoder_add_slot(plan, name, rows, columns),
                                       .rows = rows,
                                       .columns = columns,
                                       .transposed = alone && !plan->packed,
                                       .part = expert,
                                       .parts = experts,
                                       .kind = plan->packed ? EVQ_SOURCE_MXFP4 : EVQ_SOURCE_TENSOR,
                                       .scale = scale});
    }
    if (alone) {
        *ret_bias = evq_decoder_add_slot(plan, bias, experts, rows);
        evq_decoder_want(plan,
                         &(struct evq_wanted){
                             .name = bias, .slot = *ret_bias, .rows = experts, .columns = rows});
    }
    return first;
}

/* Adds a slot for each matrix of each expert. The slots of all first matrices come before those of
 * the second ones. */
static void add_separate(struct evq_decoder_plan *plan, int32_t layer, struct evq_op *op)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_names *names = plan->names;

    for (int32_t expert = 0; expert < shape->experts; expert++) {
        const struct evq_decoder_part both[] = {
            {expert_name(plan, expert, names->expert_gate), shape->expert_inner},
            {expert_name(plan, expert, names->expert_up), shape->expert_inner}};
        const int32_t slot = evq_decoder_add_matrix(plan, layer, both, 2, shape->hidden);
        op->weight = expert == 0 ? slot : op->weight;
    }
    for (int32_t expert = 0; expert < shape->experts; expert++) {
        const struct evq_decoder_part down = {expert_name(plan, expert, names->expert_down),
                                              shape->hidden};
        const int32_t slot = evq_decoder_add_matrix(plan, layer, &down, 1, shape->expert_inner);
        op->down = expert == 0 ? slot : op->down;
    }
}

void evq_decoder_add_experts(struct evq_decoder_plan *plan, int32_t layer, int32_t in,
                             int32_t stream, int32_t routes)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_names *names = plan->names;
    const bool renamed = plan->joined && names->joined_router != NULL;
    const struct evq_decoder_part router = {renamed ? names->joined_router : names->router,
                                            shape->experts};
    struct evq_op op = {.kind = EVQ_OP_EXPERTS,
                        .in = in,
                        .out = stream,
                        .residual = stream,
                        .bias = -1,
                        .n = shape->hidden,
                        .k = shape->hidden,
                        .routes = routes,
                        .experts = shape->experts,
                        .inner = shape->expert_inner,
                        .top_k = shape->expert_count,
                        .down_bias = -1,
                        .neighbours = names->expert == NULL,
                        .scale = shape->expert_slope,
                        .cap = shape->expert_cap,
                        .activation = shape->activation};

    evq_decoder_add_gemm(plan, layer, &router, 1, shape->hidden, shape->router_bias,
                         (struct evq_op){.in = in, .out = routes});
    evq_decoder_add_op(plan, &(struct evq_op){.kind = EVQ_OP_ROUTE,
                                              .in = routes,
                                              .out = routes,
                                              .weight = -1,
                                              .bias = -1,
                                              .n = shape->experts,
                                              .top_k = shape->expert_count,
                                              .whole = shape->route_whole});
    if (plan->joined) {
        op.weight = add_joined(plan, layer, names->joined_up, 2 * shape->expert_inner,
                               shape->hidden, &op.bias);
        op.down = add_joined(plan, layer, names->joined_down, shape->hidden, shape->expert_inner,
                             &op.down_bias);
    } else {
        add_separate(plan, layer, &op);
    }
    evq_decoder_add_op(plan, &op);
}
