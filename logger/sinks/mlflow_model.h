/*
 * Logged models of MLflow 3: one for each checkpoint with results, so that MLflow shows its metrics
 * together and can sort checkpoints by them. One thread.
 */
#ifndef EVQ_LOGGER_SINKS_MLFLOW_MODEL_H
#define EVQ_LOGGER_SINKS_MLFLOW_MODEL_H

#include "logger/sinks/mlflow_api.h"
#include "shared/queue/result.h"

struct evq_mlflow_models;

/* Borrows server, which must outlive it. NULL: no memory. */
struct evq_mlflow_models *evq_mlflow_models_new(struct evq_mlflow *server, const char *queue);
void evq_mlflow_models_free(struct evq_mlflow_models *models); // Accepts NULL.

/* Finds the model of the result's checkpoint by its tag in the experiment of MLflow's run `run`, or
 * creates it there, and links it with the run. The same checkpoint always has the same model, also
 * after a crash. Errors: EVQ_E_RETRY, EVQ_E_IO, EVQ_E_TIMEOUT, EVQ_E_NOMEM; EVQ_E_INVALID: the run
 * is gone. */
enum evq_status evq_mlflow_model_find(struct evq_mlflow_models *models, const char *run,
                                      const struct evq_result *result,
                                      char ret_model[EVQ_MLFLOW_ID_BYTES_MAX],
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
