#include "worker/models/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "worker/tasks/task_options.h"

#define IGNORED_BYTES_MAX 1500 // Approximate length of the text that names the ignored tensors.
#define NAME_BYTES        160
#define SHAPE_BYTES       (EVQ_WANTED_RANK_MAX * 13 + 2)

struct weights { // The tensors while they are searched.
    const struct evq_model_request *request;
    const struct evq_checkpoint *checkpoint;
    const struct evq_wanted *wanted;
    size_t count;
    const struct evq_quantised *quantised;
    struct evq_arena *arena;
    int32_t outputs; // Of the model.
    char prefix[EVQ_CHECKPOINT_PREFIX_BYTES];
    bool *used; // One flag for each tensor of the checkpoint.
};

static const char *file_of(const struct weights *weights, const struct evq_tensor *tensor)
{
    const struct evq_checkpoint *checkpoint = weights->checkpoint;

    return tensor->file >= 0 && (size_t)tensor->file < checkpoint->file_count
               ? checkpoint->files[tensor->file].name
               : checkpoint->path;
}

/* Returns the number of dimensions. */
static int32_t expected_shape(const struct evq_wanted *wanted, int32_t shape[EVQ_WANTED_RANK_MAX])
{
    int32_t *inner = wanted->parts > 0 ? shape + 1 : shape;
    int32_t rank = 0;

    for (; wanted->shape[rank] > 0; rank++) {
        shape[rank] = wanted->shape[rank];
    }
    if (rank > 0) {
        return rank;
    }
    shape[0] = wanted->parts;
    if (wanted->kind == EVQ_SOURCE_MXFP4) {
        shape[1] = wanted->rows;
        shape[2] = wanted->columns / EVQ_MXFP4_BLOCK;
        shape[3] = EVQ_MXFP4_BLOCK / 2;
        return 4;
    }
    inner[0] = wanted->transposed ? wanted->columns : wanted->rows;
    inner[1] = wanted->transposed ? wanted->rows : wanted->columns;
    return (wanted->columns == 0 ? 1 : 2) + (wanted->parts > 0);
}

static void expected_text(const struct evq_wanted *wanted, char out[SHAPE_BYTES])
{
    int32_t shape[EVQ_WANTED_RANK_MAX];
    const int32_t rank = expected_shape(wanted, shape);
    int length = snprintf(out, SHAPE_BYTES, "[%d", (int)shape[0]);

    for (int32_t i = 1; i < rank; i++) { // All numbers always fit.
        length += snprintf(out + length, SHAPE_BYTES - (size_t)length, ", %d", (int)shape[i]);
    }
    (void)snprintf(out + length, SHAPE_BYTES - (size_t)length, "]");
}

/* A missing tensor will also be missing at the next attempt, so the status is a final one. */
static enum evq_status refuse_missing(const struct weights *weights,
                                      const struct evq_wanted *wanted, const char *what,
                                      struct evq_error *err)
{
    const struct evq_checkpoint *checkpoint = weights->checkpoint;
    char expected[SHAPE_BYTES];

    expected_text(wanted, expected);
    return evq_error_set(err, EVQ_E_INVALID, "'%s': %s, expected one of shape %s",
                         checkpoint->file_count == 1 ? checkpoint->files[0].name : checkpoint->path,
                         what, expected);
}

static enum evq_status find_prefix(struct weights *weights, struct evq_error *err)
{
    const struct evq_task_config *task = weights->request->task;
    const char *told = evq_pair_get(task->model, task->model_count, "prefix", NULL);
    struct evq_error fault = {0};
    size_t missing = 0;

    if (told != NULL) {
        const int length = snprintf(weights->prefix, sizeof(weights->prefix), "%s", told);
        return length >= 0 && (size_t)length < sizeof(weights->prefix)
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_INVALID, "model: prefix is longer than %zu bytes",
                                   sizeof(weights->prefix) - 1);
    }
    const char **names = evq_arena_array(weights->arena, weights->count, sizeof(*names));
    if (names == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu names", weights->count);
    }
    for (size_t i = 0; i < weights->count; i++) {
        names[i] = weights->wanted[i].name;
    }
    const enum evq_status status = evq_checkpoint_find_prefix(
        weights->checkpoint, names, weights->count, weights->prefix, &missing, &fault);
    if (status == EVQ_E_NOT_FOUND) {
        return refuse_missing(weights, &weights->wanted[missing], fault.message, err);
    }
    return status == EVQ_OK ? EVQ_OK
                            : evq_error_set(err, EVQ_E_INVALID, "'%s': %s (model: {prefix: ...})",
                                            weights->checkpoint->path, fault.message);
}

static void shape_text(const struct evq_tensor *tensor, char *out, size_t out_bytes)
{
    size_t at = 0;

    for (int32_t i = 0; i < tensor->rank && at < out_bytes; i++) {
        const int length =
            snprintf(out + at, out_bytes - at, "%s%" PRId64, i > 0 ? ", " : "", tensor->shape[i]);
        at += length > 0 ? (size_t)length : 0;
    }
    if (tensor->rank == 0) {
        out[0] = '\0';
    }
}

