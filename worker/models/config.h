/*
 * What is known of a model beside its tensors: the task's `model` options first, then config.json
 * beside the weights (or the file `config_path`), then plain values in the checkpoint (model_args,
 * hyper_parameters). Names are dotted paths ("rope_parameters.factor", "architectures.0"); null
 * reads as nothing. The readers keep the first fault and go on with their fallback, so a family
 * asks once, at the end. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODEL_CONFIG_H
#define EVQ_WORKER_MODEL_CONFIG_H

#include "shared/checkpoint/checkpoint.h"
#include "shared/config/config.h"
#include "worker/models/config_json.h"

struct evq_model_config;

/*
 * checkpoint NULL: only the options are known, and nothing counts as missing. EVQ_E_CORRUPT,
 * EVQ_E_LIMIT: the file, the byte and what was expected; no config.json is no error, a missing
 * config_path is (EVQ_E_NOT_FOUND). Free with evq_model_config_free().
 */
enum evq_status evq_model_config_open(const struct evq_checkpoint *checkpoint,
                                      const struct evq_task_config *task,
                                      struct evq_model_config **ret_config,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_model_config_free(struct evq_model_config *config); // Accepts NULL.

/* Whether there is a value, of whatever kind. */
bool evq_model_config_has(struct evq_model_config *config, const char *name);

/* Whether the file has anything under this name, a null too. */
bool evq_model_config_holds(const struct evq_model_config *config, const char *name);

/* Whether the task's options say it. */
bool evq_model_config_told(const struct evq_model_config *config, const char *name);

/* Whether it says null, where leaving it out would mean something else. */
bool evq_model_config_null(struct evq_model_config *config, const char *name);

/* All values of the file in its order, nested ones behind their group: how many there are. */
size_t evq_model_config_values(const struct evq_model_config *config,
                               const struct evq_model_value **ret_values);

/* From least to most; missing: fallback, or a fault where fallback is below least. */
int64_t evq_model_config_integer(struct evq_model_config *config, const char *name, int64_t least,
                                 int64_t most, int64_t fallback);
/* A finite number above zero; missing: fallback, or a fault where that is NaN. */
double evq_model_config_real(struct evq_model_config *config, const char *name, double fallback);
bool evq_model_config_flag(struct evq_model_config *config, const char *name, bool fallback);
/* As long as the configuration lives; missing: fallback, or a fault where that is NULL. */
const char *evq_model_config_text(struct evq_model_config *config, const char *name,
                                  const char *fallback);

/* Keeps a fault of the family's own, unless there is one already. */
void evq_model_config_refuse(struct evq_model_config *config, enum evq_status status,
                             const char *format, ...) EVQ_PRINTF(3, 4);
/* The first fault, or EVQ_OK. */
enum evq_status evq_model_config_fault(const struct evq_model_config *config,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
