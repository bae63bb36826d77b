#include "worker/models/decoder.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "worker/models/config_keys.h"
#include "worker/models/weights.h"

#define LAYER_OPS    11
#define LAYER_SLOTS  14
#define LAYER_WANTED 20
#define OUTER        8 // Most operations, slots and tensors outside the layers.

enum { TOKENS, STREAM, NORMED, QKV, ATTENDED, WIDE, GATED, BUFFER_COUNT };

struct build { // A plan while it is built.
    const struct evq_model_request *request;
    const struct evq_decoder *shape;
    const struct evq_decoder_names *names;
    struct evq_arena *arena;
    const char *inside; // names->inside, or "".
    bool transposed;    // The layers' matrices are transposed.
    struct evq_op *ops;
    struct evq_weight_slot *slots;
    struct evq_wanted *wanted;
    size_t op_count, slot_count, wanted_count;
    bool failed; // Memory ran out.
};

struct part { // Some rows of a matrix that are a tensor of their own.
    const char *name;
    int32_t rows;
};

static const struct {
    const char *name;
    enum evq_activation activation;
} activations[] = {
    {"gelu_new", EVQ_ACT_GELU_TANH},
    {"gelu_pytorch_tanh", EVQ_ACT_GELU_TANH},
    {"gelu_tanh", EVQ_ACT_GELU_TANH},
    {"gelu_fast", EVQ_ACT_GELU_TANH},
    {"gelu", EVQ_ACT_GELU_ERF},
    {"gelu_python", EVQ_ACT_GELU_ERF},
    {"quick_gelu", EVQ_ACT_GELU_QUICK},
    {"silu", EVQ_ACT_SILU},
    {"swish", EVQ_ACT_SILU},
    {"relu", EVQ_ACT_RELU},
    {"tanh", EVQ_ACT_TANH},
    {"sigmoid", EVQ_ACT_SIGMOID},
};

enum evq_activation evq_decoder_activation(struct evq_model_config *config, const char *name,
                                           const char *fallback)
{
    const char *word = evq_model_config_text(config, name, fallback);
    char shown[64];

    for (size_t i = 0; i < sizeof(activations) / sizeof(activations[0]); i++) {
        if (strcmp(activations[i].name, word) == 0) {
            return activations[i].activation;
        }
    }
    evq_error_escape(word, strlen(word), shown, sizeof(shown));
    evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                            "%s is '%s', expected gelu_new, gelu_pytorch_tanh, gelu, quick_gelu, "
                            "silu, relu, tanh or sigmoid",
                            name, shown);
    return EVQ_ACT_NONE;
}

/* Makes "inside layers.3.part.weight"; layer -1: no layer. */
static const char *tensor_name(struct build *build, int32_t layer, const char *part,
                               const char *leaf)
{
    const char *name = layer < 0
                           ? evq_arena_printf(build->arena, "%s%s.%s", build->inside, part, leaf)
                           : evq_arena_printf(build->arena, "%s%s%d.%s.%s", build->inside,
                                              build->names->layer, (int)layer, part, leaf);

    build->failed = build->failed || name == NULL;
    return name != NULL ? name : "";
}

static int32_t add_slot(struct build *build, const char *name, int32_t rows, int32_t columns)
{
    build->slots[build->slot_count] =
        (struct evq_weight_slot){.name = name, .rows = rows, .columns = columns};
    return (int32_t)build->slot_count++;
}

static void want(struct build *build, const struct evq_wanted *wanted)
{
    build->wanted[build->wanted_count++] = *wanted;
}

static void add_op(struct build *build, const struct evq_op *op)
{
    build->ops[build->op_count++] = *op;
}

/* Adds a slot of one row, filled by `count` vectors one after another. */
static int32_t add_vector(struct build *build, int32_t layer, const struct part *parts,
                          size_t count, const char *leaf, enum evq_source_kind kind)
{
    const char *name = tensor_name(build, layer, parts[0].name, leaf);
    int32_t length = 0;

    for (size_t i = 0; i < count; i++) {
        length += parts[i].rows;
    }
    const int32_t slot = add_slot(build, name, 1, length);
    for (size_t i = 0, first = 0; i < count; first += (size_t)parts[i].rows, i++) {
        want(build, &(struct evq_wanted){.name = tensor_name(build, layer, parts[i].name, leaf),
                                         .slot = slot,
                                         .first_row = (int32_t)first,
                                         .rows = parts[i].rows,
                                         .kind = kind});
    }
    return slot;
}

