#include "worker/models/model.h"

#include <string.h>

#include "worker/models/config.h"
#include "worker/models/config_keys.h"
#include "worker/models/decoder.h"
#include "worker/models/rope.h"
#include "worker/tasks/task_options.h"

static const struct evq_model_family *const families[] = {
    &evq_model_mlp,        &evq_model_arcee,      &evq_model_bert,    &evq_model_cohere,
    &evq_model_cohere2,    &evq_model_distilbert, &evq_model_exaone4, &evq_model_gemma,
    &evq_model_gemma2,     &evq_model_gemma3,     &evq_model_glm,     &evq_model_glm4,
    &evq_model_gpt2,       &evq_model_gpt_neox,   &evq_model_gpt_oss, &evq_model_granite,
    &evq_model_llama,      &evq_model_ministral3, &evq_model_mistral, &evq_model_mixtral,
    &evq_model_modernbert, &evq_model_olmo2,      &evq_model_olmo3,   &evq_model_olmoe,
    &evq_model_phi3,       &evq_model_qwen2,      &evq_model_qwen3,   &evq_model_qwen3_moe,
    &evq_model_roberta,    &evq_model_seed_oss,   &evq_model_smollm3, &evq_model_stablelm,
    &evq_model_starcoder2, &evq_model_vit};

#define FAMILY_COUNT (sizeof(families) / sizeof(families[0]))
#define OPTIONS_MAX  128 // Most options of one family.

// Keys of configurations that are lists or groups, so they are no options.
static const char *const not_options[] = {"layer_types",     "mlp_only_layers", "no_rope_layers",
                                          "rope_parameters", "rope_scaling",    NULL};

static void add_options(const char *const *names, const char *known[OPTIONS_MAX], size_t *count)
{
    for (; names != NULL && *names != NULL && *count < OPTIONS_MAX - 1; names++) {
        bool listed = false;
        if (strcmp(*names, "rope_parameters") == 0) {
            add_options(evq_rope_options, known, count);
        }
        for (size_t i = 0; not_options[i] != NULL && !listed; i++) {
            listed = strcmp(not_options[i], *names) == 0;
        }
        if (!listed) {
            known[(*count)++] = *names;
        }
    }
}

/* The options of a family, NULL-terminated. Those of a decoder are its keys in configurations. */
static size_t read_options(const struct evq_model_family *family, const char *known[OPTIONS_MAX])
{
    size_t count = 0;

    add_options(family->options, known, &count);
    if (family->decoder != NULL) {
        add_options(evq_decoder_options, known, &count);
        add_options(family->decoder->keys, known, &count);
        add_options(family->decoder->more_keys, known, &count);
    }
    known[count] = NULL;
    return count;
}

static enum evq_status check_names(const struct evq_model_family *family,
                                   const struct evq_task_config *task, struct evq_error *err)
{
    const char *known[OPTIONS_MAX];

    (void)read_options(family, known);
    return evq_task_options_check(task->model, task->model_count, known, "model", err);
}

static enum evq_status check_values(const struct evq_model_family *family,
                                    const struct evq_task_config *task, struct evq_error *err)
{
    return family->decoder != NULL ? evq_decoder_check(family->decoder, task, err)
                                   : family->check(task, err);
}

static enum evq_status find_named(const char *name, const struct evq_model_family **ret_family,
                                  struct evq_error *err)
{
    const char *names[FAMILY_COUNT];

    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        names[i] = families[i]->name;
        if (strcmp(families[i]->name, name) == 0) {
            *ret_family = families[i];
            return EVQ_OK;
        }
    }
    return evq_task_options_unknown("model family", name, names, FAMILY_COUNT, err);
}

static const struct evq_model_family *of_architecture(const char *architecture)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        const char *const *known = families[i]->architectures;
        for (; known != NULL && *known != NULL; known++) {
            if (strcmp(*known, architecture) == 0) {
                return families[i];
            }
        }
    }
    return NULL;
}

static enum evq_status unknown(const struct evq_model_request *request, const char *told,
                               struct evq_error *err)
{
    char shown[80];

