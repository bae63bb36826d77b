/* The calls of MLflow's REST API, version 2.0, that the sink `mlflow` needs. One thread.
 */
#ifndef EVQ_LOGGER_SINKS_MLFLOW_API_H
#define EVQ_LOGGER_SINKS_MLFLOW_API_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "logger/sinks/http.h"

#define EVQ_MLFLOW_ID_BYTES_MAX    64           // Id of a run or experiment, with the NUL.
#define EVQ_MLFLOW_METRICS_MAX     1000         // Of one call,
#define EVQ_MLFLOW_BATCH_BYTES_MAX (900u << 10) // with all their text: the server's limit is 1 MB.
#define EVQ_MLFLOW_KEY_BYTES_MAX   250
#define EVQ_MLFLOW_ERROR_BYTES_MAX 64

struct evq_mlflow;

struct evq_mlflow_config { // Copied.
    const char *who;       // "sink 'mlflow'"
    const char *uri;       // http://host:5000
    const char *token;     // NULL: none. Goes as Bearer.
    const char *experiment;
    struct evq_http_config http; // The rest of it; who is ignored.
};

enum evq_status evq_mlflow_open(const struct evq_mlflow_config *config,
                                struct evq_mlflow **ret_mlflow,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_mlflow_close(struct evq_mlflow *mlflow); // Accepts NULL.

/* Finds the run for evalq's results of `key` (QUEUE/RUN) by its tags, or creates it under name.
 * Makes the experiment if it does not exist. A run with the tag for results is preferred, and the
 * oldest of several, so that one run gets all results even after crashes. Errors of this and the
 * next: EVQ_E_RETRY, EVQ_E_IO, EVQ_E_TIMEOUT; EVQ_E_INVALID: the server refuses what was sent, or
 * the run is gone.
 */
enum evq_status evq_mlflow_run(struct evq_mlflow *mlflow, const char *key, const char *name,
                               char ret_run[EVQ_MLFLOW_ID_BYTES_MAX],
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* metrics: the members of a JSON array, at most EVQ_MLFLOW_METRICS_MAX, as evq_mlflow_metric()
 * makes them. */
enum evq_status evq_mlflow_log(struct evq_mlflow *mlflow, const char *run, const char *metrics,
                               size_t bytes, struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether two names differ only in ASCII signs that MLflow allows in no key. */
bool evq_mlflow_alike(const char *a, const char *b) EVQ_CHECK_RESULT;

/* Appends one metric as JSON. A character that MLflow allows in no key becomes an underscore.
 * Letters of common scripts stay. If another letter is lost, or if another metric of the result
 * would get the same key (alone is false), the key ends in a hash of its name. model: id of the
 * logged model that gets the metric too, or ""; only the run gets a number that is not finite. */
void evq_mlflow_metric(struct evq_buffer *out, const char *key, bool alone, double value,
                       int64_t timestamp_ms, int64_t step, const char *model);

/*
 * Makes one call; body NULL: none. The caller calls json_decref() on *ret_document in any case; it
 * is NULL if the reply is not a JSON object. error: the server's error code, or "".
 */
enum evq_status evq_mlflow_call(struct evq_mlflow *mlflow, const char *method, const char *path,
                                struct evq_buffer *body, json_t **ret_document,
                                char error[EVQ_MLFLOW_ERROR_BYTES_MAX],
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Copies the text document[outer][inner], or document[inner] if outer is NULL. EVQ_E_RETRY: there
 * is no such text. */
enum evq_status evq_mlflow_text(const struct evq_mlflow *mlflow, const json_t *document,
                                const char *outer, const char *inner,
                                char out[EVQ_MLFLOW_ID_BYTES_MAX],
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Appends the value of a query parameter, percent-encoded. */
void evq_mlflow_query(struct evq_buffer *path, const char *text);

/* Appends {"key": key, "value": value}, the form of a tag and of a parameter. */
void evq_mlflow_pair(struct evq_buffer *body, const char *key, const char *value);

#endif
