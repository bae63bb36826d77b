/* Names that a pickle must not use. Any thread. */
#ifndef EVQ_SHARED_CHECKPOINT_TORCH_PICKLE_GLOBALS_H
#define EVQ_SHARED_CHECKPOINT_TORCH_PICKLE_GLOBALS_H

#include "shared/checkpoint/torch/pickle.h"

/* Whether module.name is useful only for an attack. Nothing is ever called here, so this list does
 * not protect evalq; it stops a harmful file from passing as a model. */
bool evq_pickle_denied(const char *module, const char *name);

/* Whether a call of this global with these arguments is an attack, although the global is allowed
 * (getattr). */
bool evq_pickle_call_denied(const struct evq_pickle_node *callable,
                            const struct evq_pickle_node *arguments);

#endif
