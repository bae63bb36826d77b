/*
 * Which keys of a configuration a family of models knows. A key that it does not know may change
 * the numbers (Granite's logits_scaling in a Llama), so the configuration is refused. Any thread.
 */
#ifndef EVQ_WORKER_MODELS_CONFIG_KEYS_H
#define EVQ_WORKER_MODELS_CONFIG_KEYS_H

#include "worker/models/config.h"

/*
 * Keeps a fault in config that names the first key of its file that is neither in keys nor in more
 * (NULL-terminated, more may be NULL), nor among those that cannot change a number. A null or an
 * empty list says nothing, and a few keys are known to say nothing with one value (a multiplier of
 * 1).
 */
void evq_model_keys_check(struct evq_model_config *config, const char *family,
                          const char *const *keys, const char *const *more);

/* Why a model type of Transformers that has a Llama's keys and names computes otherwise; NULL: it
 * is not known to. */
const char *evq_model_keys_other(const char *model_type);

#endif
