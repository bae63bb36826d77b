#include "worker/convert/tensor_names.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "worker/models/config_json.h"
#include "worker/models/model.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)

struct choice {
    const struct evq_tensor_names_request *request;
    struct evq_arena *arena;
    const char **names; // What the model needs.
    size_t name_count;
    struct evq_named_tensor *tensors;
    size_t count;
};

/* Names of a family that the native engine knows. Any failure means that it does not know it. */
static void names_of_family(struct choice *choice)
{
    const struct evq_pair option = {.key = "config_path", .value = choice->request->config_path};
    const struct evq_task_config task = {
        .name = "", .type = "", .model = &option, .model_count = 1};
    const struct evq_model_request request = {.checkpoint = choice->request->checkpoint,
                                              .task = &task,
                                              .head = {.kind = EVQ_OP_SCORE},
                                              .rows_max = 1,
                                              .length_max = 1,
                                              .names_only = true};
    struct evq_model *model = NULL;

    if (evq_model_build(&request, &model, NULL) != EVQ_OK) {
        return;
    }
    const char **names = evq_arena_array(choice->arena, model->name_count + 1, sizeof(*names));
    for (size_t i = 0; names != NULL && i < model->name_count; i++) {
        names[i] = evq_arena_strdup(choice->arena, model->names[i]);
        if (names[i] == NULL) {
            names = NULL;
        }
    }
    if (names != NULL) {
        choice->names = names;
        choice->name_count = model->name_count;
    }
    evq_model_free(model);
}

/* Whether config.json ties the head to the embedding, at its top or for the text part. */
static bool head_is_tied(const struct choice *choice)
{
    struct evq_model_value *values = NULL;
    struct evq_buffer text;
    size_t count = 0;
    bool tied = false;

    evq_buffer_init(&text, CONFIG_BYTES_MAX + 1);
    if (evq_file_read(AT_FDCWD, choice->request->config_path, 0, CONFIG_BYTES_MAX, &text, NULL) ==
            EVQ_OK &&
        evq_model_config_json(choice->arena, (char *)text.data, text.bytes, &values, &count,
                              NULL) == EVQ_OK) {
        for (size_t i = 0; i < count; i++) {
            const bool named = strcmp(values[i].name, "tie_word_embeddings") == 0 ||
                               strcmp(values[i].name, "text_config.tie_word_embeddings") == 0;
            tied = tied || (named && values[i].kind == EVQ_MODEL_VALUE_FLAG &&
                            strcmp(values[i].text, "true") == 0);
        }
    }
    evq_buffer_free(&text);
    return tied;
}

/* Buffers, such as masks and frequencies, are in some files and not in others. */
static bool may_be_missing(const struct evq_tensor *tensor, bool tied)
{
    return !evq_dtype_is_float(tensor->dtype) ||
           evq_file_ends_with(tensor->name, "rotary_emb.inv_freq") ||
           evq_file_ends_with(tensor->name, ".masked_bias") ||
           (tied && evq_file_ends_with(tensor->name, "lm_head.weight"));
}

static enum evq_status names_of_base(struct choice *choice, struct evq_error *err)
{
    const struct evq_checkpoint *base = choice->request->base;
    const bool tied = head_is_tied(choice);

    choice->names = evq_arena_array(choice->arena, base->tensor_count + 1, sizeof(*choice->names));
    if (choice->names == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu names", base->tensor_count);
    }
    for (size_t i = 0; i < base->tensor_count; i++) {
        if (!may_be_missing(&base->tensors[i], tied)) {
            choice->names[choice->name_count++] = base->tensors[i].name;
        }
    }
    return EVQ_OK;
}

static enum evq_status check_shape(const struct choice *choice, const char *name,
                                   const struct evq_tensor *tensor, struct evq_error *err)
{
    const struct evq_tensor *other = choice->request->base != NULL && choice->request->base_config
                                         ? evq_checkpoint_find(choice->request->base, name)
                                         : NULL;
    char shown[2][200] = {"", ""};

    if (other == NULL ||
        (other->rank == tensor->rank &&
         memcmp(other->shape, tensor->shape, (size_t)tensor->rank * sizeof(*tensor->shape)) == 0)) {
        return EVQ_OK;
    }
    for (int k = 0; k < 2; k++) {
        const struct evq_tensor *one = k == 0 ? tensor : other;
        size_t at = 0;
        for (int32_t i = 0; i < one->rank && at < sizeof(shown[0]); i++) {
            at += (size_t)snprintf(shown[k] + at, sizeof(shown[0]) - at, "%s%lld",
                                   i > 0 ? ", " : "", (long long)one->shape[i]);
        }
    }
    return evq_error_set(err, EVQ_E_INVALID,
                         "the tensor '%s' has the shape [%s], and [%s] in its base '%s'", name,
                         shown[0], shown[1], choice->request->base->path);
}

