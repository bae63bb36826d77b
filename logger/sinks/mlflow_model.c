#include "logger/sinks/mlflow_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/pin_path.h"

#define KEPT    64 // Models that are remembered. Results of one checkpoint arrive close together.
#define TAG_KEY "evalq.checkpoint"

struct model {
    char key[EVQ_JOB_ID_BYTES_MAX + 80]; // QUEUE/RUN/STEP/VARIANT, with ~G for a later generation.
    char run[EVQ_MLFLOW_ID_BYTES_MAX];   // The id of MLflow's run.
    char id[EVQ_MLFLOW_ID_BYTES_MAX];
    bool linked; // The run has the model as an output.
    bool ready;
};

struct evq_mlflow_models {
    struct evq_mlflow *server;
    const char *queue;
    struct model kept[KEPT];
    size_t next; // Where the next model goes: the place of the oldest.
};

struct evq_mlflow_models *evq_mlflow_models_new(struct evq_mlflow *server, const char *queue)
{
    struct evq_mlflow_models *models = calloc(1, sizeof(*models));

    if (models != NULL) {
        models->server = server;
        models->queue = queue;
    }
    return models;
}

void evq_mlflow_models_free(struct evq_mlflow_models *models)
{
    free(models);
}

/* Gets the run (ret_run: the caller calls json_decref() in any case) and its experiment.
 * EVQ_E_INVALID: the run is gone. */
static enum evq_status run_get(struct evq_mlflow_models *models, const char *run, json_t **ret_run,
                               char experiment[EVQ_MLFLOW_ID_BYTES_MAX], struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX] = "";
    struct evq_buffer path;

    evq_buffer_init(&path, 0);
    evq_buffer_text(&path, "runs/get?run_id=");
    evq_mlflow_query(&path, run);
    const char *text = evq_buffer_string(&path);
    enum evq_status status =
        text == NULL ? evq_error_set(err, EVQ_E_NOMEM, "a request to MLflow")
                     : evq_mlflow_call(models->server, "GET", text, NULL, ret_run, error, err);
    evq_buffer_free(&path);
    const json_t *info = json_object_get(json_object_get(*ret_run, "run"), "info");
    const char *stage = json_string_value(json_object_get(info, "lifecycle_stage"));
    if (status != EVQ_OK) {
        // MLflow does not bring back a run that is missing, so a retry is useless.
        return strcmp(error, "RESOURCE_DOES_NOT_EXIST") == 0 ? EVQ_E_INVALID : status;
    }
    if (stage != NULL && strcmp(stage, "deleted") == 0) {
        return evq_error_set(err, EVQ_E_INVALID, "MLflow's run '%s' was deleted", run);
    }
    return evq_mlflow_text(models->server, info, NULL, "experiment_id", experiment, err);
}

/* Whether the run has the model as an output. */
static bool is_linked(const json_t *run, const char *id)
{
    const json_t *outputs = json_object_get(json_object_get(run, "run"), "outputs");
    const json_t *output = NULL;
    size_t i = 0;

    json_array_foreach(json_object_get(outputs, "model_outputs"), i, output)
    {
        const char *text = json_string_value(json_object_get(output, "model_id"));
        if (text != NULL && strcmp(text, id) == 0) {
            return true;
        }
    }
    return false;
}

/* Finds the oldest model with the key. model->id "": there is none. */
static enum evq_status model_search(struct evq_mlflow_models *models, const char *experiment,
                                    struct model *model, struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX];
    json_t *document = NULL;
    struct evq_buffer body;

    // The key consists of [A-Za-z0-9._/~-], so it needs no escapes in the filter.
    evq_buffer_init(&body, 0);
    evq_buffer_printf(&body,
                      "{\"experiment_ids\":[\"%s\"],\"filter\":\"tags.`" TAG_KEY "` = '%s'\","
                      "\"max_results\":1,\"order_by\":[{\"field_name\":"
                      "\"creation_timestamp\",\"ascending\":true}]}",
                      experiment, model->key);
    enum evq_status status = evq_mlflow_call(models->server, "POST", "logged-models/search", &body,
                                             &document, error, err);
    const json_t *info =
        json_object_get(json_array_get(json_object_get(document, "models"), 0), "info");
    if (status == EVQ_OK && info != NULL) {
        const char *state = json_string_value(json_object_get(info, "status"));
        model->ready = state != NULL && strcmp(state, "LOGGED_MODEL_READY") == 0;
        status = evq_mlflow_text(models->server, info, NULL, "model_id", model->id, err);
    } else if (status == EVQ_E_RETRY && err != NULL && strstr(err->message, "answers 404")) {
        const struct evq_error why = *err;
        status = evq_error_set(err, status, "%.200s; logged_models needs MLflow 3", why.message);
    }
    json_decref(document);
    evq_buffer_free(&body);
    return status;
}

