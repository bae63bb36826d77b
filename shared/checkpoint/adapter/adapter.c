/*
 * Reads a PEFT directory: adapter_config.json and adapter_model.safetensors or .bin. The base model
 * is elsewhere. The result lists the base's tensors, each with the change that the adapter makes.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/checkpoint/adapter/adapter_config.h"
#include "shared/checkpoint/adapter/adapter_merge.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/root_open.h"

#define CONFIG_BYTES_MAX ((uint64_t)4 << 20)
#define PREFIX           "base_model.model." // PEFT puts this before the names of the base model.
#define SKIP_MAX         3 // The base may lack up to this many leading parts of its names.

struct adapter {
    struct evq_checkpoint *checkpoint;
    struct evq_adapter_config config;
    struct evq_tensor *tensors; // The adapter's own tensors, sorted by name.
    size_t count;
    int skip;           // Leading parts that the base's names lack; -1: not known yet.
    bool square_turned; // Square weights are [in, out].
    struct evq_error *err;
};

static enum evq_status fault(const struct adapter *adapter, const struct evq_tensor *tensor,
                             enum evq_status status, const char *what)
{

    return evq_error_set(adapter->err, status, "adapter tensor '%.160s' %s", tensor->name, what);
}

static bool ends_with(const char *text, size_t bytes, const char *end)
{
    const size_t end_bytes = strlen(end);

    return bytes >= end_bytes && memcmp(text + bytes - end_bytes, end, end_bytes) == 0;
}

/* Returns the name in the base: without PEFT's prefix and wrappers. NULL: out of memory. */
static char *base_name(const struct adapter *adapter, const char *name, size_t bytes,
                       const char *end)
{
    static const char *const wrappers[] = {".base_layer.", ".modules_to_save."};

    if (strncmp(name, PREFIX, strlen(PREFIX)) == 0 && bytes > strlen(PREFIX)) {
        name += strlen(PREFIX);
        bytes -= strlen(PREFIX);
    }
    char *made = evq_arena_printf(adapter->checkpoint->arena, "%.*s%s", (int)bytes, name, end);
    for (size_t i = 0; made != NULL && i < sizeof(wrappers) / sizeof(wrappers[0]); i++) {
        char *at = strstr(made, wrappers[i]);
        if (at != NULL) {
            const char *rest = at + strlen(wrappers[i]) - 1;
            memmove(at, rest, strlen(rest) + 1);
        }
    }
    return made;
}

/* Finds the base's tensor of this name. The base may lack leading parts of names; then all names
 * lack the same number of parts. */
static struct evq_tensor *find_base(struct adapter *adapter, const char *name)
{
    for (int skip = 0; skip <= SKIP_MAX && name != NULL; skip++) {
        const struct evq_tensor *found = adapter->skip >= 0 && adapter->skip != skip
                                             ? NULL
                                             : evq_checkpoint_find(adapter->checkpoint, name);
        if (found != NULL) {
            adapter->skip = skip;
            return &adapter->checkpoint->tensors[found - adapter->checkpoint->tensors];
        }
        name = strchr(name, '.');
        name = name == NULL ? NULL : name + 1;
    }
    return NULL;
}

static const struct evq_tensor *find_own(const struct adapter *adapter, const char *name)
{
    const struct evq_tensor wanted = {.name = name};

    return bsearch(&wanted, adapter->tensors, adapter->count, sizeof(wanted),
                   evq_tensor_compare_names);
}

/* The kinds of LoRA pairs, by the ends of their names. */
static const struct {
    const char *a;
    const char *b;
    bool embedding; // An embedding: A is [rank, rows of the weight].
} kinds[] = {{".lora_A.weight", ".lora_B.weight", false},
             {".lora_embedding_A", ".lora_embedding_B", true}};
#define KIND_COUNT (sizeof(kinds) / sizeof(kinds[0]))

/* A pair of LoRA matrices and the weight that they change. */
struct pair {
    const struct evq_tensor *a;
    const struct evq_tensor *b;
    struct evq_tensor *weight;
    const char *module; // Name of the module in the base.
    bool embedding;
};

