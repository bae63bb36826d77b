/*
 * Plain multi-layer perceptrons from a state dict: matrices, and biases of the same name. A state
 * dict does not tell which activation is between the layers, or in which order the layers run,
 * unless their names are numbered. evalq does not guess this. The options activation and layers
 * tell it; if an option that would change the result is missing, the checkpoint is refused.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/models/model.h"
#include "worker/models/natural_order.h"
#include "worker/models/weights.h"
#include "worker/tasks/task_options.h"

#define MODULES_MAX 4096

struct module { // The tensors that share a name up to the last dot: a Linear.
    const char *name;
    size_t name_bytes;
    const struct evq_tensor *weight;
    const struct evq_tensor *bias; // NULL: it has none.
    int32_t in, out;
};

struct mlp { // The model while it is inferred.
    const struct evq_model_request *request;
    struct evq_model *model;
    struct module *modules;
    size_t count;
    enum evq_activation activation;
    bool has_activation; // The options name the activation.
    size_t op_count, slot_count;
};

static const char *const option_keys[] = {"family", "activation", "prefix", "key",
                                          "base",   "adapter",    "layers", "layers.#",
                                          "ignore", "ignore.#",   NULL};

static const struct {
    const char *name;
    enum evq_activation activation;
} activations[] = {
    {"relu", EVQ_ACT_RELU},           {"tanh", EVQ_ACT_TANH},
    {"gelu", EVQ_ACT_GELU_ERF},       {"gelu_erf", EVQ_ACT_GELU_ERF},
    {"gelu_tanh", EVQ_ACT_GELU_TANH}, {"gelu_new", EVQ_ACT_GELU_TANH},
    {"silu", EVQ_ACT_SILU},           {"swish", EVQ_ACT_SILU},
    {"sigmoid", EVQ_ACT_SIGMOID},     {"none", EVQ_ACT_NONE},
    {"identity", EVQ_ACT_NONE},
};

static const char *option(const struct mlp *mlp, const char *key, const char *fallback)
{
    const struct evq_task_config *task = mlp->request->task;
    return evq_pair_get(task->model, task->model_count, key, fallback);
}

static enum evq_status read_options(struct mlp *mlp, struct evq_error *err)
{
    const char *activation = option(mlp, "activation", NULL);

    for (size_t i = 0; activation != NULL && i < sizeof(activations) / sizeof(activations[0]);
         i++) {
        if (strcmp(activations[i].name, activation) == 0) {
            mlp->activation = activations[i].activation;
            mlp->has_activation = true;
        }
    }
    if (activation != NULL && !mlp->has_activation) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "model: activation is '%s', expected relu, tanh, gelu, gelu_tanh, silu, "
            "sigmoid or none",
            activation);
    }
    return EVQ_OK;
}

static struct module *module_of(struct mlp *mlp, const char *name, size_t name_bytes)
{
    // Tensors are sorted, so it is mostly the last module.
    for (size_t i = mlp->count; i > 0; i--) {
        struct module *module = &mlp->modules[i - 1];
        if (module->name_bytes == name_bytes && memcmp(module->name, name, name_bytes) == 0) {
            return module;
        }
    }
    if (mlp->count == MODULES_MAX) {
        return NULL;
    }
    struct module *module = &mlp->modules[mlp->count++];
    *module = (struct module){.name = name, .name_bytes = name_bytes};
    return module;
}

static enum evq_status take_tensor(struct mlp *mlp, const struct evq_tensor *tensor,
                                   const char *name, struct evq_error *err)
{
    const char *dot = strrchr(name, '.');
    const char *leaf = dot != NULL ? dot + 1 : name;
    const int32_t rank_max = strcmp(leaf, "weight") == 0 ? 2 : 1;

    if (strcmp(leaf, "weight") != 0 && strcmp(leaf, "bias") != 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tensor '%s' has no place in a plain MLP: expected names that end in "
                             "weight or bias (model: {ignore: [NAME]} leaves it out)",
                             tensor->name);
    }
    if (!evq_dtype_is_float(tensor->dtype)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "tensor '%s' is %s, expected floating point",
                             tensor->name, tensor->dtype_name);
    }
    if (tensor->rank < 1 || tensor->rank > rank_max) {
        return evq_error_set(
            err, EVQ_E_UNSUPPORTED,
            "tensor '%s' has %d dimensions, expected %s: a plain MLP holds no convolutions",
            tensor->name, (int)tensor->rank, rank_max == 2 ? "1 or 2" : "1");
    }
    for (int32_t d = 0; d < tensor->rank; d++) {
        if (tensor->shape[d] < 1 || tensor->shape[d] > INT32_MAX) {
            return evq_error_set(err, EVQ_E_UNSUPPORTED,
                                 "tensor '%s' has a dimension of %" PRId64 ", expected 1 to %d",
                                 tensor->name, tensor->shape[d], INT32_MAX);
        }
    }
    struct module *module = module_of(mlp, name, dot != NULL ? (size_t)(dot - name) : 0);
    if (module == NULL) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s' holds more than %d layers",
                             mlp->request->checkpoint->path, MODULES_MAX);
    }
    *(strcmp(leaf, "weight") == 0 ? &module->weight : &module->bias) = tensor;
    return EVQ_OK;
}

static enum evq_status check_module(struct module *module, struct evq_error *err)
{
    const int name_bytes = (int)module->name_bytes;

    if (module->weight == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "tensor '%.*s%sweight' is missing beside '%s'",
                             name_bytes, module->name, name_bytes > 0 ? "." : "",
                             module->bias->name);
    }
    if (module->weight->rank != 2) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tensor '%s' has 1 dimension, expected 2 (only Linear is handled)",
                             module->weight->name);
    }
    module->out = (int32_t)module->weight->shape[0];
    module->in = (int32_t)module->weight->shape[1];
    if (module->bias != NULL && module->bias->shape[0] != module->out) {
        return evq_error_set(
            err, EVQ_E_INVALID, "tensor '%s' has shape [%" PRId64 "], expected [%d] as '%s' has",
            module->bias->name, module->bias->shape[0], (int)module->out, module->weight->name);
    }
    return EVQ_OK;
}

static enum evq_status collect(struct mlp *mlp, struct evq_error *err)
{
    const struct evq_checkpoint *checkpoint = mlp->request->checkpoint;
    const char *prefix = option(mlp, "prefix", "");
    const size_t prefix_bytes = strlen(prefix);
    struct evq_ignored ignored = {.arena = mlp->model->arena, .text = ""};
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < checkpoint->tensor_count && status == EVQ_OK; i++) {
        const struct evq_tensor *tensor = &checkpoint->tensors[i];
        if (strncmp(tensor->name, prefix, prefix_bytes) != 0 ||
            evq_weights_told_to_ignore(mlp->request->task, tensor->name)) {
            evq_weights_add_ignored(&ignored, tensor);
        } else {
            status = take_tensor(mlp, tensor, tensor->name + prefix_bytes, err);
        }
    }
    for (size_t i = 0; i < mlp->count && status == EVQ_OK; i++) {
        status = check_module(&mlp->modules[i], err);
    }
    if (status == EVQ_OK) {
        status = evq_weights_tell_ignored(&ignored, mlp->model, err);
    }
    if (status == EVQ_OK && mlp->count == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%s' holds no matrix%s%s%s, so no MLP can be made of it",
                             checkpoint->path, prefix_bytes > 0 ? " under the prefix '" : "",
                             prefix, prefix_bytes > 0 ? "'" : "");
    }
    return status;
}

static int compare_modules(const void *left, const void *right)
{
    const struct module *a = left;
    const struct module *b = right;

    return evq_natural_order_compare(a->name, a->name_bytes, b->name, b->name_bytes);
}

/* Puts the modules into the order of the option `layers`, which must name each module once. */
static enum evq_status order_as_told(struct mlp *mlp, struct evq_error *err)
{
    const struct evq_task_config *task = mlp->request->task;
    const char *name = NULL;
    size_t bytes = 0;
    size_t placed = 0;