    evq_error_escape(told, strlen(told), shown, sizeof(shown));
    return evq_error_set(
        err, EVQ_E_UNSUPPORTED,
        "config.json of '%s' names the architecture %s, which the native evaluator does "
        "not know: evaluate it with a command or persistent evaluator, or name a family "
        "that it equals (model: {family: ...})",
        request->checkpoint->path, shown);
}

/* If a configuration contradicts itself, Transformers uses the type, and so do we. */
static enum evq_status check_type(const struct evq_model_request *request,
                                  const struct evq_model_family *family, const char *told,
                                  const char *type, struct evq_error *err)
{
    char shown[2][80];

    if (type[0] == '\0' || of_architecture(type) == family) {
        return EVQ_OK;
    }
    evq_error_escape(told, strlen(told), shown[0], sizeof(shown[0]));
    evq_error_escape(type, strlen(type), shown[1], sizeof(shown[1]));
    return evq_error_set(err, EVQ_E_INVALID,
                         "config.json of '%s' names the architecture %s, but its model_type is %s: "
                         "say which it is (model: {family: ...})",
                         request->checkpoint->path, shown[0], shown[1]);
}

/* Finds the family that config.json or the checkpoint names. An MLP names none. */
static enum evq_status find_told(const struct evq_model_request *request,
                                 const struct evq_model_family **ret_family, struct evq_error *err)
{
    struct evq_model_config *config = NULL;

    enum evq_status status =
        evq_model_config_open(request->checkpoint, request->task, &config, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *type = evq_model_config_text(config, "model_type", "");
    const char *told = evq_model_config_text(config, "architectures.0", type);
    status = evq_model_config_fault(config, err);
    if (status == EVQ_OK && told[0] != '\0') {
        *ret_family = of_architecture(told);
        status = *ret_family != NULL ? check_type(request, *ret_family, told, type, err)
                                     : unknown(request, told, err);
    } else if (status == EVQ_OK && evq_model_config_has(config, "n_head") &&
               evq_model_config_has(config, "block_size")) {
        *ret_family = &evq_model_gpt2; // The checkpoint has nanoGPT's model_args.
    } else if (status == EVQ_OK) {
        *ret_family = &evq_model_mlp;
    }
    evq_model_config_free(config);
    return status;
}

/* With the option `family`, users vouch for a type that evalq does not know. A type that evalq
 * knows to be different is refused. */
static void check_forced_type(struct evq_model_config *config,
                              const struct evq_model_family *family)
{
    const char *named = evq_model_config_text(config, "architectures.0", "");
    const char *type = evq_model_config_text(config, "model_type", named);
    const char *why = evq_config_keys_other(type);
    const struct evq_model_family *right = of_architecture(type);
    char shown[80];

    if (type[0] == '\0' || right == family || of_architecture(named) == family) {
        return;
    }
    right = right != NULL ? right : of_architecture(named);
    evq_error_escape(type, strlen(type), shown, sizeof(shown));
    if (right != NULL) {
        evq_model_config_refuse(config, EVQ_E_INVALID,
                                "the model is of type %s, not %s: leave out the option `family`",
                                shown, family->name);
    } else if (why != NULL || family->own_types_only) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "the model is of type %s, which computes otherwise than %s%s%s: "
                                "evaluate it with a command or persistent evaluator",
                                shown, family->name, why != NULL ? ", as " : "",
                                why != NULL ? why : "");
    }
}

static enum evq_status find_forced(const struct evq_model_request *request, const char *name,
                                   const struct evq_model_family **ret_family,
                                   struct evq_error *err)
{
    struct evq_model_config *config = NULL;

    enum evq_status status = find_named(name, ret_family, err);
    if (status != EVQ_OK || (*ret_family)->decoder == NULL) {
        return status;
    }
    status = evq_model_config_open(request->checkpoint, request->task, &config, err);
    if (status == EVQ_OK) {
        check_forced_type(config, *ret_family);
        status = evq_model_config_fault(config, err);
    }
    evq_model_config_free(config);
    return status;
}

static enum evq_status find_family(const struct evq_model_request *request,
                                   const struct evq_model_family **ret_family,
                                   struct evq_error *err)
{
    const struct evq_task_config *task = request->task;
    const char *name = evq_pair_get(task->model, task->model_count, "family", NULL);

