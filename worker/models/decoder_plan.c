#include "worker/models/decoder_plan.h"

#include <math.h>

#include "worker/models/classifier_head.h"
#include "worker/models/decoder_experts.h"
#include "worker/models/decoder_parts.h"
#include "worker/models/patch_embedding.h"

// The buffers of the plan. ASIDE is the normed input of a parallel feed-forward block. BRANCH is
// what a block adds. POOLED is the first buffer of a classifier's head.
enum {
    TOKENS,
    STREAM,
    NORMED,
    ASIDE,
    QKV,
    ATTENDED,
    WIDE,
    GATED,
    BRANCH,
    ROUTES,
    POOLED,
    BUFFER_COUNT = POOLED + EVQ_CLASSIFIER_BUFFERS
};

static bool has_window(const struct evq_decoder *decoder, int32_t layer)
{
    return decoder->window > 0 && (decoder->windowed == NULL || decoder->windowed[layer]);
}

/* The rotary positions of the layer, or NULL. */
static const struct evq_rope *rope_of(const struct evq_decoder *decoder, int32_t layer)
{
    if (decoder->turns != NULL && !decoder->turns[layer]) {
        return NULL;
    }
    return decoder->window_rope != NULL && has_window(decoder, layer) ? decoder->window_rope
                                                                      : decoder->rope;
}

/* The norm before the feed-forward block, or NULL. */
static const char *mlp_norm_of(const struct evq_decoder_plan *plan)
{
    return plan->shape->shared_norm ? NULL : plan->names->mlp_norm;
}

/* Adds a vector with the norm weights of all heads. Each head has a tensor of its own. */
static int32_t add_head_weights(struct evq_decoder_plan *plan, int32_t layer, const char *name,
                                int32_t heads)
{
    struct evq_decoder_part *parts = evq_arena_array(plan->arena, (size_t)heads, sizeof(*parts));

    if (parts == NULL) {
        plan->failed = true;
        return -1;
    }
    for (int32_t i = 0; i < heads; i++) {
        const char *own = evq_arena_printf(plan->arena, "%s%d", name, (int)i);
        plan->failed = plan->failed || own == NULL;
        parts[i] = (struct evq_decoder_part){own != NULL ? own : "", plan->shape->head_dim};
    }
    return evq_decoder_add_vector(plan, layer, parts, (size_t)heads, "weight", EVQ_SOURCE_TENSOR);
}

/* Norms the heads of queries or keys, from a column on. */
static void add_qk_norm(struct evq_decoder_plan *plan, int32_t layer, const char *name,
                        int32_t column, int32_t heads)
{
    const struct evq_decoder *shape = plan->shape;
    const bool own = shape->qk_norm == EVQ_QK_NORM_OWN;
    const bool each = shape->qk_norm == EVQ_QK_NORM_EACH;
    const bool whole = shape->qk_norm == EVQ_QK_NORM_WHOLE;
    const struct evq_decoder_part part = {name,
                                          own || whole ? heads * shape->head_dim : shape->head_dim};
    const enum evq_source_kind kind =
        shape->norm_one_plus ? EVQ_SOURCE_ONE_PLUS : EVQ_SOURCE_TENSOR;
    struct evq_op op = {.kind = own || each ? EVQ_OP_LAYER_NORM : EVQ_OP_RMS_NORM,
                        .in = QKV,
                        .out = QKV,
                        .bias = -1,
                        .n = whole ? heads * shape->head_dim : shape->head_dim,
                        .column = column,
                        .heads = whole ? 1 : heads,
                        .epsilon = shape->epsilon};

    op.weight = each ? add_head_weights(plan, layer, name, heads)
                     : evq_decoder_add_vector(plan, layer, &part, 1, "weight", kind);
    if (own) { // The tensor is [heads, head_dim].
        plan->wanted[plan->wanted_count - 1].shape[0] = heads;
        plan->wanted[plan->wanted_count - 1].shape[1] = shape->head_dim;
    }
    evq_decoder_add_op(plan, &op);
}

