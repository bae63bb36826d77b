/*
 * What is known about a model besides its tensors. Sources, in this order: the task's `model`
 * options; config.json beside the weights (or the file `config_path`); plain values in the
 * checkpoint (model_args, hyper_parameters). Names are dotted paths ("rope_parameters.factor",
 * "architectures.0"), and null counts as missing. The readers keep the first fault and continue
 * with the fallback, so a family checks for a fault once, at the end. Not for sharing between
 * threads.
 */
#ifndef EVQ_WORKER_MODELS_CONFIG_H
#define EVQ_WORKER_MODELS_CONFIG_H

#include "shared/checkpoint/checkpoint.h"
#include "shared/config/config.h"
#include "worker/models/config_json.h"

struct evq_model_config;

/*
 * checkpoint NULL: only the options are known, and nothing counts as missing. EVQ_E_CORRUPT,
 * EVQ_E_LIMIT: the message names the file, the byte and what was expected. A missing config.json is
 * not an error, but a missing config_path is (EVQ_E_NOT_FOUND). Free it with
 * evq_model_config_free().
 */
enum evq_status evq_model_config_open(const struct evq_checkpoint *checkpoint,
                                      const struct evq_task_config *task,
                                      struct evq_model_config **ret_config,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_model_config_free(struct evq_model_config *config); // Accepts NULL.

/* Whether there is a value of any kind. */
bool evq_model_config_has(struct evq_model_config *config, const char *name);

/* Whether the file has an entry of this name, including null. */
bool evq_model_config_holds(const struct evq_model_config *config, const char *name);

/* Whether the task's options set it. */
bool evq_model_config_told(const struct evq_model_config *config, const char *name);

/* Whether the value is null, for keys where that differs from a missing key. */
bool evq_model_config_null(struct evq_model_config *config, const char *name);

/* All values of the file in its order; nested values follow their group. Returns their number. */
size_t evq_model_config_values(const struct evq_model_config *config,
                               const struct evq_model_value **ret_values);

/* An integer from least to most. Missing: fallback, or a fault if fallback is below least. */
int64_t evq_model_config_integer(struct evq_model_config *config, const char *name, int64_t least,
                                 int64_t most, int64_t fallback);
/* A finite number above zero. Missing: fallback, or a fault if fallback is NaN. */
double evq_model_config_real(struct evq_model_config *config, const char *name, double fallback);
bool evq_model_config_flag(struct evq_model_config *config, const char *name, bool fallback);
/* The text, valid as long as the configuration. Missing: fallback, or a fault if fallback is NULL.
 */
const char *evq_model_config_text(struct evq_model_config *config, const char *name,
                                  const char *fallback);

/* Keeps a fault that the family found, unless there is one already. */
void evq_model_config_refuse(struct evq_model_config *config, enum evq_status status,
                             const char *format, ...) EVQ_PRINTF(3, 4);
/* The first fault, or EVQ_OK. */
enum evq_status evq_model_config_fault(const struct evq_model_config *config,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
