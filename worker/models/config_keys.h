/*
 * Checks which keys of a configuration a model family knows. An unknown key may change the numbers
 * (such as Granite's logits_scaling in a Llama), so the configuration is refused. Any thread.
 */
#ifndef EVQ_WORKER_MODELS_CONFIG_KEYS_H
#define EVQ_WORKER_MODELS_CONFIG_KEYS_H

#include "worker/models/config.h"

/*
 * Keeps a fault in config that names the first key of its file that is neither in keys nor in more
 * (both NULL-terminated; more may be NULL) and that may change numbers. Null and empty lists are
 * ignored, and so are a few keys with one value (such as a multiplier of 1).
 */
void evq_config_keys_check(struct evq_model_config *config, const char *family,
                           const char *const *keys, const char *const *more);

/* Why a model type of Transformers with Llama's keys and names computes differently; NULL: no such
 * reason is known. */
const char *evq_config_keys_other(const char *model_type);

#endif