/* Queries and keys are adjacent, or those of a head are followed by its values. */
static void add_rope(struct evq_decoder_plan *plan, const struct evq_rope *rope)
{
    const struct evq_decoder *shape = plan->shape;
    struct evq_op op = {.kind = EVQ_OP_ROPE,
                        .in = QKV,
                        .out = QKV,
                        .weight = -1,
                        .bias = -1,
                        .n = shape->head_dim,
                        .k = rope->turned,
                        .heads = shape->heads + shape->kv_heads,
                        .neighbours = rope->neighbours,
                        .frequencies = rope->frequencies,
                        .far_frequencies = rope->far_frequencies,
                        .near = rope->near,
                        .scale = rope->scale};

    if (shape->qkv_mixed) {
        op.heads = shape->heads;
        op.step = 3 * shape->head_dim;
        evq_decoder_add_op(plan, &op);
        op.column = shape->head_dim;
    }
    evq_decoder_add_op(plan, &op);
}

static void add_qkv(struct evq_decoder_plan *plan, int32_t layer, int32_t in)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_names *names = plan->names;
    const struct evq_rope *rope = rope_of(shape, layer);
    const int32_t queries = shape->heads * shape->head_dim;
    const int32_t keys = shape->kv_heads * shape->head_dim;
    const struct evq_op op = {.in = in, .out = QKV};

    if (names->qkv != NULL) {
        const struct evq_decoder_part whole = {names->qkv, queries + 2 * keys};
        evq_decoder_add_gemm(plan, layer, &whole, 1, shape->hidden, shape->qkv_bias, op);
    } else {
        const struct evq_decoder_part parts[] = {
            {names->query, queries}, {names->key, keys}, {names->value, keys}};
        evq_decoder_add_gemm(plan, layer, parts, 3, shape->hidden, shape->qkv_bias, op);
    }
    if (shape->qk_norm != EVQ_QK_NORM_NONE) {
        add_qk_norm(plan, layer, names->query_norm, 0, shape->heads);
        add_qk_norm(plan, layer, names->key_norm, queries, shape->kv_heads);
    }
    if (rope != NULL) {
        add_rope(plan, rope);
    }
}

/* Ends a block: adds a product to the stream. If the family has them, a norm (post_norm) and a
 * factor change the product before, and a norm (sum_norm) changes the stream afterwards. */
static void add_branch(struct evq_decoder_plan *plan, int32_t layer,
                       const struct evq_decoder_part *part, int32_t in, int32_t columns, bool bias,
                       const char *post_norm, const char *sum_norm)
{
    const struct evq_decoder *shape = plan->shape;
    const float scale = shape->residual_scale != 0 ? shape->residual_scale : 1.0f;

    if (post_norm == NULL && scale == 1.0f) {
        evq_decoder_add_gemm(plan, layer, part, 1, columns, bias,
                             (struct evq_op){.in = in, .out = STREAM, .residual = STREAM});
        if (sum_norm != NULL) {
            evq_decoder_add_norm(plan, layer, sum_norm, STREAM, STREAM);
        }
        return;
    }
    evq_decoder_add_gemm(plan, layer, part, 1, columns, bias,
                         (struct evq_op){.in = in, .out = BRANCH});
    if (post_norm != NULL) {
        evq_decoder_add_norm(plan, layer, post_norm, BRANCH, BRANCH);
    }
    evq_decoder_add_op(plan, &(struct evq_op){.kind = EVQ_OP_ADD,
                                              .in = BRANCH,
                                              .out = STREAM,
                                              .residual = STREAM,
                                              .weight = -1,
                                              .bias = -1,
                                              .n = shape->hidden,
                                              .scale = scale});
}

/* in: the buffer that the block reads. */
static void add_attention(struct evq_decoder_plan *plan, int32_t layer, int32_t in)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_part out = {plan->names->attention_out, shape->hidden};
    const struct evq_decoder_part sink = {plan->names->sinks, shape->heads};
    int32_t sinks = -1;
    double scale = shape->attention_scale != 0 ? (double)shape->attention_scale
                                               : 1.0 / sqrt((double)shape->head_dim);

    if (shape->scale_by_layer) {
        scale /= layer + 1;
    }
    add_qkv(plan, layer, in);
    if (plan->names->sinks != NULL) {
        sinks = evq_decoder_add_vector(plan, layer, &sink, 1, "", EVQ_SOURCE_TENSOR);
    }
    evq_decoder_add_op(plan,
                       &(struct evq_op){.kind = EVQ_OP_ATTENTION,
                                        .in = QKV,
                                        .out = ATTENDED,
                                        .weight = sinks,
                                        .bias = -1,
                                        .n = shape->head_dim,
                                        .heads = shape->heads,
                                        .kv_heads = shape->kv_heads,
                                        .step = shape->qkv_mixed ? 3 * shape->head_dim : 0,
                                        .window = has_window(shape, layer) ? shape->window : 0,
                                        .both = shape->both,
                                        .cap = shape->attention_cap,
                                        .scale = (float)scale});
    add_branch(plan, layer, &out, ATTENDED, shape->heads * shape->head_dim, shape->attention_bias,
               plan->names->attention_post_norm, plan->names->attention_sum_norm);
}

