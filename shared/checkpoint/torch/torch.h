/*
 * What the pickles of torch.save mean: which dict holds the weights, what a tensor is. For the
 * torch readers; one thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_TORCH_H
#define EVQ_SHARED_CHECKPOINT_TORCH_H

#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/torch/pickle.h"

/* Whether node is the global of a dtype ("torch.float32"); *ret_name is as safetensors spells it.
 */
bool evq_torch_dtype(const struct evq_pickle_node *node, const char **ret_name);

/* A tuple or list of integers of 0 or more, also wrapped in torch.Size; what is for the message. */
enum evq_status evq_torch_integers(const struct evq_pickle_node *node, const char *what,
                                   int64_t values[EVQ_TENSOR_RANK_MAX], int32_t *ret_count,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* What a persistent id says of a storage. */
struct evq_torch_storage {
    const struct evq_pickle_node *key; // TEXT: names the storage.
    const char *dtype_name;            // As safetensors spells it.
    bool untyped;                      // Counted in bytes.
    uint64_t elements;
    uint64_t part_first; // A legacy stream may name a part of a storage, in elements.
    uint64_t part_elements;
};

/* EVQ_E_UNSUPPORTED: elements of an unknown type. */
enum evq_status evq_torch_storage(const struct evq_pickle_node *node,
                                  struct evq_torch_storage *ret_storage,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* A tensor as the pickle describes it; where its storage lies is the archive's business. */
struct evq_torch_view {
    struct evq_torch_storage storage; // Counted in elements of the tensor.
    uint64_t first_element;           // Of the whole storage.
    struct evq_tensor tensor;         // dtype, dtype_name, rank, shape, strides, contiguous, bytes.
};

/* Whether node is a tensor of any kind, also one that is not read. */
bool evq_torch_is_tensor(const struct evq_pickle_node *node);

/* Reads the description, checked against its own storage size. EVQ_E_UNSUPPORTED: quantised, sparse
 * and the like. */
enum evq_status evq_torch_view(const struct evq_pickle_node *node, struct evq_torch_view *ret_view,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Which weights of a pickle are asked for. */
struct evq_torch_selection {
    const struct evq_pickle_node *weights;
    char prefix[128]; // Only names that begin with it, which they then leave out; "": all.
};

/* options->key, else the variant's dict, else the usual names, else the root. */
enum evq_status evq_torch_select(const struct evq_pickle_node *root,
                                 const struct evq_checkpoint_options *options,
                                 struct evq_torch_selection *ret_choice,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* The keys under which weights are looked for, in order, from i = 0; NULL after the last. */
const char *evq_torch_usual_key(size_t i);
/* The same for a variant ("ema"), written to out; false after the last. */
bool evq_torch_variant_key(const char *variant, size_t i, char *out, size_t out_bytes);
/* Whether variant asks for the weights as they are trained. */
bool evq_torch_is_regular(const char *variant);

/*
 * The value at a dotted path below node; a key may hold dots itself. Passes through dicts, the
 * attributes of objects, and lists by index. NULL: none. scalar.c.
 */
const struct evq_pickle_node *evq_torch_find(const struct evq_pickle_node *node, const char *path);

/* Is given each tensor below a value, with its dotted name (valid during the call). */
typedef enum evq_status (*evq_torch_visitor)(void *context, const char *name,
                                             const struct evq_pickle_node *tensor,
                                             struct evq_error *err);

/*
 * Walks dicts, lists, tuples, pickled modules and TorchScript objects below node; other objects are
 * passed over. Bounded in depth and in steps, since a pickle may hold cycles. A visitor that
 * returns other than EVQ_OK ends the walk.
 */
enum evq_status evq_torch_walk(const struct evq_pickle_node *node, evq_torch_visitor visitor,
                               void *context, struct evq_error *err) EVQ_CHECK_RESULT;

/* What the kinds of torch files have in common: tensors whose storages the file places. */
struct evq_torch_source {
    struct evq_checkpoint *checkpoint;
    /* Sets the view's tensor.file and tensor.offset; the storage's size is compared. */
    enum evq_status (*place)(const struct evq_torch_source *source, struct evq_torch_view *view,
                             struct evq_error *err);
};

/* Adds the weights that options ask for to the checkpoint. */
enum evq_status evq_torch_add(const struct evq_torch_source *source,
                              const struct evq_pickle_node *root,
                              const struct evq_checkpoint_options *options,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* The one tensor of an archive that is the part [origin, origin + bytes) of a file: all but its
 * name. */
enum evq_status evq_torch_zip_tensor(struct evq_checkpoint *checkpoint, int32_t file,
                                     uint64_t origin, uint64_t bytes, struct evq_tensor *ret_tensor,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

#endif
