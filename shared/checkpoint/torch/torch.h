/* Interprets the pickles of torch.save: which dict holds the weights, and what a tensor is. For the
 * torch readers; one thread. */
#ifndef EVQ_SHARED_CHECKPOINT_TORCH_TORCH_H
#define EVQ_SHARED_CHECKPOINT_TORCH_TORCH_H

#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/torch/pickle.h"

/* Whether node is the global of a dtype ("torch.float32"). *ret_name is its safetensors name. */
bool evq_torch_dtype(const struct evq_pickle_node *node, const char **ret_name);

/* Reads a tuple or list of non-negative integers, which torch.Size may wrap. `what` is for the
 * message. */
enum evq_status evq_torch_integers(const struct evq_pickle_node *node, const char *what,
                                   int64_t values[EVQ_TENSOR_RANK_MAX], int32_t *ret_count,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* A storage as a persistent id describes it. */
struct evq_torch_storage {
    const struct evq_pickle_node *key; // TEXT: names the storage.
    const char *dtype_name;            // Its safetensors name.
    bool untyped;                      // Sizes are in bytes.
    uint64_t elements;
    uint64_t part_first; // A legacy stream may name a part of a storage, in elements.
    uint64_t part_elements;
};

/* EVQ_E_UNSUPPORTED: elements of an unknown type. */
enum evq_status evq_torch_storage(const struct evq_pickle_node *node,
                                  struct evq_torch_storage *ret_storage,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* A tensor as the pickle describes it. The archive knows where its storage is. */
struct evq_torch_view {
    struct evq_torch_storage storage; // In elements of the tensor.
    uint64_t first_element;           // Index in the whole storage.
    // Only dtype, dtype_name, rank, shape, strides, contiguous and bytes are set.
    struct evq_tensor tensor;
};

/* Whether node is a tensor of any kind, also one that cannot be read. */
bool evq_torch_is_tensor(const struct evq_pickle_node *node);

/* Reads the description of a tensor and checks it against the size of its storage.
 * EVQ_E_UNSUPPORTED: quantised, sparse and similar. */
enum evq_status evq_torch_view(const struct evq_pickle_node *node, struct evq_torch_view *ret_view,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* The selected weights of a pickle. */
struct evq_torch_selection {
    const struct evq_pickle_node *weights;
    char prefix[128]; // Select only names with this prefix, and remove it; "": all.
};

/* Selects options->key, else the variant's dict, else the usual names, else the root. */
enum evq_status evq_torch_select(const struct evq_pickle_node *root,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_torch_selection *ret_choice,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* The i-th key under which weights are looked for; NULL after the last. */
const char *evq_torch_usual_key(size_t i);
/* The same for a variant ("ema"), written to out; false after the last. */
bool evq_torch_variant_key(const char *variant, size_t i, char *out, size_t out_bytes);
/* Whether variant means the trained weights. */
bool evq_torch_is_regular(const char *variant);

/* Returns the value at a dotted path below node, or NULL. Keys may contain dots. Passes through
 * dicts, attributes of objects, and lists by index. */
const struct evq_pickle_node *evq_torch_find(const struct evq_pickle_node *node, const char *path);

/* Called with each tensor below a value and its dotted name (valid during the call). */
typedef enum evq_status (*evq_torch_visitor)(void *context, const char *name,
                                             const struct evq_pickle_node *tensor,
                                             struct evq_error *err);

/*
 * Visits every tensor below node: in dicts, lists, tuples, pickled modules and TorchScript objects.
 * Other objects are skipped. Depth and steps are bounded, because a pickle may contain cycles. A
 * status other than EVQ_OK from the visitor ends the walk.
 */
enum evq_status evq_torch_walk(const struct evq_pickle_node *node, evq_torch_visitor visitor,
                               void *context, struct evq_error *err) EVQ_CHECK_RESULT;

/* A torch file whose tensors are added. The file says where storages are. */
struct evq_torch_source {
    struct evq_checkpoint *checkpoint;
    /* Sets tensor.file and tensor.offset of the view, and compares the size of its storage. */
    enum evq_status (*place)(const struct evq_torch_source *source, struct evq_torch_view *view,
                             struct evq_error *err);
};

/* Adds the weights that options select to the checkpoint. */
enum evq_status evq_torch_add(const struct evq_torch_source *source,
                              const struct evq_pickle_node *root,
                              const struct evq_checkpoint_options *options,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Reads the one tensor of an archive in [origin, origin + bytes) of a file. Sets all but its name.
 */
enum evq_status evq_torch_zip_tensor(struct evq_checkpoint *checkpoint, int32_t file,
                                     uint64_t origin, uint64_t bytes, struct evq_tensor *ret_tensor,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

#endif