static enum evq_status find_pair(struct adapter *adapter, const struct evq_tensor *tensor,
                                 size_t kind, struct pair *pair)
{
    const size_t bytes = strlen(tensor->name) - strlen(kinds[kind].a);
    char *other = evq_arena_printf(adapter->checkpoint->arena, "%.*s%s", (int)bytes, tensor->name,
                                   kinds[kind].b);
    char *weight = base_name(adapter, tensor->name, bytes, ".weight");
    char *module = base_name(adapter, tensor->name, bytes, "");

    if (other == NULL || weight == NULL || module == NULL) {
        return evq_error_set(adapter->err, EVQ_E_LIMIT, "the adapter's names take too much memory");
    }
    *pair = (struct pair){.a = tensor,
                          .b = find_own(adapter, other),
                          .weight = find_base(adapter, weight),
                          .module = module,
                          .embedding = kinds[kind].embedding};
    if (pair->b == NULL) {
        return fault(adapter, tensor, EVQ_E_CORRUPT, "has no lora_B beside it");
    }
    if (pair->weight == NULL) {
        return fault(adapter, tensor, EVQ_E_NOT_FOUND,
                     "changes a weight that the base does not have: it is another base");
    }
    if (pair->weight->rank != 2 || pair->a->rank != 2 || pair->b->rank != 2) {
        return fault(adapter, tensor, EVQ_E_UNSUPPORTED,
                     "or its weight does not have two dimensions (a convolution?)");
    }
    if (pair->a->shape[0] != pair->b->shape[1] || pair->a->shape[0] == 0) {
        return fault(adapter, tensor, EVQ_E_CORRUPT, "has another rank than its lora_B");
    }
    if (!evq_merge_takes(pair->weight->dtype) || !evq_merge_takes(pair->a->dtype) ||
        pair->a->dtype != pair->b->dtype) {
        return fault(adapter, tensor, EVQ_E_UNSUPPORTED,
                     "or its weight is of a type that is not merged (quantised?)");
    }
    return EVQ_OK;
}

static bool fits(const struct pair *pair, bool turned)
{
    const int64_t in = pair->a->shape[1];
    const int64_t out = pair->b->shape[0];

    return pair->weight->shape[0] == (turned ? in : out) &&
           pair->weight->shape[1] == (turned ? out : in);
}

static enum evq_status merge_pair(struct adapter *adapter, const struct pair *pair)
{
    const bool square = pair->weight->shape[0] == pair->weight->shape[1];
    const bool turned = pair->embedding || (square ? adapter->square_turned : !fits(pair, false));
    struct evq_merge *merge = evq_arena_alloc(adapter->checkpoint->arena, sizeof(*merge));

    if (merge == NULL) {
        return evq_error_set(adapter->err, EVQ_E_NOMEM, "an adapter");
    }
    if (!fits(pair, turned)) {
        return fault(adapter, pair->a, EVQ_E_CORRUPT,
                     "and its lora_B do not have the shape of the base's weight");
    }
    if (pair->weight->merge != NULL) {
        return fault(adapter, pair->a, EVQ_E_CORRUPT, "changes a weight that another one changes");
    }
    *merge = (struct evq_merge){
        .base = *pair->weight,
        .a = *pair->a,
        .b = *pair->b,
        .scaling = evq_adapter_config_scaling(&adapter->config, pair->module, pair->a->shape[0]),
        .transposed = turned};
    pair->weight->merge = merge;
    pair->weight->adapted = true;
    pair->weight->contiguous = false; // The bytes in the file are not the merged weight.
    return EVQ_OK;
}

/* Replaces a tensor of the base: a trained bias, or a module of modules_to_save. */
static enum evq_status replace(struct adapter *adapter, const struct evq_tensor *tensor)
{
    char *name = base_name(adapter, tensor->name, strlen(tensor->name), "");