static int32_t add_matrix(struct build *build, int32_t layer, const struct part *parts,
                          size_t count, int32_t columns)
{
    const char *name = tensor_name(build, layer, parts[0].name, "weight");
    int32_t rows = 0;

    for (size_t i = 0; i < count; i++) {
        rows += parts[i].rows;
    }
    const int32_t slot = add_slot(build, name, rows, columns);
    for (size_t i = 0, first = 0; i < count; first += (size_t)parts[i].rows, i++) {
        want(build, &(struct evq_wanted){.name = tensor_name(build, layer, parts[i].name, "weight"),
                                         .slot = slot,
                                         .first_row = (int32_t)first,
                                         .rows = parts[i].rows,
                                         .columns = columns,
                                         .transposed = layer >= 0 && build->transposed});
    }
    return slot;
}

/* op: everything except its weights and shape. */
static void add_gemm(struct build *build, int32_t layer, const struct part *parts, size_t count,
                     int32_t columns, bool bias, struct evq_op op)
{
    op.kind = EVQ_OP_GEMM;
    op.weight = add_matrix(build, layer, parts, count, columns);
    op.bias = bias ? add_vector(build, layer, parts, count, "bias", EVQ_SOURCE_TENSOR) : -1;
    op.n = build->slots[op.weight].rows;
    op.k = columns;
    add_op(build, &op);
}

static void add_norm(struct build *build, int32_t layer, const char *name)
{
    const struct evq_decoder *shape = build->shape;
    const struct part part = {name, shape->hidden};
    const enum evq_source_kind kind =
        shape->norm_one_plus ? EVQ_SOURCE_ONE_PLUS : EVQ_SOURCE_TENSOR;
    struct evq_op op = {.kind = shape->layer_norm ? EVQ_OP_LAYER_NORM : EVQ_OP_RMS_NORM,
                        .in = STREAM,
                        .out = NORMED,
                        .bias = -1,
                        .n = shape->hidden,
                        .heads = 1,
                        .epsilon = shape->epsilon};

    op.weight = add_vector(build, layer, &part, 1, "weight", kind);
    if (shape->norm_bias) {
        op.bias = add_vector(build, layer, &part, 1, "bias", EVQ_SOURCE_TENSOR);
    }
    add_op(build, &op);
}

static void add_head_norm(struct build *build, int32_t layer, const char *name, int32_t column,
                          int32_t heads)
{
    const struct evq_decoder *shape = build->shape;
    const struct part part = {name, shape->head_dim};
    const enum evq_source_kind kind =
        shape->norm_one_plus ? EVQ_SOURCE_ONE_PLUS : EVQ_SOURCE_TENSOR;
    const int32_t weight = add_vector(build, layer, &part, 1, "weight", kind);

    add_op(build, &(struct evq_op){.kind = EVQ_OP_RMS_NORM,
                                   .in = QKV,
                                   .out = QKV,
                                   .weight = weight,
                                   .bias = -1,
                                   .n = shape->head_dim,
                                   .column = column,
                                   .heads = heads,
                                   .epsilon = shape->epsilon});
}

static void add_qkv(struct build *build, int32_t layer)
{
    const struct evq_decoder *shape = build->shape;
    const struct evq_decoder_names *names = build->names;
    const int32_t queries = shape->heads * shape->head_dim;
    const int32_t keys = shape->kv_heads * shape->head_dim;
    const struct evq_op op = {.in = NORMED, .out = QKV};

    if (names->qkv != NULL) {
        const struct part whole = {names->qkv, queries + 2 * keys};
        add_gemm(build, layer, &whole, 1, shape->hidden, shape->qkv_bias, op);
    } else {
        const struct part parts[] = {
            {names->query, queries}, {names->key, keys}, {names->value, keys}};
        add_gemm(build, layer, parts, 3, shape->hidden, shape->qkv_bias, op);
    }
    if (shape->qk_norm) {
        add_head_norm(build, layer, names->query_norm, 0, shape->heads);
        add_head_norm(build, layer, names->key_norm, queries, shape->kv_heads);
    }
    if (shape->frequencies != NULL) { // Queries and keys are adjacent.
        add_op(build, &(struct evq_op){.kind = EVQ_OP_ROPE,
                                       .in = QKV,
                                       .out = QKV,
                                       .weight = -1,
                                       .bias = -1,
                                       .n = shape->head_dim,
                                       .heads = shape->heads + shape->kv_heads,
                                       .frequencies = shape->frequencies,
                                       .scale = shape->rope_scale});
    }
}

