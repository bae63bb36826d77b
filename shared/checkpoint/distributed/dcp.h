/* Selects the weights of a distributed checkpoint. Its names are flat; planner_data says where
 * their dots divide dicts. For dcp.c; one thread. */
#ifndef EVQ_SHARED_CHECKPOINT_DISTRIBUTED_DCP_H
#define EVQ_SHARED_CHECKPOINT_DISTRIBUTED_DCP_H

#include "shared/checkpoint/torch/torch.h"

struct evq_dcp_path;

struct evq_dcp_selection {
    const struct evq_pickle_node *names; // state_dict_metadata: names and their descriptions.
    struct evq_dcp_path *paths;          // Sorted by name.
    size_t path_count;
    const char *top;       // Only names in this dict, whose name is removed from them; NULL: all.
    char variant_top[128]; // Buffer for top if it belongs to a variant.
    const char *key;       // Only names below this dotted path; NULL: as top says.
};

/* Whether a value of state_dict_metadata describes a tensor. */
bool evq_dcp_is_tensor(const struct evq_pickle_node *node);

/*
 * Fills a selection whose names are set. It must not be moved afterwards. Uses options->key, else
 * the variant, else the usual names, like evq_torch_select(). paths is planner_data, or no dict.
 * EVQ_E_NOT_FOUND lists what there is.
 */
enum evq_status evq_dcp_select(struct evq_dcp_selection *choice,
                               const struct evq_pickle_node *paths,
                               const struct evq_checkpoint_options *options,
                               struct evq_error *err) EVQ_CHECK_RESULT;
// Also after a failed evq_dcp_select().
void evq_dcp_selection_free(struct evq_dcp_selection *choice);

/* Whether name is selected. Its first *ret_skip bytes are the path to the weights. */
bool evq_dcp_is_selected(const struct evq_dcp_selection *choice, const struct evq_pickle_node *name,
                         size_t *ret_skip);

#endif