    if (strstr(tensor->name, "lora_") != NULL) {
        return fault(adapter, tensor, EVQ_E_UNSUPPORTED,
                     "belongs to a kind of LoRA that is not merged: merge it first, in a `prepare` "
                     "command");
    }
    if (name == NULL) {
        return evq_error_set(adapter->err, EVQ_E_LIMIT, "the adapter's names take too much memory");
    }
    struct evq_tensor *weight = find_base(adapter, name);
    if (weight == NULL) {
        return fault(adapter, tensor, EVQ_E_NOT_FOUND,
                     "replaces what the base does not have (tied weights, or another base): merge "
                     "it first, in a `prepare` command");
    }
    if (weight->rank != tensor->rank ||
        memcmp(weight->shape, tensor->shape, sizeof(tensor->shape[0]) * (size_t)tensor->rank) !=
            0) {
        return fault(adapter, tensor, EVQ_E_CORRUPT, "has another shape than the base's");
    }
    const char *kept = weight->name;
    *weight = *tensor;
    weight->name = kept;
    weight->adapted = true;
    return EVQ_OK;
}

static size_t kind_of(const struct evq_tensor *tensor, bool *ret_second)
{
    const size_t bytes = strlen(tensor->name);

    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (ends_with(tensor->name, bytes, kinds[i].a) ||
            ends_with(tensor->name, bytes, kinds[i].b)) {
            *ret_second = ends_with(tensor->name, bytes, kinds[i].b);
            return i;
        }
    }
    return KIND_COUNT;
}

/*
 * Finds out whether square weights are [in, out]. fan_in_fan_out in the file describes only the
 * last module that PEFT looked at. Weights that are not square show their direction, and square
 * ones follow them if they agree; otherwise the file decides.
 */
static enum evq_status learn_direction(struct adapter *adapter)
{
    bool turned = false;
    bool straight = false;

    for (size_t i = 0; i < adapter->count; i++) {
        struct pair pair;
        bool second = false;
        const size_t kind = kind_of(&adapter->tensors[i], &second);
        if (kind == KIND_COUNT || second || kinds[kind].embedding) {
            continue;
        }
        enum evq_status status = find_pair(adapter, &adapter->tensors[i], kind, &pair);
        if (status != EVQ_OK) {
            return status;
        }
        if (pair.weight->shape[0] != pair.weight->shape[1]) {
            straight = straight || fits(&pair, false);
            turned = turned || fits(&pair, true);
        }
    }
    adapter->square_turned = turned != straight ? turned : adapter->config.fan_in_fan_out;
    return EVQ_OK;
}

static enum evq_status apply_tensor(struct adapter *adapter, const struct evq_tensor *tensor)
{
    struct pair pair;
    bool second = false;
    const size_t kind = kind_of(tensor, &second);

    if (kind == KIND_COUNT) {
        return replace(adapter, tensor);
    }
    if (second) { // It is merged together with its A.
        const size_t bytes = strlen(tensor->name) - strlen(kinds[kind].b);
        char *other = evq_arena_printf(adapter->checkpoint->arena, "%.*s%s", (int)bytes,
                                       tensor->name, kinds[kind].a);
        return other != NULL && find_own(adapter, other) != NULL
                   ? EVQ_OK
                   : fault(adapter, tensor, EVQ_E_CORRUPT, "has no lora_A beside it");
    }
    const enum evq_status status = find_pair(adapter, tensor, kind, &pair);
    return status == EVQ_OK ? merge_pair(adapter, &pair) : status;
}

/* Moves the tensors after the first base_count to adapter->tensors, sorted. They are the adapter's
 * own. */
static enum evq_status take_own(struct adapter *adapter, size_t base_count)
{
    struct evq_checkpoint *checkpoint = adapter->checkpoint;

    adapter->count = checkpoint->tensor_count - base_count;
    checkpoint->tensor_count = base_count;
    if (adapter->count == 0) {
        return evq_error_set(adapter->err, EVQ_E_CORRUPT, "the adapter holds no tensors");
    }
    adapter->tensors =
        evq_arena_array(checkpoint->arena, adapter->count, sizeof(*adapter->tensors));
    if (adapter->tensors == NULL) {
        return evq_error_set(adapter->err, EVQ_E_LIMIT, "the adapter's %zu tensors",
                             adapter->count);
    }
    memcpy(adapter->tensors, checkpoint->tensors + base_count,
           adapter->count * sizeof(*adapter->tensors));
    qsort(adapter->tensors, adapter->count, sizeof(*adapter->tensors), evq_tensor_compare_names);
    return EVQ_OK;
}

static enum evq_status load_config(struct adapter *adapter, int32_t file)
{
    const uint64_t bytes = adapter->checkpoint->files[file].bytes;