static void add_attention(struct build *build, int32_t layer)
{
    const struct evq_decoder *shape = build->shape;
    const struct part out = {build->names->attention_out, shape->hidden};
    const bool windowed = shape->windowed == NULL || shape->windowed[layer];
    double scale = shape->attention_scale != 0 ? (double)shape->attention_scale
                                               : 1.0 / sqrt((double)shape->head_dim);

    if (shape->scale_by_layer) {
        scale /= layer + 1;
    }
    add_norm(build, layer, build->names->attention_norm);
    add_qkv(build, layer);
    add_op(build, &(struct evq_op){.kind = EVQ_OP_ATTENTION,
                                   .in = QKV,
                                   .out = ATTENDED,
                                   .weight = -1,
                                   .bias = -1,
                                   .n = shape->head_dim,
                                   .heads = shape->heads,
                                   .kv_heads = shape->kv_heads,
                                   .window = windowed ? shape->window : 0,
                                   .scale = (float)scale});
    add_gemm(build, layer, &out, 1, shape->heads * shape->head_dim, shape->attention_bias,
             (struct evq_op){.in = ATTENDED, .out = STREAM, .residual = STREAM});
}

static void add_feed_forward(struct build *build, int32_t layer)
{
    const struct evq_decoder *shape = build->shape;
    const struct evq_decoder_names *names = build->names;
    const struct part up = {names->up, shape->inner};
    const struct part both[] = {{names->gate, shape->inner}, {names->up, shape->inner}};
    const struct part down = {names->down, shape->hidden};

    add_norm(build, layer, names->mlp_norm);
    if (shape->gated) {
        add_gemm(build, layer, both, 2, shape->hidden, shape->mlp_bias,
                 (struct evq_op){.in = NORMED, .out = WIDE});
        add_op(build, &(struct evq_op){.kind = EVQ_OP_GATE,
                                       .in = WIDE,
                                       .out = GATED,
                                       .weight = -1,
                                       .bias = -1,
                                       .n = shape->inner,
                                       .activation = shape->activation});
    } else {
        add_gemm(build, layer, &up, 1, shape->hidden, shape->mlp_bias,
                 (struct evq_op){.in = NORMED, .out = WIDE, .activation = shape->activation});
    }
    add_gemm(build, layer, &down, 1, shape->inner, shape->mlp_bias,
             (struct evq_op){.in = shape->gated ? GATED : WIDE, .out = STREAM, .residual = STREAM});
}

static void add_embedding(struct build *build)
{
    const struct evq_decoder *shape = build->shape;
    const struct part table = {build->names->embedding, shape->vocabulary};
    const struct part positions = {build->names->positions, shape->context};
    struct evq_op op = {.kind = EVQ_OP_EMBEDDING,
                        .in = TOKENS,
                        .out = STREAM,
                        .bias = -1,
                        .n = shape->hidden,
                        .scale = shape->embedding_scale != 0 ? shape->embedding_scale : 1.0f};

    op.weight = add_matrix(build, -1, &table, 1, shape->hidden);
    if (build->names->positions != NULL) {
        op.bias = add_matrix(build, -1, &positions, 1, shape->hidden);
    }
    add_op(build, &op);
}

/* The first slot and the first wanted tensor belong to the embedding. */
static void add_head(struct build *build)
{
    const struct evq_decoder *shape = build->shape;
    struct evq_op op = build->request->head;

    add_norm(build, -1, build->names->final_norm);
    op.in = NORMED;
    op.out = -1;
    op.weight = 0;
    op.bias = -1;
    op.n = shape->vocabulary;
    op.k = shape->hidden;
    if (!shape->tied) {
        const char *name = evq_arena_printf(build->arena, "%s.weight", build->names->head);
        build->failed = build->failed || name == NULL;
        op.weight = add_slot(build, name, shape->vocabulary, shape->hidden);
        want(build, &(struct evq_wanted){.name = name,
                                         .slot = op.weight,
                                         .rows = shape->vocabulary,
                                         .columns = shape->hidden});
    }
    add_op(build, &op);
}

static const int32_t *buffer_columns(struct build *build)
{
    const struct evq_decoder *shape = build->shape;
    int32_t *columns = evq_arena_array(build->arena, BUFFER_COUNT, sizeof(*columns));

    if (columns == NULL) {
        build->failed = true;
        return NULL;
    }
    columns[TOKENS] = 1;
    columns[STREAM] = columns[NORMED] = shape->hidden;
    columns[QKV] = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    columns[ATTENDED] = shape->heads * shape->head_dim;
    columns[WIDE] = shape->gated ? 2 * shape->inner : shape->inner;
    columns[GATED] = shape->gated ? shape->inner : 1;
    return columns;
}