static void add_feed_forward(struct evq_decoder_plan *plan, int32_t layer, int32_t in)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_names *names = plan->names;
    const struct evq_decoder_part whole = {names->gate_up, 2 * shape->inner};
    const struct evq_decoder_part up = {names->up, shape->inner};
    const struct evq_decoder_part both[] = {{names->gate, shape->inner}, {names->up, shape->inner}};
    const struct evq_decoder_part down = {names->down, shape->hidden};

    if (shape->gated) {
        const bool joined = names->gate_up != NULL;
        evq_decoder_add_gemm(plan, layer, joined ? &whole : both, joined ? 1 : 2, shape->hidden,
                             shape->mlp_bias, (struct evq_op){.in = in, .out = WIDE});
        evq_decoder_add_op(plan, &(struct evq_op){.kind = EVQ_OP_GATE,
                                                  .in = WIDE,
                                                  .out = GATED,
                                                  .weight = -1,
                                                  .bias = -1,
                                                  .n = shape->inner,
                                                  .activation = shape->activation});
    } else {
        evq_decoder_add_gemm(
            plan, layer, &up, 1, shape->hidden, shape->mlp_bias,
            (struct evq_op){.in = in, .out = WIDE, .activation = shape->activation});
    }
    add_branch(plan, layer, &down, shape->gated ? GATED : WIDE, shape->inner, shape->mlp_bias,
               names->mlp_post_norm, names->mlp_sum_norm);
}

static void add_layer(struct evq_decoder_plan *plan, int32_t layer)
{
    const struct evq_decoder_names *names = plan->names;
    const char *mlp_norm = mlp_norm_of(plan);
    const bool parallel = plan->shape->parallel;
    int32_t in = STREAM;

    if (names->attention_norm != NULL && !(layer == 0 && plan->shape->bare_first)) {
        evq_decoder_add_norm(plan, layer, names->attention_norm, STREAM, NORMED);
        in = NORMED;
    }
    if (parallel && mlp_norm != NULL) { // Before the attention changes the stream.
        evq_decoder_add_norm(plan, layer, mlp_norm, STREAM, ASIDE);
    }
    add_attention(plan, layer, in);
    if (parallel) {
        in = mlp_norm != NULL ? ASIDE : in;
    } else if (mlp_norm != NULL) {
        evq_decoder_add_norm(plan, layer, mlp_norm, STREAM, NORMED);
        in = NORMED;
    }
    if (plan->shape->experts > 0 && (plan->shape->dense == NULL || !plan->shape->dense[layer])) {
        evq_decoder_add_experts(plan, layer, in, STREAM, ROUTES);
    } else {
        add_feed_forward(plan, layer, in);
    }
}

static void add_embedding(struct evq_decoder_plan *plan)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_part table = {plan->names->embedding, shape->vocabulary};
    const struct evq_decoder_part positions = {plan->names->positions,
                                               shape->first_place + shape->context};
    const struct evq_decoder_part types = {plan->names->types, shape->types};
    struct evq_op op = {.kind = EVQ_OP_EMBEDDING,
                        .in = TOKENS,
                        .out = STREAM,
                        .bias = -1,
                        .n = shape->hidden,
                        .column = shape->first_place,
                        .scale = shape->embedding_scale != 0 ? shape->embedding_scale : 1.0f};

    op.weight = evq_decoder_add_matrix(plan, -1, &table, 1, shape->hidden);
    if (plan->names->positions != NULL) {
        op.bias = evq_decoder_add_matrix(plan, -1, &positions, 1, shape->hidden);
    }
    if (plan->names->types != NULL) {
        op.types = evq_decoder_add_matrix(plan, -1, &types, 1, shape->hidden);
    }
    evq_decoder_add_op(plan, &op);
    if (plan->names->embedding_norm != NULL) {
        evq_decoder_add_norm(plan, -1, plan->names->embedding_norm, STREAM, STREAM);
    }
}