    for (; evq_task_options_item(task->model, task->model_count, "layers", placed, &name, &bytes);
         placed++) {
        size_t found = placed;
        while (found < mlp->count && (mlp->modules[found].name_bytes != bytes ||
                                      memcmp(mlp->modules[found].name, name, bytes) != 0)) {
            found++;
        }
        if (found == mlp->count) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "model: layers names '%.*s', which '%s' does not hold (or twice)",
                                 (int)bytes, name, mlp->request->checkpoint->path);
        }
        const struct module moved = mlp->modules[found];
        mlp->modules[found] = mlp->modules[placed];
        mlp->modules[placed] = moved;
    }
    if (placed < mlp->count) {
        const struct module *left = &mlp->modules[placed];
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%.*s' is in the checkpoint but not among model: layers",
                             (int)left->name_bytes, left->name);
    }
    return EVQ_OK;
}

static enum evq_status check_chain(const struct mlp *mlp, struct evq_error *err)
{
    for (size_t i = 1; i < mlp->count; i++) {
        const struct module *before = &mlp->modules[i - 1];
        const struct module *after = &mlp->modules[i];
        if (after->in != before->out) {
            return evq_error_set(
                err, EVQ_E_INVALID,
                "'%s' takes %d values, but '%s' before it gives %d (model: {layers: ...} sets "
                "another order)",
                after->weight->name, (int)after->in, before->weight->name, (int)before->out);
        }
    }
    return EVQ_OK;
}