    if (bytes == 0 || bytes > CONFIG_BYTES_MAX) {
        return evq_error_set(adapter->err, bytes == 0 ? EVQ_E_INCOMPLETE : EVQ_E_LIMIT,
                             "adapter_config.json holds %llu bytes, allowed 1 to %llu",
                             (unsigned long long)bytes, (unsigned long long)CONFIG_BYTES_MAX);
    }
    char *text = malloc((size_t)bytes);
    if (text == NULL) {
        return evq_error_set(adapter->err, EVQ_E_NOMEM, "adapter_config.json");
    }
    enum evq_status status =
        evq_checkpoint_read_bytes(adapter->checkpoint, file, 0, text, (size_t)bytes, adapter->err);
    if (status == EVQ_OK) {
        status = evq_adapter_config_read(text, (size_t)bytes, adapter->checkpoint->arena,
                                         &adapter->config, adapter->err);
    }
    free(text);
    return status;
}

/* Reads adapter_model.safetensors, or adapter_model.bin if that does not exist. */
static enum evq_status read_weights(struct adapter *adapter, int root_fd, const char *folder)
{
    const struct evq_checkpoint_options options = {.key = ""};
    const char *name = "adapter_model.safetensors";
    struct stat info;
    int fd = -1;
    enum evq_status status =
        evq_root_open_part(root_fd, folder, name, EVQ_E_INCOMPLETE, &fd, &info, adapter->err);

    if (status == EVQ_E_INCOMPLETE) {
        name = "adapter_model.bin";
        status =
            evq_root_open_part(root_fd, folder, name, EVQ_E_INCOMPLETE, &fd, &info, adapter->err);
    }
    if (status != EVQ_OK) {
        return status == EVQ_E_INCOMPLETE
                   ? evq_error_set(adapter->err, EVQ_E_INCOMPLETE,
                                   "adapter_model.safetensors (or .bin) is not there (yet)")
                   : status;
    }
    status = evq_format_read(adapter->checkpoint, name, fd, &info, &options, adapter->err);
    if (status != EVQ_OK) {
        (void)evq_error_prefix(adapter->err, "'%s'", name); // The status stays what it is.
    }
    return status;
}

static enum evq_status apply(struct adapter *adapter, size_t base_count)
{
    enum evq_status status = take_own(adapter, base_count);

    if (status == EVQ_OK) {
        // Sorts the base's tensors for lookups.
        status = evq_builder_finish(adapter->checkpoint, adapter->err);
    }
    if (status == EVQ_OK) {
        status = learn_direction(adapter);
    }
    for (size_t i = 0; i < adapter->count && status == EVQ_OK; i++) {
        status = apply_tensor(adapter, &adapter->tensors[i]);
    }
    adapter->checkpoint->format = "peft-lora";
    return status;
}

enum evq_status evq_adapter_read(struct evq_checkpoint *checkpoint, int root_fd, const char *folder,
                                 int fd, const struct stat *info,
                                 const struct evq_checkpoint_options *options,
                                 evq_read_path_fn read_base, struct evq_error *err)
{
    struct adapter adapter = {.checkpoint = checkpoint, .skip = -1, .err = err};
    int32_t file = 0;
    enum evq_status status;

    if (checkpoint->file_count > 0) {
        (void)close(fd); // Never read from.
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "the base is an adapter itself");
    }
    status = evq_builder_add_file(checkpoint, "adapter_config.json", fd, info, &file, err);
    if (status == EVQ_OK) {
        status = load_config(&adapter, file);
    }
    if (status == EVQ_E_UNSUPPORTED && options->files_only) {
        status = EVQ_OK; // An evaluator other than the native one may know this kind.
    }
    if (status == EVQ_OK && !options->files_only) {
        status = evq_adapter_base_read(checkpoint, root_fd, adapter.config.base, options, read_base,
                                       err);
    }
    const size_t base_count = checkpoint->tensor_count;
    if (status == EVQ_OK) {
        status = read_weights(&adapter, root_fd, folder);
    }
    if (options->files_only) {
        checkpoint->tensor_count = 0; // Completeness depends on the files only.
        return status;
    }
    return status == EVQ_OK ? apply(&adapter, base_count) : status;
}
