/*
 * Which tensors of a distributed checkpoint are the weights that are asked for: its names are flat,
 * and a list beside them tells where their dots divide dicts. For dcp.c; one thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_DCP_H
#define EVQ_SHARED_CHECKPOINT_DCP_H

#include "shared/checkpoint/torch/torch.h"

struct evq_dcp_path;

struct evq_dcp_selection {
    const struct evq_pickle_node *names; // state_dict_metadata: names and what they stand for.
    struct evq_dcp_path *paths;          // Sorted by name.
    size_t path_count;
    const char *top; // Only what is in this dict, which its names leave out; NULL: everything.
    char variant_top[128]; // Where that is a variant's.
    const char *key;       // Only what is under this dotted path; NULL: as top says.
};

/* Whether a value of state_dict_metadata describes a tensor. */
bool evq_dcp_is_tensor(const struct evq_pickle_node *node);

/*
 * Fills choice, whose names are set and which stays where it is: by options->key, else the variant,
 * else the usual names; as evq_torch_select() does. paths is planner_data, or no dict.
 * EVQ_E_NOT_FOUND names what there is.
 */
enum evq_status evq_dcp_select(struct evq_dcp_selection *choice,
                               const struct evq_pickle_node *paths,
                               const struct evq_checkpoint_options *options,
                               struct evq_error *err) EVQ_CHECK_RESULT;
void evq_dcp_selection_free(struct evq_dcp_selection *choice); // Also after a failed choose.

/* Whether name is chosen; *ret_skip bytes of it are the path to the weights. */
bool evq_dcp_is_selected(const struct evq_dcp_selection *choice, const struct evq_pickle_node *name,
                         size_t *ret_skip);

#endif