/* Names without numbers do not tell which module runs first, whatever their shapes. */
static enum evq_status check_numbered(const struct mlp *mlp, struct evq_error *err)
{
    char names[300] = "";
    size_t used = 0;
    bool numbered = true;

    for (size_t i = 0; i < mlp->count; i++) {
        const struct module *a = &mlp->modules[i];
        for (size_t j = i + 1; j < mlp->count && numbered; j++) {
            const struct module *b = &mlp->modules[j];
            numbered = evq_natural_order_counts(a->name, a->name_bytes, b->name, b->name_bytes);
        }
        if (used < sizeof(names)) {
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%.*s",
                                     i > 0 ? ", " : "", (int)a->name_bytes, a->name);
        }
    }
    if (numbered) {
        return EVQ_OK;
    }
    return evq_error_set(
        err, EVQ_E_INVALID,
        "the names of the layers in '%s' have no numbers, so the order of the layers is unknown: "
        "set model: {layers: [...]}, with these names in the right order: %s",
        mlp->request->checkpoint->path, names);
}

static enum evq_status order(struct mlp *mlp, struct evq_error *err)
{
    const struct evq_task_config *task = mlp->request->task;
    const char *name = NULL;
    size_t bytes = 0;

    if (evq_task_options_item(task->model, task->model_count, "layers", 0, &name, &bytes)) {
        const enum evq_status told = order_as_told(mlp, err);
        return told == EVQ_OK ? check_chain(mlp, err) : told;
    }
    qsort(mlp->modules, mlp->count, sizeof(*mlp->modules), compare_modules);
    const enum evq_status status = check_numbered(mlp, err);
    return status == EVQ_OK ? check_chain(mlp, err) : status;
}

/* The file does not tell what is between two matrices. */
static enum evq_status check_between(const struct mlp *mlp, struct evq_error *err)
{
    if (mlp->count < 2 || mlp->has_activation) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_INVALID,
                         "'%s' holds %zu matrices, and a state dict does not say which activation "
                         "lies between them: add it to the task (model: {activation: relu}; or "
                         "tanh, gelu, gelu_tanh, silu, sigmoid, none)",
                         mlp->request->checkpoint->path, mlp->count);
}

struct output { // The plan's arrays while they are filled.
    struct evq_op *ops;
    struct evq_weight_slot *slots;
    struct evq_source *sources;
};

static int32_t add_slot(struct mlp *mlp, struct output *out, const char *name, int32_t rows,
                        int32_t columns, const struct evq_source *source)
{
    const size_t slot = mlp->slot_count++;
    const char *copy =
        evq_arena_strdup(mlp->model->arena, name); // The plan outlives the checkpoint.

    out->slots[slot] = (struct evq_weight_slot){
        .name = copy != NULL ? copy : "", .rows = rows, .columns = columns};
    out->sources[slot] = *source;
    out->sources[slot].slot = (int32_t)slot;
    out->sources[slot].rows = rows == 1 ? columns : rows;
    return (int32_t)slot;
}