static enum evq_status check_shape(const struct weights *weights, const struct evq_wanted *wanted,
                                   const struct evq_tensor *tensor, struct evq_error *err)
{
    int32_t wants[EVQ_WANTED_RANK_MAX];
    bool same = true;
    const int32_t rank = expected_shape(wanted, wants);
    char shape[EVQ_TENSOR_RANK_MAX * 22];
    char expected[SHAPE_BYTES];

    for (int32_t i = 0; i < rank && tensor->rank == rank; i++) {
        same = same && tensor->shape[i] == wants[i];
    }
    if (tensor->rank == rank && same) {
        return EVQ_OK;
    }
    shape_text(tensor, shape, sizeof(shape));
    expected_text(wanted, expected);
    return evq_error_set(err, EVQ_E_INVALID, "tensor '%s' in '%s' has shape [%s], expected %s",
                         tensor->name, file_of(weights, tensor), shape, expected);
}

/* Finds the scales of a quantised tensor. */
static enum evq_status take_scale(struct weights *weights, const struct evq_wanted *wanted,
                                  struct evq_source *source, struct evq_error *err)
{
    const struct evq_checkpoint *checkpoint = weights->checkpoint;
    const struct evq_tensor *tensor = source->tensor;
    const struct evq_tensor *scale =
        wanted->kind == EVQ_SOURCE_MXFP4
            ? evq_checkpoint_find_below(checkpoint, weights->prefix, wanted->scale)
        : weights->quantised->method == EVQ_QUANTISED_FP8
            ? evq_checkpoint_find_below(checkpoint, tensor->name, "_scale_inv")
            : NULL;

    if (scale != NULL) {
        weights->used[scale - checkpoint->tensors] = true;
    }
    return evq_quantised_take(weights->quantised, file_of(weights, tensor), scale, source, err);
}

static enum evq_status take(struct weights *weights, const struct evq_wanted *wanted,
                            struct evq_source *source, struct evq_error *err)
{
    const struct evq_tensor *tensor =
        evq_checkpoint_find_below(weights->checkpoint, weights->prefix, wanted->name);

    if (tensor == NULL) { // The tensor is searched under the prefix of the option.
        const char *what = evq_arena_printf(weights->arena, "tensor '%s%s' is missing",
                                            weights->prefix, wanted->name);
        return refuse_missing(weights, wanted, what != NULL ? what : wanted->name, err);
    }
    const bool packed = wanted->kind == EVQ_SOURCE_MXFP4;
    if (packed ? tensor->dtype != EVQ_DTYPE_U8 : !evq_dtype_is_float(tensor->dtype)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "tensor '%s' in '%s' is %s, expected %s",
                             tensor->name, file_of(weights, tensor), tensor->dtype_name,
                             packed ? "U8" : "floating point");
    }
    weights->used[tensor - weights->checkpoint->tensors] = true;
    *source = (struct evq_source){.slot = wanted->slot,
                                  .first_row = wanted->first_row,
                                  .rows = wanted->rows,
                                  .kind = wanted->kind,
                                  .transposed = wanted->transposed,
                                  .part = wanted->part,
                                  .parts = wanted->parts,
                                  .tensor = tensor};
    const enum evq_status status = check_shape(weights, wanted, tensor, err);
    return status == EVQ_OK && weights->quantised->method != EVQ_QUANTISED_NONE
               ? take_scale(weights, wanted, source, err)
               : status;
}

static bool is_buffer(const char *name, const char *const *buffers)
{
    const size_t bytes = strlen(name);

    for (size_t i = 0; buffers[i] != NULL; i++) {
        const size_t end = strlen(buffers[i]);
        if (bytes >= end && strcmp(name + bytes - end, buffers[i]) == 0) {
            return true;
        }
    }
    return false;
}

bool evq_weights_told_to_ignore(const struct evq_task_config *task, const char *name)
{
    const char *item = NULL;
    size_t bytes = 0;

    for (size_t i = 0;
         evq_task_options_item(task->model, task->model_count, "ignore", i, &item, &bytes); i++) {
        if (strncmp(name, item, bytes) == 0) {
            return true;
        }
    }
    return false;
}

void evq_weights_add_ignored(struct evq_ignored *ignored, const struct evq_tensor *tensor)
{
    char name[NAME_BYTES];

    evq_error_escape(tensor->name, strlen(tensor->name), name, sizeof(name));
    if (ignored->text != NULL && strlen(ignored->text) < IGNORED_BYTES_MAX) {
        ignored->text = evq_arena_printf(ignored->arena, "%s%s%s", ignored->text,
                                         ignored->count > 0 ? ", " : "", name);
        ignored->named += ignored->text != NULL;
    }
    ignored->count++;
}

enum evq_status evq_weights_tell_ignored(const struct evq_ignored *ignored, struct evq_model *model,
                                         struct evq_error *err)
{
    const char *text = ignored->text;

