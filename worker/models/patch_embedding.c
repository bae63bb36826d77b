#include "worker/models/patch_embedding.h"

#include "worker/models/decoder_parts.h"

/* Adds a slot that one tensor fills. wanted: everything except the slot. */
static int32_t add_table(struct evq_decoder_plan *plan, const struct evq_wanted *wanted)
{
    struct evq_wanted one = *wanted;

    one.slot = evq_decoder_add_slot(plan, wanted->name, wanted->rows, wanted->columns);
    evq_decoder_want(plan, &one);
    return one.slot;
}

/* Adds the table of tokens. Token 0 is the class token; token 1 is the bias of the product over the
 * patches, so that the product itself needs none. */
static int32_t add_tokens(struct evq_decoder_plan *plan)
{
    const struct evq_decoder_names *names = plan->names;
    const int32_t hidden = plan->shape->hidden;
    const char *token = evq_decoder_tensor_name(plan, EVQ_DECODER_BESIDE, names->class_token, "");
    const char *bias = evq_decoder_tensor_name(plan, EVQ_DECODER_BESIDE, names->embedding, "bias");
    const int32_t slot = evq_decoder_add_slot(plan, token, 2, hidden);

    evq_decoder_want(
        plan,
        &(struct evq_wanted){
            .name = token, .slot = slot, .rows = 1, .columns = hidden, .shape = {1, 1, hidden}});
    evq_decoder_want(plan, &(struct evq_wanted){.name = bias,
                                                .slot = slot,
                                                .first_row = 1,
                                                .rows = 1,
                                                .columns = hidden,
                                                .shape = {hidden}});
    return slot;
}

void evq_patch_embedding_add(struct evq_decoder_plan *plan, int32_t in, int32_t out)
{
    const struct evq_decoder_names *names = plan->names;
    const struct evq_patches *patches = &plan->shape->patches;
    const int32_t hidden = plan->shape->hidden;
    const int32_t rows = plan->shape->context;
    struct evq_op op = {.kind = EVQ_OP_EMBEDDING, .out = out, .n = hidden, .scale = 1.0f};

    op.weight = add_tokens(plan);
    op.bias =
        add_table(plan, &(struct evq_wanted){.name = evq_decoder_tensor_name(
                                                 plan, EVQ_DECODER_BESIDE, names->positions, ""),
                                             .rows = rows,
                                             .columns = hidden,
                                             .shape = {1, rows, hidden}});
    evq_decoder_add_op(plan, &op);
    op = (struct evq_op){.kind = EVQ_OP_GEMM,
                         .in = in,
                         .out = out,
                         .residual = out,
                         .bias = -1,
                         .n = hidden,
                         .k = evq_patches_values(patches)};
    op.weight = add_table(
        plan,
        &(struct evq_wanted){
            .name = evq_decoder_tensor_name(plan, EVQ_DECODER_BESIDE, names->embedding, "weight"),
            .rows = hidden,
            .columns = op.k,
            .shape = {hidden, patches->channels, patches->patch_height, patches->patch_width}});
    evq_decoder_add_op(plan, &op);
}
