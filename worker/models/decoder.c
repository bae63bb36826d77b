#include "worker/models/decoder.h"

#include <limits.h>
#include <string.h>

#include "worker/models/config_keys.h"
#include "worker/models/decoder_plan.h"
#include "worker/models/weights.h"

#define EXPERTS_OF_ALL_LAYERS_MAX    400000 // The plan has two weights for each expert.
#define HEAD_NORMS_OF_ALL_LAYERS_MAX 400000 // Each is a tensor that the plan names.

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
    {"relu2", EVQ_ACT_RELU2},
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
                            "silu, relu, relu2, tanh or sigmoid",
                            name, shown);
    return EVQ_ACT_NONE;
}

const char *const evq_decoder_options[] = {"family",      "key",    "base",     "adapter", "prefix",
                                           "config_path", "ignore", "ignore.#", NULL};

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

/* The first tensor whose name ends so; NULL: there is none. */
static const struct evq_tensor *find_ending(const struct evq_checkpoint *checkpoint,
                                            const char *name)
{
    for (size_t i = 0; i < checkpoint->tensor_count && name != NULL; i++) {
        const struct evq_tensor *tensor = &checkpoint->tensors[i];
        const size_t bytes = strlen(tensor->name);
        if (bytes >= strlen(name) && strcmp(tensor->name + bytes - strlen(name), name) == 0) {
            return tensor;
        }
    }
    return NULL;
}

/* Conv1D stores [in, out]. A matrix that is not square shows which form the checkpoint has. */
static bool stands_transposed(const struct evq_checkpoint *checkpoint,
                              const struct evq_decoder_names *names,
                              const struct evq_decoder *shape, struct evq_arena *arena)
{
    const char *name = evq_arena_printf(arena, "%s0.%s.weight", names->layer, names->qkv);
    const int64_t rows = ((int64_t)shape->heads + 2 * (int64_t)shape->kv_heads) * shape->head_dim;
    const struct evq_tensor *tensor = find_ending(checkpoint, name);

    return tensor != NULL && tensor->rank == 2 && tensor->shape[0] == shape->hidden &&
           tensor->shape[1] == rows;
}

static const char *head_of(const struct evq_model_request *request,
                           const struct evq_decoder_names *names, struct evq_arena *arena)
{
    const char *name =
        names->other_head != NULL ? evq_arena_printf(arena, "%s.weight", names->other_head) : NULL;

    return name != NULL && find_ending(request->checkpoint, name) != NULL ? names->other_head
                                                                          : names->head;
}

/* Whether all experts of a layer are in one tensor. */
static bool has_joined_experts(const struct evq_checkpoint *checkpoint,
                               const struct evq_decoder_names *names, struct evq_arena *arena)
{
    return names->joined_up != NULL &&
           (names->expert == NULL ||
            find_ending(checkpoint, evq_arena_printf(arena, ".%s", names->joined_up)) != NULL);
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
    if (shape->expert_count > shape->experts || shape->experts > EVQ_EXPERTS_MAX) {
        evq_model_config_refuse(
            config, EVQ_E_INVALID, "%d experts for each token of %d, expected at most %d and %d",
            (int)shape->expert_count, (int)shape->experts, (int)shape->experts, EVQ_EXPERTS_MAX);
    }
    if ((int64_t)shape->layers * shape->experts > EXPERTS_OF_ALL_LAYERS_MAX) {
        evq_model_config_refuse(config, EVQ_E_LIMIT, "%d layers of %d experts, expected at most %d",
                                (int)shape->layers, (int)shape->experts, EXPERTS_OF_ALL_LAYERS_MAX);
    }
    const int64_t head_norms = shape->qk_norm == EVQ_QK_NORM_EACH
                                   ? (int64_t)shape->layers * (shape->heads + shape->kv_heads)
                                   : 0;
    if (head_norms > HEAD_NORMS_OF_ALL_LAYERS_MAX) {
        evq_model_config_refuse(config, EVQ_E_LIMIT,
                                "%lld norms of single heads in all layers, expected at most %d",
                                (long long)head_norms, HEAD_NORMS_OF_ALL_LAYERS_MAX);
    }
    if (wide > INT32_MAX || shape->inner > INT32_MAX / 2 || shape->expert_inner > INT32_MAX / 2) {
        evq_model_config_refuse(config, EVQ_E_LIMIT, "%d heads of %d values are too wide",
                                (int)shape->heads, (int)shape->head_dim);
    }
    if (shape->rope != NULL && (shape->rope->turned < 2 || shape->rope->turned % 2 != 0)) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "heads are %d wide and %d of their values rotate, expected an even "
                                "number from 2 on",
                                (int)shape->head_dim, (int)shape->rope->turned);
    }
    if (!shape->both && !evq_model_config_flag(config, "is_causal", true)) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "is_causal is false, expected a causal decoder");
    }
}

/* Reads how the weights are quantised, and whether the shape and the request allow it. */
static void check_quantised(struct evq_model_config *config, const struct evq_decoder_plan *plan,
                            struct evq_quantised *quantised)
{
    const struct evq_decoder *shape = plan->shape;