static enum evq_status make_plan(struct build *build, struct evq_model *model,
                                 struct evq_error *err)
{
    const struct evq_decoder *shape = build->shape;
    const size_t layers = (size_t)shape->layers;
    const int32_t asked = build->request->length_max;
    const int32_t rows_max = build->request->rows_max;

    build->ops = evq_arena_array(build->arena, layers * LAYER_OPS + OUTER, sizeof(*build->ops));
    build->slots =
        evq_arena_array(build->arena, layers * LAYER_SLOTS + OUTER, sizeof(*build->slots));
    build->wanted =
        evq_arena_array(build->arena, layers * LAYER_WANTED + OUTER, sizeof(*build->wanted));
    const int32_t *columns = buffer_columns(build);
    if (build->ops == NULL || build->slots == NULL || build->wanted == NULL || columns == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "plan of %zu layers", layers);
    }
    add_embedding(build);
    for (int32_t layer = 0; layer < shape->layers; layer++) {
        add_attention(build, layer);
        add_feed_forward(build, layer);
    }
    add_head(build);
    if (build->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "plan of %zu layers", layers);
    }
    model->inputs = 1;
    model->outputs = shape->vocabulary;
    model->context = shape->context;
    model->plan = (struct evq_plan){
        .ops = build->ops,
        .op_count = build->op_count,
        .slots = build->slots,
        .slot_count = build->slot_count,
        .buffer_count = BUFFER_COUNT,
        .buffer_columns = columns,
        .rows_max = rows_max,
        .length_max = asked > 0                   ? asked
                      : shape->context < rows_max ? shape->context
                                                  : rows_max,
    };
    return EVQ_OK;
}

/* Whether the checkpoint has the embedding under the name with the prefix `inside`. */
static bool stands_inside(const struct evq_model_request *request,
                          const struct evq_decoder_names *names, struct evq_arena *arena)
{
    const struct evq_task_config *task = request->task;
    const char *told = evq_pair_get(task->model, task->model_count, "prefix", NULL);
    const char *name = evq_arena_printf(arena, "%s%s.weight", names->inside, names->embedding);
    char prefix[EVQ_CHECKPOINT_PREFIX_BYTES];

    if (name == NULL) {
        return true;
    }
    if (told != NULL) {
        return evq_checkpoint_find_below(request->checkpoint, told, name) != NULL;
    }
    const enum evq_status status =
        evq_checkpoint_find_prefix(request->checkpoint, &name, 1, prefix, NULL, NULL);
    return status != EVQ_E_NOT_FOUND;
}

/* Conv1D stores [in, out]. A matrix that is not square shows which form the checkpoint has. */
static bool stands_transposed(const struct evq_checkpoint *checkpoint,
                              const struct evq_decoder_names *names,
                              const struct evq_decoder *shape, struct evq_arena *arena)
{
    const char *name = evq_arena_printf(arena, "%s0.%s.weight", names->layer, names->qkv);
    const int64_t rows = ((int64_t)shape->heads + 2 * (int64_t)shape->kv_heads) * shape->head_dim;

    for (size_t i = 0; i < checkpoint->tensor_count && name != NULL; i++) {
        const struct evq_tensor *tensor = &checkpoint->tensors[i];
        const size_t bytes = strlen(tensor->name);
        if (bytes >= strlen(name) && strcmp(tensor->name + bytes - strlen(name), name) == 0) {
            return tensor->rank == 2 && tensor->shape[0] == shape->hidden &&
                   tensor->shape[1] == rows;
        }
    }
    return false;
}

/* Checks that products of the shape cannot overflow below, and refuses what no family handles. */
static void check_shape(struct evq_model_config *config, const struct evq_decoder *shape)
{
    const int64_t wide = ((int64_t)shape->heads + 2 * (int64_t)shape->kv_heads) * shape->head_dim;

    if (shape->head_dim == 0) {
        evq_model_config_refuse(config, EVQ_E_INVALID, "%d values do not divide into %d heads",
                                (int)shape->hidden, (int)shape->heads);
        return;
    }
    if (shape->heads % shape->kv_heads != 0) {
        evq_model_config_refuse(config, EVQ_E_INVALID,
                                "%d attention heads cannot share %d key-value heads evenly",
                                (int)shape->heads, (int)shape->kv_heads);
    }
    if (wide > INT32_MAX || shape->inner > INT32_MAX / 2) {
        evq_model_config_refuse(config, EVQ_E_LIMIT, "%d heads of %d values are too wide",
                                (int)shape->heads, (int)shape->head_dim);
    }
    if (shape->frequencies != NULL && shape->head_dim % 2 != 0) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "heads are %d wide, expected an even number for rotary positions",
                                (int)shape->head_dim);
    }
    if (!evq_model_config_flag(config, "is_causal", true)) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "is_causal is false, expected a causal decoder");
    }
    if (evq_model_config_has(config, "quantization_config.quant_method")) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "quantization_config says that the weights are quantised, expected "
                                "plain fp32, fp16 or bf16");
    }
}