static void add_module(struct mlp *mlp, struct output *out, const struct module *module,
                       int32_t *buffer, enum evq_activation activation)
{
    const struct evq_source weight = {.kind = EVQ_SOURCE_TENSOR, .tensor = module->weight};
    const struct evq_source bias = {.kind = EVQ_SOURCE_TENSOR, .tensor = module->bias};
    struct evq_op op = {.kind = EVQ_OP_GEMM,
                        .in = *buffer,
                        .out = *buffer == 1 ? 2 : 1,
                        .bias = -1,
                        .n = module->out,
                        .k = module->in,
                        .activation = activation};

    op.weight = add_slot(mlp, out, module->weight->name, module->out, module->in, &weight);
    if (module->bias != NULL) {
        op.bias = add_slot(mlp, out, module->bias->name, 1, module->out, &bias);
    }
    *buffer = op.out;
    out->ops[mlp->op_count++] = op;
}

static enum evq_status make_plan(struct mlp *mlp, struct evq_error *err)
{
    struct evq_model *model = mlp->model;
    struct evq_arena *arena = model->arena;
    int32_t *columns = evq_arena_array(arena, 3, sizeof(*columns));
    struct output out = {
        .ops = evq_arena_array(arena, mlp->count + 1, sizeof(*out.ops)),
        .slots = evq_arena_array(arena, 2 * mlp->count, sizeof(*out.slots)),
        .sources = evq_arena_array(arena, 2 * mlp->count, sizeof(*out.sources)),
    };
    int32_t buffer = 0;

    if (columns == NULL || out.ops == NULL || out.slots == NULL || out.sources == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "plan of %zu layers", mlp->count);
    }
    model->inputs = mlp->modules[0].in;
    columns[0] = model->inputs;
    for (size_t i = 0; i < mlp->count; i++) {
        const struct module *module = &mlp->modules[i];
        const bool last = i + 1 == mlp->count; // No activation follows it.
        add_module(mlp, &out, module, &buffer, last ? EVQ_ACT_NONE : mlp->activation);
        columns[buffer] = module->out > columns[buffer] ? module->out : columns[buffer];
        model->outputs = module->out;
    }
    columns[2] = columns[2] > 0 ? columns[2] : 1; // With one layer it is unused.
    struct evq_op head = mlp->request->head;
    head.in = buffer;
    head.out = head.weight = head.bias = -1;
    head.n = head.k = model->outputs;
    out.ops[mlp->op_count++] = head;
    model->sources = out.sources;
    model->source_count = mlp->slot_count;
    model->plan = (struct evq_plan){.ops = out.ops,
                                    .op_count = mlp->op_count,
                                    .slots = out.slots,
                                    .slot_count = mlp->slot_count,
                                    .buffer_count = 3,
                                    .buffer_columns = columns,
                                    .rows_max = mlp->request->rows_max};
    return EVQ_OK;
}

static enum evq_status mlp_build(const struct evq_model_request *request, struct evq_model *model,
                                 struct evq_error *err)
{
    struct mlp mlp = {.request = request, .model = model};

    if (request->head.kind == EVQ_OP_SCORE) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "an mlp reads samples, but this task scores tokens");
    }
    mlp.modules = evq_arena_array(model->arena, MODULES_MAX, sizeof(*mlp.modules));
    if (mlp.modules == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "model of '%s'", request->checkpoint->path);
    }
    enum evq_status status = read_options(&mlp, err);
    if (status == EVQ_OK) {
        status = collect(&mlp, err);
    }
    if (status == EVQ_OK) {
        status = order(&mlp, err);
    }
    if (status == EVQ_OK) {
        status = check_between(&mlp, err);
    }
    return status == EVQ_OK ? make_plan(&mlp, err) : status;
}

static enum evq_status mlp_check(const struct evq_task_config *task, struct evq_error *err)
{
    const struct evq_model_request request = {.task = task};
    struct mlp mlp = {.request = &request};

    return read_options(&mlp, err);
}

const struct evq_model_family evq_model_mlp = {
    .name = "mlp", .options = option_keys, .check = mlp_check, .build = mlp_build};