    if (text != NULL && ignored->named < ignored->count) {
        text = evq_arena_printf(ignored->arena, "%s and %zu more", text,
                                ignored->count - ignored->named);
    }
    if (text == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "names of %zu tensors", ignored->count);
    }
    model->ignored = text;
    return EVQ_OK;
}

/* TRL's value head is beside the model's own head and does not change its scores. */
static bool is_value_head(const char *name)
{
    const char *at = strstr(name, "v_head.");

    return at != NULL && (at == name || at[-1] == '.');
}

/* Whether the tensor belongs to another copy of the model, such as averages or a teacher: the same
 * name exists under another prefix, and so does the embedding. */
static bool is_of_a_copy(const struct weights *weights, const char *head_name, const char *name)
{
    char prefix[EVQ_CHECKPOINT_PREFIX_BYTES];
    const size_t bytes = strlen(name);

    for (size_t i = 0; i <= weights->count; i++) {
        const char *own = i < weights->count ? weights->wanted[i].name : head_name;
        const size_t own_bytes = own != NULL ? strlen(own) : bytes + 1;
        if (own_bytes > bytes || bytes - own_bytes >= sizeof(prefix) ||
            strcmp(name + bytes - own_bytes, own) != 0) {
            continue;
        }
        (void)snprintf(prefix, sizeof(prefix), "%.*s", (int)(bytes - own_bytes), name);
        if (evq_checkpoint_find_below(weights->checkpoint, prefix, weights->wanted[0].name) !=
            NULL) {
            return true;
        }
    }
    return false;
}

/* A matrix or vector as long as the model's outputs produces scores of its own. If it is there,
 * this model's head may not be what was trained. */
static bool may_be_a_head(const struct weights *weights, const struct evq_tensor *tensor)
{
    return (tensor->rank == 1 || tensor->rank == 2) &&
           (tensor->shape[0] == weights->outputs ||
            tensor->shape[tensor->rank - 1] == weights->outputs);
}

static enum evq_status check_surplus(const struct weights *weights, const char *head_name,
                                     const char *const *buffers, struct evq_model *model,
                                     struct evq_error *err)
{
    const size_t prefix_bytes = strlen(weights->prefix);
    struct evq_ignored ignored = {.arena = model->arena, .text = ""};

    for (size_t i = 0; i < weights->checkpoint->tensor_count; i++) {
        const struct evq_tensor *tensor = &weights->checkpoint->tensors[i];
        if (weights->used[i] || is_buffer(tensor->name, buffers)) {
            continue;
        }
        const bool inside = strncmp(tensor->name, weights->prefix, prefix_bytes) == 0;
        if (is_value_head(tensor->name) ||
            evq_weights_told_to_ignore(weights->request->task, tensor->name) ||
            (!inside &&
             (!may_be_a_head(weights, tensor) || is_of_a_copy(weights, head_name, tensor->name)))) {
            evq_weights_add_ignored(&ignored, tensor);
            continue;
        }
        return evq_error_set(
            err, EVQ_E_INVALID,
            inside ? "tensor '%s' in '%s' has no place in the model that its configuration "
                     "describes (%zu tensors were expected; model: {ignore: [NAME]} leaves one out)"
                   : "tensor '%s' in '%s' is not one of the %zu tensors of the model that was "
                     "found, but it is as long as the model's outputs. If it is a head, it changes "
                     "the "
                     "scores: evaluate the checkpoint with a command or persistent evaluator. If "
                     "not, leave it out (model: {ignore: [NAME]})",
            tensor->name, file_of(weights, tensor), weights->count);
    }
    return evq_weights_tell_ignored(&ignored, model, err);
}

enum evq_status evq_weights_find(const struct evq_model_request *request,
                                 const struct evq_wanted *wanted, size_t count,
                                 const char *head_name, const char *const *buffers,
                                 const struct evq_quantised *quantised, struct evq_model *model,
                                 struct evq_error *err)
{
    struct weights weights = {.request = request,
                              .checkpoint = request->checkpoint,
                              .wanted = wanted,
                              .count = count,
                              .quantised = quantised,
                              .outputs = model->outputs,
                              .arena = model->arena};
    const size_t tensor_count = request->checkpoint->tensor_count;

    struct evq_source *sources = evq_arena_array(model->arena, count, sizeof(*sources));
    weights.used = evq_arena_array(model->arena, tensor_count > 0 ? tensor_count : 1, sizeof(bool));
    if (sources == NULL || weights.used == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sources of %zu weights", count);
    }
    enum evq_status status = find_prefix(&weights, err);
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        status = take(&weights, &wanted[i], &sources[i], err);
    }
    if (status == EVQ_OK && head_name != NULL) {
        model->unused = evq_checkpoint_find_below(weights.checkpoint, weights.prefix, head_name);
        model->tied = model->unused != NULL ? sources[0].tensor : NULL;
        if (model->unused != NULL) {
            weights.used[model->unused - weights.checkpoint->tensors] = true;
        }
    }
    if (status == EVQ_OK) {
        status = check_surplus(&weights, head_name, buffers, model, err);
    }
    if (status == EVQ_OK) {
        model->sources = sources;
        model->source_count = count;
    }
    return status;
}