    evq_quantised_read(config, plan->names->expert == NULL && plan->names->joined_up != NULL,
                       quantised);
    if (quantised->method == EVQ_QUANTISED_MXFP4 &&
        (shape->hidden % EVQ_MXFP4_BLOCK != 0 || shape->expert_inner % EVQ_MXFP4_BLOCK != 0)) {
        evq_model_config_refuse(config, EVQ_E_INVALID,
                                "hidden_size is %d and experts are %d wide, expected multiples of "
                                "%d because they are MXFP4",
                                (int)shape->hidden, (int)shape->expert_inner, EVQ_MXFP4_BLOCK);
    }
    if (quantised->method != EVQ_QUANTISED_NONE && plan->request->names_only) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "the weights are quantised, expected plain ones");
    }
}

static enum evq_status check_request(const struct evq_model_family *family,
                                     const struct evq_model_request *request,
                                     const struct evq_decoder *shape, struct evq_error *err)
{
    const bool classifies = shape->classes > 0;

    if (!request->names_only &&
        request->head.kind != (classifies ? EVQ_OP_CROSS_ENTROPY : EVQ_OP_SCORE)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             classifies
                                 ? "a %s model chooses a class, but this task needs another model "
                                   "(expected a task of type text_classification or, for images, "
                                   "classification)"
                                 : "a %s model scores tokens, but this task needs a model of "
                                   "samples (expected a task such as perplexity, or model: "
                                   "{family: mlp})",
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

static enum evq_status tell_names(const struct evq_decoder_plan *plan, struct evq_model *model,
                                  struct evq_error *err)
{
    const char **names = evq_arena_array(plan->arena, plan->wanted_count, sizeof(*names));

    if (names == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu names", plan->wanted_count);
    }
    for (size_t i = 0; i < plan->wanted_count; i++) {
        if (plan->wanted[i].part == 0) { // The other parts have the same name.
            names[model->name_count++] = plan->wanted[i].name;
        }
    }
    model->names = names;
    return EVQ_OK;
}

static enum evq_status find_weights(struct evq_decoder_plan *plan,
                                    const struct evq_quantised *quantised, struct evq_model *model,
                                    struct evq_error *err)
{
    const bool tied = plan->shape->tied && plan->shape->classes == 0;
    const char *head = tied ? evq_arena_printf(plan->arena, "%s.weight", plan->head) : NULL;

    const enum evq_status status =
        evq_weights_find(plan->request, plan->wanted, plan->wanted_count, head,
                         plan->names->buffers, quantised, model, err);
    return status == EVQ_OK && tied ? check_adapted(plan->request, model, err) : status;
}

enum evq_status evq_decoder_build(const struct evq_model_family *family,
                                  const struct evq_model_request *request, struct evq_model *model,
                                  struct evq_error *err)
{
    struct evq_decoder shape = {0};
    struct evq_quantised quantised = {0};
    struct evq_model_config *config = NULL;
    struct evq_decoder_plan plan = {.request = request,
                                    .shape = &shape,
                                    .names = family->decoder->names,
                                    .arena = model->arena};

    enum evq_status status =
        evq_model_config_open(request->checkpoint, request->task, &config, err);
    if (status == EVQ_OK) {
        family->decoder->read(config, model->arena, &shape);
        check_shape(config, &shape);
        check_quantised(config, &plan, &quantised);
        evq_config_keys_check(config, family->name, family->decoder->keys,
                              family->decoder->more_keys);
        status = evq_model_config_fault(config, err);
    }
    evq_model_config_free(config);
    if (status == EVQ_OK) {
        status = check_request(family, request, &shape, err);
    }
    if (status == EVQ_OK) {
        plan.inside = stands_inside(request, plan.names, plan.arena) ? plan.names->inside : "";
        plan.head = head_of(request, plan.names, plan.arena);
        plan.joined = has_joined_experts(request->checkpoint, plan.names, plan.arena);
        plan.packed = quantised.method == EVQ_QUANTISED_MXFP4;
        plan.transposed = plan.names->conv1d &&
                          stands_transposed(request->checkpoint, plan.names, &shape, plan.arena);
        status = evq_decoder_plan_make(&plan, model, err);
    }
    if (status == EVQ_OK) {
        status = request->names_only ? tell_names(&plan, model, err)
                                     : find_weights(&plan, &quantised, model, err);
    }
    return status;
}

enum evq_status evq_decoder_check(const struct evq_decoder_kind *kind,
                                  const struct evq_task_config *task, struct evq_error *err)
{
    struct evq_model_config *config = NULL;
    struct evq_decoder shape = {0};
    struct evq_arena *arena = evq_arena_new(0);

    enum evq_status status = arena != NULL ? evq_model_config_open(NULL, task, &config, err)
                                           : evq_error_set(err, EVQ_E_NOMEM, "model options");
    if (status == EVQ_OK) {
        kind->read(config, arena, &shape);
        status = evq_model_config_fault(config, err);
    }
    evq_model_config_free(config);
    evq_arena_free(arena);
    return status;
}