    if (name != NULL) {
        return find_forced(request, name, ret_family, err);
    }
    enum evq_status status = find_told(request, ret_family, err);
    if (status == EVQ_OK && *ret_family == &evq_model_mlp && request->head.kind == EVQ_OP_SCORE) {
        status = evq_error_set(
            err, EVQ_E_INVALID,
            "nothing says what language model '%s' holds: no config.json is beside it, and the "
            "task names neither model: {family: ...} nor model: {config_path: ...}",
            request->checkpoint->path);
    }
    return status;
}

/* Names the option that no family knows, and the most similar one that exists. */
static enum evq_status check_keys(const struct evq_task_config *task, struct evq_error *err)
{
    const char *known[FAMILY_COUNT * OPTIONS_MAX] = {NULL};
    size_t count = 0;

    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        count += read_options(families[i], known + count);
    }
    const enum evq_status status =
        evq_task_options_check(task->model, task->model_count, known, "model", err);
    return status != EVQ_OK
               ? status
               : evq_error_set(err, EVQ_E_INVALID, "model: no family has all of these options");
}

/* If no family is named, any family that knows all the options will do; the checkpoint decides
 * later. */
enum evq_status evq_model_check(const struct evq_task_config *task, struct evq_error *err)
{
    const char *name = evq_pair_get(task->model, task->model_count, "family", NULL);
    const char *adapter = evq_pair_get(task->model, task->model_count, "adapter", "apply");
    const struct evq_model_family *family = NULL;

    if (strcmp(adapter, "apply") != 0 && strcmp(adapter, "ignore") != 0) {
        return evq_error_set(err, EVQ_E_INVALID, "model: adapter is '%s', expected apply or ignore",
                             adapter);
    }
    if (name != NULL) {
        enum evq_status status = find_named(name, &family, err);
        if (status == EVQ_OK) {
            status = check_names(family, task, err);
        }
        return status == EVQ_OK ? check_values(family, task, err) : status;
    }
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (check_names(families[i], task, NULL) != EVQ_OK) {
            continue;
        }
        if (check_values(families[i], task, NULL) == EVQ_OK) {
            return EVQ_OK;
        }
        family = family == NULL ? families[i] : family;
    }
    return family != NULL ? check_values(family, task, err) : check_keys(task, err);
}

enum evq_status evq_model_build(const struct evq_model_request *request,
                                struct evq_model **ret_model, struct evq_error *err)
{
    const struct evq_model_family *family = NULL;

    enum evq_status status = find_family(request, &family, err);
    if (status == EVQ_OK) {
        status = check_names(family, request->task, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_arena *arena = evq_arena_new(0);
    struct evq_model *model = arena != NULL ? evq_arena_alloc(arena, sizeof(*model)) : NULL;
    if (model == NULL) {
        evq_arena_free(arena);
        return evq_error_set(err, EVQ_E_NOMEM, "model of '%s'", request->checkpoint->path);
    }
    model->arena = arena;
    model->family = family->name;
    model->ignored = "";
    model->padding = -1;
    status = family->decoder != NULL ? evq_decoder_build(family, request, model, err)
                                     : family->build(request, model, err);
    if (status != EVQ_OK) {
        evq_model_free(model);
        return status;
    }
    *ret_model = model;
    return EVQ_OK;
}

void evq_model_free(struct evq_model *model)
{
    if (model != NULL) {
        evq_arena_free(model->arena);
    }
}

bool evq_model_same_weights(const struct evq_model *a, const struct evq_model *b)
{
    if (a->plan.slot_count != b->plan.slot_count || a->source_count != b->source_count) {
        return false;
    }
    for (size_t i = 0; i < a->plan.slot_count; i++) {
        const struct evq_weight_slot *p = &a->plan.slots[i];
        const struct evq_weight_slot *q = &b->plan.slots[i];
        if (p->rows != q->rows || p->columns != q->columns) {
            return false;
        }
    }
    for (size_t i = 0; i < a->source_count; i++) {
        const struct evq_source *x = &a->sources[i];
        const struct evq_source *y = &b->sources[i];
        if (x->slot != y->slot || x->first_row != y->first_row || x->rows != y->rows ||
            x->kind != y->kind || x->part != y->part || x->transposed != y->transposed ||
            x->tensor != y->tensor || x->scale != y->scale) {
            return false;
        }
    }
    return true;
}