static enum evq_status model_create(struct evq_mlflow_models *models, const char *experiment,
                                    const struct evq_result *result, int32_t generation,
                                    struct model *model, struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX];
    char name[EVQ_JOB_ID_BYTES_MAX + 32];
    char path[EVQ_JOB_PATH_BYTES_MAX + 128];
    char step[32];
    json_t *document = NULL;
    struct evq_buffer body;

    (void)snprintf(step, sizeof(step), "%" PRId64, result->step);
    const bool regular = strcmp(result->variant, "regular") == 0;
    int used = snprintf(name, sizeof(name) - 16, "%s-%s%s%s", result->run, step, regular ? "" : "-",
                        regular ? "" : result->variant);
    if (generation > 1) {
        (void)snprintf(name + used, 16, "~%" PRId32, generation);
    }
    for (char *at = name; (at = strpbrk(at, "./:%")) != NULL;) {
        *at = '_'; // MLflow does not accept these characters in a model's name.
    }
    (void)evq_pin_path_saved(result->checkpoint, path, sizeof(path));
    evq_buffer_init(&body, 0);
    evq_buffer_printf(&body, "{\"experiment_id\":\"%s\",\"source_run_id\":", experiment);
    evq_buffer_json_text(&body, model->run);
    evq_buffer_printf(&body, ",\"name\":\"%s\"", name);
    evq_buffer_text(&body, ",\"params\":[");
    evq_mlflow_pair(&body, "step", step);
    evq_buffer_text(&body, ",");
    evq_mlflow_pair(&body, "variant", result->variant);
    evq_buffer_text(&body, "],\"tags\":[");
    evq_mlflow_pair(&body, TAG_KEY, model->key);
    evq_buffer_text(&body, ",");
    evq_mlflow_pair(&body, "evalq.path", path);
    evq_buffer_text(&body, ",");
    evq_mlflow_pair(&body, "mlflow.model.isExternal", "true"); // MLflow has no files of it.
    evq_buffer_text(&body, "]}");
    enum evq_status status =
        evq_mlflow_call(models->server, "POST", "logged-models", &body, &document, error, err);
    if (status == EVQ_OK) {
        status = evq_mlflow_text(models->server, json_object_get(document, "model"), "info",
                                 "model_id", model->id, err);
    }
    json_decref(document);
    evq_buffer_free(&body);
    return status;
}

/* Links the model with its run, and marks it as ready, unless an earlier call did so. */
static enum evq_status model_finish(struct evq_mlflow_models *models, int64_t step,
                                    struct model *model, struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX];
    char path[EVQ_MLFLOW_ID_BYTES_MAX + 32];
    enum evq_status status = EVQ_OK;
    json_t *document = NULL;
    struct evq_buffer body;

    evq_buffer_init(&body, 0);
    if (!model->linked) {
        evq_buffer_text(&body, "{\"run_id\":");
        evq_buffer_json_text(&body, model->run);
        evq_buffer_printf(&body, ",\"models\":[{\"model_id\":\"%s\",\"step\":%" PRId64 "}]}",
                          model->id, step);
        status =
            evq_mlflow_call(models->server, "POST", "runs/outputs", &body, &document, error, err);
        json_decref(document);
        document = NULL;
    }
    if (status == EVQ_OK && !model->ready) {
        (void)snprintf(path, sizeof(path), "logged-models/%s", model->id);
        evq_buffer_clear(&body);
        evq_buffer_printf(&body, "{\"model_id\":\"%s\",\"status\":\"LOGGED_MODEL_READY\"}",
                          model->id);
        status = evq_mlflow_call(models->server, "PATCH", path, &body, &document, error, err);
        json_decref(document);
    }
    evq_buffer_free(&body);
    return status;
}

enum evq_status evq_mlflow_model_find(struct evq_mlflow_models *models, const char *run,
                                      const struct evq_result *result,
                                      char ret_model[EVQ_MLFLOW_ID_BYTES_MAX],
                                      struct evq_error *err)
{
    struct model model = {0};
    char scratch[EVQ_JOB_ID_BYTES_MAX];
    char experiment[EVQ_MLFLOW_ID_BYTES_MAX];
    struct evq_job_name name;
    json_t *document = NULL;

    enum evq_status status = evq_job_id_parse(result->job, scratch, &name, err);
    if (status != EVQ_OK) {
        return status;
    }
    int used = snprintf(model.key, sizeof(model.key) - 16, "%s/%s/%" PRId64 "/%s", models->queue,
                        result->run, result->step, result->variant);
    if (name.generation > 1) {
        (void)snprintf(model.key + used, 16, "~%" PRId32, name.generation);
    }
    (void)snprintf(model.run, sizeof(model.run), "%s", run);
    for (size_t i = 0; i < KEPT; i++) {
        const struct model *kept = &models->kept[i];
        if (strcmp(kept->key, model.key) == 0 && strcmp(kept->run, run) == 0) {
            (void)snprintf(ret_model, EVQ_MLFLOW_ID_BYTES_MAX, "%s", kept->id);
            return EVQ_OK;
        }
    }
    status = run_get(models, run, &document, experiment, err);
    const bool gone = status == EVQ_E_INVALID;
    if (status == EVQ_OK) {
        status = model_search(models, experiment, &model, err);
    }
    if (status == EVQ_OK && model.id[0] == '\0') {
        status = model_create(models, experiment, result, name.generation, &model, err);
    } else if (status == EVQ_OK) {
        model.linked = is_linked(document, model.id);
    }
    json_decref(document);
    if (status == EVQ_OK) {
        status = model_finish(models, result->step, &model, err);
    }
    if (status == EVQ_OK) {
        models->kept[models->next] = model;
        models->next = (models->next + 1) % KEPT;
        (void)snprintf(ret_model, EVQ_MLFLOW_ID_BYTES_MAX, "%s", model.id);
    }
    if (status == EVQ_E_INVALID && !gone) { // The result is not at fault, so it is not dropped.
        status = EVQ_E_RETRY;
    }
    if (err != NULL && status != EVQ_OK) {
        err->status = status;
    }
    return status;
}