static enum evq_status check_request(const struct evq_model_family *family,
                                     const struct evq_model_request *request,
                                     const struct evq_decoder *shape, struct evq_error *err)
{
    if (request->head.kind != EVQ_OP_SCORE) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "a %s model scores tokens, but this task needs a model of samples "
                             "(expected a task such as perplexity, or model: {family: mlp})",
                             family->name);
    }
    if (request->length_max > shape->context) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "sequences of %d tokens are asked for, but the model takes at most %d",
                             (int)request->length_max, (int)shape->context);
    }
    return EVQ_OK;
}

/* PEFT stores a tied embedding that it trains as a tensor of its own. */
static enum evq_status check_adapted(const struct evq_model_request *request,
                                     const struct evq_model *model, struct evq_error *err)
{
    const struct evq_task_config *task = request->task;
    const struct evq_tensor *embedding = model->sources[0].tensor;

    if (!embedding->adapted || model->unused != NULL ||
        evq_pair_get(task->model, task->model_count, "tie_word_embeddings", NULL) != NULL) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_INVALID,
                         "the adapter changes '%s' and the configuration ties the head to it, but "
                         "PEFT does not change the head: merge the adapter first, in a `prepare` "
                         "command, or set model: {tie_word_embeddings: true} to change both",
                         embedding->name);
}

static enum evq_status tell_names(const struct build *build, struct evq_model *model,
                                  struct evq_error *err)
{
    const char **names = evq_arena_array(build->arena, build->wanted_count, sizeof(*names));

    if (names == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu names", build->wanted_count);
    }
    for (size_t i = 0; i < build->wanted_count; i++) {
        names[i] = build->wanted[i].name;
    }
    model->names = names;
    model->name_count = build->wanted_count;
    return EVQ_OK;
}

static enum evq_status find_weights(struct build *build, struct evq_model *model,
                                    struct evq_error *err)
{
    const bool tied = build->shape->tied;
    const char *head =
        tied ? evq_arena_printf(build->arena, "%s.weight", build->names->head) : NULL;

    const enum evq_status status =
        evq_weights_find(build->request, build->wanted, build->wanted_count, head,
                         build->names->buffers, model, err);
    return status == EVQ_OK && tied ? check_adapted(build->request, model, err) : status;
}

enum evq_status evq_decoder_build(const struct evq_model_family *family,
                                  const struct evq_model_request *request, struct evq_model *model,
                                  struct evq_error *err)
{
    struct evq_decoder shape = {0};
    struct evq_model_config *config = NULL;
    struct build build = {.request = request,
                          .shape = &shape,
                          .names = family->decoder->names,
                          .arena = model->arena};

    enum evq_status status =
        evq_model_config_open(request->checkpoint, request->task, &config, err);
    if (status == EVQ_OK) {
        family->decoder->read(config, model->arena, &shape);
        check_shape(config, &shape);
        evq_config_keys_check(config, family->name, family->decoder->keys,
                              family->decoder->more_keys);
        status = evq_model_config_fault(config, err);
    }
    evq_model_config_free(config);
    if (status == EVQ_OK) {
        status = check_request(family, request, &shape, err);
    }
    if (status == EVQ_OK) {
        build.inside = stands_inside(request, build.names, build.arena) ? build.names->inside : "";
        build.transposed = build.names->conv1d &&
                           stands_transposed(request->checkpoint, build.names, &shape, build.arena);
        status = make_plan(&build, model, err);
    }
    if (status == EVQ_OK) {
        status =
            request->names_only ? tell_names(&build, model, err) : find_weights(&build, model, err);
    }
    return status;
}

enum evq_status evq_decoder_check(const struct evq_model_family *family,
                                  const struct evq_task_config *task, struct evq_error *err)
{
    struct evq_model_config *config = NULL;
    struct evq_decoder shape = {0};
    struct evq_arena *arena = evq_arena_new(0);

    enum evq_status status = arena != NULL ? evq_model_config_open(NULL, task, &config, err)
                                           : evq_error_set(err, EVQ_E_NOMEM, "model options");
    if (status == EVQ_OK) {
        family->decoder->read(config, arena, &shape);
        status = evq_model_config_fault(config, err);
    }
    evq_model_config_free(config);
    evq_arena_free(arena);
    return status;
}