/* Takes the tensors of the names, which all stand under one prefix. */
static enum evq_status take_named(struct choice *choice, struct evq_error *err)
{
    const struct evq_checkpoint *checkpoint = choice->request->checkpoint;
    const struct evq_checkpoint *base = choice->request->base;
    char prefix[EVQ_CHECKPOINT_PREFIX_BYTES];
    struct evq_error fault;
    size_t missing = 0;

    enum evq_status status = evq_checkpoint_find_prefix(
        checkpoint, choice->names, choice->name_count, prefix, &missing, &fault);
    if (status == EVQ_E_NOT_FOUND) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' lacks the tensor '%s' of its model: %s",
                             checkpoint->path, choice->names[missing], fault.message);
    }
    if (status != EVQ_OK) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s': %s", checkpoint->path, fault.message);
    }
    for (size_t i = 0; i < choice->name_count && status == EVQ_OK; i++) {
        const char *name = choice->names[i];
        const struct evq_tensor *tensor = evq_checkpoint_find_below(checkpoint, prefix, name);
        status = check_shape(choice, name, tensor, err);
        choice->tensors[choice->count++] =
            (struct evq_named_tensor){.name = name, .tensor = tensor};
    }
    for (size_t i = 0; base != NULL && i < base->tensor_count && status == EVQ_OK; i++) {
        // Buffers and a tied head are taken if both have them.
        const char *name = base->tensors[i].name;
        const struct evq_tensor *tensor = evq_checkpoint_find_below(checkpoint, prefix, name);
        bool taken = tensor == NULL || !may_be_missing(&base->tensors[i], true);
        for (size_t k = 0; k < choice->count && !taken; k++) {
            taken = strcmp(choice->tensors[k].name, name) == 0;
        }
        if (!taken) {
            choice->tensors[choice->count++] =
                (struct evq_named_tensor){.name = name, .tensor = tensor};
        }
    }
    return status;
}

/* The bytes of a wrapper's prefix that all names have; 0: none. */
static size_t common_wrapper(const struct evq_checkpoint *checkpoint, size_t at)
{
    static const char *const wrappers[] = {"module.", "_orig_mod.", "_forward_module.",
                                           "_fsdp_wrapped_module."};

    for (size_t k = 0; k < sizeof(wrappers) / sizeof(wrappers[0]); k++) {
        const size_t bytes = strlen(wrappers[k]);
        size_t i = 0;
        while (i < checkpoint->tensor_count && strlen(checkpoint->tensors[i].name) > at + bytes &&
               strncmp(checkpoint->tensors[i].name + at, wrappers[k], bytes) == 0) {
            i++;
        }
        if (i == checkpoint->tensor_count) {
            return bytes;
        }
    }
    return 0;
}

static void take_all(struct choice *choice, bool strip)
{
    const struct evq_checkpoint *checkpoint = choice->request->checkpoint;
    size_t at = 0;
    size_t more = strip && checkpoint->tensor_count > 0 ? common_wrapper(checkpoint, 0) : 0;

    while (more > 0) {
        at += more;
        more = common_wrapper(checkpoint, at);
    }
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct evq_tensor *tensor = &checkpoint->tensors[i];
        choice->tensors[choice->count++] =
            (struct evq_named_tensor){.name = tensor->name + at, .tensor = tensor};
    }
}

enum evq_status evq_tensor_names_choose(const struct evq_tensor_names_request *request,
                                        struct evq_arena *arena,
                                        struct evq_named_tensor **ret_tensors, size_t *ret_count,
                                        struct evq_error *err)
{
    struct choice choice = {.request = request, .arena = arena};
    const char *folder = NULL;
    int root_fd = -1;
    enum evq_status status = EVQ_OK;

    const bool adapter = evq_checkpoint_adapter_base(request->checkpoint, &root_fd, &folder);
    if (!adapter) {
        names_of_family(&choice);
        if (choice.names == NULL && request->base != NULL) {
            status = names_of_base(&choice, err);
        }
    }
    const size_t room = choice.name_count + request->checkpoint->tensor_count +
                        (request->base != NULL ? request->base->tensor_count : 0) + 1;
    choice.tensors = evq_arena_array(arena, room, sizeof(*choice.tensors));
    if (choice.tensors == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu tensors", room);
    }
    if (status == EVQ_OK && choice.name_count > 0) {
        status = take_named(&choice, err);
    } else if (status == EVQ_OK) {
        take_all(&choice, !adapter);
    }
    *ret_tensors = choice.tensors;
    *ret_count = choice.count;
    return status;
}
