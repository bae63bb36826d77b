/*
 * Names that a pickle may not ask for. Any thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_PICKLE_GLOBALS_H
#define EVQ_SHARED_CHECKPOINT_PICKLE_GLOBALS_H

#include "shared/checkpoint/torch/pickle.h"

/*
 * True when module.name has no use in a checkpoint but an attack. Nothing is ever called here, so
 * this list keeps nobody safe: it only stops a file that means harm from passing as a model.
 */
bool evq_pickle_denied(const char *module, const char *name);

/* Whether calling this global with arguments is an attack, though the global itself may be honest
 * (getattr). */
bool evq_pickle_call_denied(const struct evq_pickle_node *callable,
                            const struct evq_pickle_node *arguments);

#endif
