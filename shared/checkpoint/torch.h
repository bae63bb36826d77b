/*
 * What the pickles of torch.save mean: which dict holds the weights, what a tensor is. For the
 * torch readers; one thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_TORCH_H
#define EVQ_SHARED_CHECKPOINT_TORCH_H

#include "shared/checkpoint/directory.h"
#include "shared/checkpoint/pickle.h"

/* A tensor as the pickle describes it; where its storage lies is the archive's business. */
struct evq_torch_view {
    const struct evq_pickle_node *key; // TEXT: names the storage.
    uint64_t storage_elements;
    uint64_t first_element;
    struct evq_tensor tensor; // dtype, dtype_name, rank, shape, strides, contiguous, bytes.
};

/* Whether node is a tensor of any kind, also one that is not read. */
bool evq_torch_is_tensor(const struct evq_pickle_node *node);

/* Reads the description, checked against its own storage size. EVQ_E_UNSUPPORTED: quantised, sparse
 * and the like. */
enum evq_status evq_torch_view(const struct evq_pickle_node *node, struct evq_torch_view *ret_view,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* The value that holds the asked weights: options->key, else the variant's dict, else the usual
 * names, else the root. */
enum evq_status evq_torch_select(const struct evq_pickle_node *root,
                                 const struct evq_checkpoint_options *options,
                                 const struct evq_pickle_node **ret_weights,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

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

#endif