/* The first slot and the first wanted tensor belong to the embedding. */
static void add_head(struct evq_decoder_plan *plan)
{
    const struct evq_decoder *shape = plan->shape;
    struct evq_op op = plan->request->head;

    if (plan->names->final_norm != NULL) {
        evq_decoder_add_norm(plan, -1, plan->names->final_norm, STREAM, NORMED);
    }
    if (shape->classes > 0) {
        evq_classifier_add_head(plan, plan->names->final_norm != NULL ? NORMED : STREAM, POOLED);
        return;
    }
    op.in = NORMED;
    op.scale = shape->logit_scale;
    op.cap = shape->logit_cap;
    op.out = -1;
    op.weight = 0;
    op.bias = -1;
    op.n = shape->vocabulary;
    op.k = shape->hidden;
    if (!shape->tied) {
        const struct evq_decoder_part head = {plan->head, shape->vocabulary};
        op.weight = evq_decoder_add_matrix(plan, EVQ_DECODER_OUTSIDE, &head, 1, shape->hidden);
    }
    evq_decoder_add_op(plan, &op);
}

static const int32_t *buffer_columns(struct evq_decoder_plan *plan)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_names *names = plan->names;
    const bool branches = names->attention_post_norm != NULL || names->mlp_post_norm != NULL ||
                          shape->residual_scale != 0;
    const bool sparse = shape->experts > 0 && shape->dense == NULL; // Every layer has experts.
    int32_t *columns = evq_arena_array(plan->arena, BUFFER_COUNT, sizeof(*columns));

    if (columns == NULL) {
        plan->failed = true;
        return NULL;
    }
    columns[TOKENS] = shape->patches.channels > 0 ? evq_patches_values(&shape->patches) : 1;
    columns[STREAM] = columns[NORMED] = shape->hidden;
    columns[ASIDE] = shape->parallel && mlp_norm_of(plan) != NULL ? shape->hidden : 1;
    columns[BRANCH] = branches ? shape->hidden : 1;
    columns[ROUTES] = shape->experts > 0 ? shape->experts : 1;
    columns[QKV] = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    columns[ATTENDED] = shape->heads * shape->head_dim;
    columns[WIDE] = sparse ? 1 : shape->gated ? 2 * shape->inner : shape->inner;
    columns[GATED] = shape->gated && !sparse ? shape->inner : 1;
    evq_classifier_columns(shape, columns + POOLED);
    return columns;
}

static void set_sizes(const struct evq_decoder *shape, struct evq_model *model)
{
    if (shape->patches.channels > 0) {
        model->patches = shape->patches;
        model->inputs = shape->patches.channels * shape->patches.height * shape->patches.width;
        model->outputs = shape->classes;
        return;
    }
    model->inputs = 1;
    model->outputs = shape->classes > 0 ? shape->classes : shape->vocabulary;
    model->vocabulary = shape->vocabulary;
    model->types = shape->typeless ? 0 : shape->types;
    model->padding = shape->classes > 0 ? shape->padding : -1;
    model->context = shape->context;
}

enum evq_status evq_decoder_plan_make(struct evq_decoder_plan *plan, struct evq_model *model,
                                      struct evq_error *err)
{
    const struct evq_decoder *shape = plan->shape;
    const size_t layers = (size_t)shape->layers;
    const int32_t asked = plan->request->length_max;
    const int32_t rows_max = plan->request->rows_max;

    const int32_t *columns = buffer_columns(plan);
    if (columns == NULL || !evq_decoder_arrays_begin(plan)) {
        return evq_error_set(err, EVQ_E_NOMEM, "plan of %zu layers", layers);
    }
    if (shape->patches.channels > 0) {
        evq_patch_embedding_add(plan, TOKENS, STREAM);
    } else {
        add_embedding(plan);
    }
    for (int32_t layer = 0; layer < shape->layers; layer++) {
        add_layer(plan, layer);
    }
    add_head(plan);
    if (plan->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "plan of %zu layers", layers);
    }
    set_sizes(shape, model);
    model->plan = (struct evq_plan){
        .ops = plan->ops,
        .op_count = plan->op_count,
        .slots = plan->slots,
        .slot_count = plan->slot_count,
        .buffer_count = BUFFER_COUNT,
        .buffer_columns = columns,
        .rows_max = rows_max,
        .length_max = asked > 0                   ? asked
                      : shape->context < rows_max ? shape->context
                                                  : rows_max,
    };
    return EVQ_OK;
}
