/* The sink `mlflow`: MLflow by its REST API. Metrics have the time of the result's publication, so
 * that a repeated result is equal to what the server has, and an SQL store recognises it by its
 * primary key. Metrics go to the run whose id the training gave (tracker mlflow_run_id). If there
 * is none, or own_run is true, they go to a run that evalq makes once for each training run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "logger/sinks/mlflow_api.h"
#include "logger/sinks/mlflow_model.h"
#include "logger/sinks/sink.h"

#define TIMEOUT_SECONDS 30
#define ITEMS_FIRST     64
#define RUNS_FIRST      16

struct run {
    char name[EVQ_JOB_RUN_BYTES_MAX + 1];
    char given[EVQ_MLFLOW_ID_BYTES_MAX]; // The run that the training gave; "": evalq's own.
    char id[EVQ_MLFLOW_ID_BYTES_MAX];    // "": not known yet.
};

struct item { // One result.
    size_t run;
    size_t count;              // Number of its metrics.
    struct evq_buffer metrics; // Its metrics as members of a JSON array.
    char result_id[EVQ_RESULT_ID_BYTES_MAX];
};

struct mlflow {
    const struct evq_sink_context *context;
    struct evq_mlflow *server;
    struct evq_mlflow_models *models; // NULL: logged_models is false.
    bool own_run;
    struct run *runs;
    size_t run_count;
    size_t run_room;
    struct item *items;
    size_t item_count;
    size_t item_room;
};

static void items_clear(struct mlflow *sink)
{
    for (size_t i = 0; i < sink->item_count; i++) {
        evq_buffer_free(&sink->items[i].metrics);
    }
    sink->item_count = 0;
}

static void mlflow_close(void *state)
{
    struct mlflow *sink = state;

    if (sink != NULL) {
        items_clear(sink);
        free(sink->items);
        free(sink->runs);
        evq_mlflow_models_free(sink->models);
        evq_mlflow_close(sink->server);
        free(sink);
    }
}

/* Returns an option; if it is absent, a variable of MLflow's own client; otherwise fallback. */
static const char *setting(const struct evq_sink_config *config, const char *key,
                           const char *variable, const char *fallback)
{
    const char *text = evq_sink_option(config, key);

    if (text == NULL) {
        text = getenv(variable);
    }
    return text != NULL && text[0] != '\0' ? text : fallback;
}

static bool variable_true(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

static enum evq_status server_open(struct mlflow *sink, const struct evq_buffer *token,
                                   const struct evq_buffer *password, struct evq_error *err)
{
    const struct evq_sink_config *given = sink->context->sink;
    char who[64];
    double seconds = 0;
    // User and password have priority over a token, as in MLflow's own client.
    const char *user = setting(given, "username", "MLFLOW_TRACKING_USERNAME", NULL);
    struct evq_mlflow_config config = {
        .who = who,
        .uri = setting(given, "uri", "MLFLOW_TRACKING_URI", ""),
        .experiment = setting(given, "experiment", "MLFLOW_EXPERIMENT_NAME", "evalq"),
        .token = user == NULL && token->bytes > 0 ? (const char *)token->data : NULL,
        .http = {.ca_file = setting(given, "ca_file", "MLFLOW_TRACKING_SERVER_CERT_PATH", NULL),
                 .insecure = variable_true("MLFLOW_TRACKING_INSECURE_TLS"),
                 .user = user,
                 .password = password->bytes > 0 ? (const char *)password->data : NULL,
                 .stop = sink->context->stop}};

    (void)snprintf(who, sizeof(who), "sink '%s'", given->name);
    if (strncmp(config.uri, "http://", 7) != 0 && strncmp(config.uri, "https://", 8) != 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s: expected uri: http://HOST:PORT or $MLFLOW_TRACKING_URI, the "
                             "address of a tracking server",
                             who);
    }
    if (evq_sink_option(given, "uri") != NULL && strchr(config.uri, '@') != NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s: uri holds a password; give username and password_file", who);
    }
    enum evq_status status =
        evq_sink_option_seconds(given, "timeout_seconds", TIMEOUT_SECONDS, &seconds, err);
    if (status == EVQ_OK) {
        config.http.timeout_ms = seconds < 0.001 ? 1 : (int64_t)(seconds * 1000);
        status = evq_mlflow_open(&config, &sink->server, err);
    }
    return status;
}

static void secret_free(struct evq_buffer *secret)
{
    if (secret->data != NULL) {
        explicit_bzero(secret->data, secret->capacity);
    }
    evq_buffer_free(secret);
}

static enum evq_status mlflow_open(const struct evq_sink_context *context, void **ret_state,
                                   struct evq_error *err)
{
    struct evq_buffer token;
    struct evq_buffer password;
    bool models = false;
    struct mlflow *sink = calloc(1, sizeof(*sink));

    if (sink == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", context->sink->name);
    }
    sink->context = context;
    evq_buffer_init(&token, 0);
    evq_buffer_init(&password, 0);
    enum evq_status status = evq_sink_option_flag(context->sink, "own_run", &sink->own_run, err);
    if (status == EVQ_OK) {
        status = evq_sink_option_flag(context->sink, "logged_models", &models, err);
    }
    if (status == EVQ_OK) {
        status = evq_sink_secret(context->sink, "token", "MLFLOW_TRACKING_TOKEN", &token, err);
    }
    if (status == EVQ_OK) {
        status =
            evq_sink_secret(context->sink, "password", "MLFLOW_TRACKING_PASSWORD", &password, err);
    }
    if (status == EVQ_OK) {
        status = server_open(sink, &token, &password, err);
    }
    if (status == EVQ_OK && models) {
        sink->models = evq_mlflow_models_new(sink->server, context->config->redis.queue);
        if (sink->models == NULL) {
            status = evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", context->sink->name);
        }
    }
    secret_free(&token);
    secret_free(&password);
    if (status != EVQ_OK) {
        mlflow_close(sink);
        return status;
    }
    *ret_state = sink;
    return EVQ_OK;
}

/* Index of the result's run in runs. SIZE_MAX: no memory. */
static size_t run_of(struct mlflow *sink, const struct evq_result *result)
{
    const char *given =
        sink->own_run ? ""
                      : evq_pair_get(result->trackers, result->tracker_count, "mlflow_run_id", "");

    for (size_t i = sink->run_count; i-- > 0;) { // Recent runs are the most likely.
        if (strcmp(sink->runs[i].name, result->run) == 0 &&
            strncmp(sink->runs[i].given, given, sizeof(sink->runs[i].given) - 1) == 0) {
            return i;
        }
    }
    if (sink->run_count == sink->run_room) {
        const size_t room = sink->run_room == 0 ? RUNS_FIRST : 2 * sink->run_room;
        struct run *runs = realloc(sink->runs, room * sizeof(*runs));
        if (runs == NULL) {
            return SIZE_MAX;
        }
        sink->runs = runs;
        sink->run_room = room;
    }
    struct run *run = &sink->runs[sink->run_count];
    (void)snprintf(run->name, sizeof(run->name), "%s", result->run);
    (void)snprintf(run->given, sizeof(run->given), "%.*s", (int)sizeof(run->given) - 1, given);
    (void)snprintf(run->id, sizeof(run->id), "%s", run->given);
    return sink->run_count++;
}

static struct item *item_add(struct mlflow *sink)
{
    if (sink->item_count == sink->item_room) {
        const size_t room = sink->item_room == 0 ? ITEMS_FIRST : 2 * sink->item_room;
        struct item *items = realloc(sink->items, room * sizeof(*items));
        if (items == NULL) {
            return NULL;
        }
        sink->items = items;
        sink->item_room = room;
    }
    struct item *item = &sink->items[sink->item_count++];
    evq_buffer_init(&item->metrics, 0);
    item->count = 0;
    return item;
}

static bool is_alone(const struct evq_result *result, size_t at)
{
    for (size_t i = 0; i < result->metric_count; i++) {
        if (i != at && evq_mlflow_alike(result->metrics[i].name, result->metrics[at].name)) {
            return false;
        }
    }
    return true;
}

static enum evq_status run_find(struct mlflow *sink, struct run *run, struct evq_error *err)
{
    char key[EVQ_JOB_RUN_BYTES_MAX + 80];

    if (run->id[0] != '\0') {
        return EVQ_OK;
    }
    // The tag contains the queue, because two queues may have a run of the same name.
    (void)snprintf(key, sizeof(key), "%s/%s", sink->context->config->redis.queue, run->name);
    return evq_mlflow_run(sink->server, key, run->name, run->id, err);
}

/* The logged model of the result's checkpoint, or "". EVQ_E_INVALID: the training's run is gone. */
static enum evq_status model_find(struct mlflow *sink, struct run *run,
                                  const struct evq_result *result,
                                  char ret_model[EVQ_MLFLOW_ID_BYTES_MAX], struct evq_error *err)
{
    ret_model[0] = '\0';
    if (sink->models == NULL) {
        return EVQ_OK;
    }
    enum evq_status status = run_find(sink, run, err);
    if (status == EVQ_OK) {
        status = evq_mlflow_model_find(sink->models, run->id, result, ret_model, err);
    }
    if (status == EVQ_E_INVALID && run->given[0] == '\0') { // evalq's own run was deleted.
        run->id[0] = '\0';
        status = run_find(sink, run, err);
        if (status == EVQ_OK) {
            status = evq_mlflow_model_find(sink->models, run->id, result, ret_model, err);
        }
    }
    return status;
}

static enum evq_status mlflow_write(void *state, const struct evq_result *result,
                                    struct evq_error *err)
{
    struct mlflow *sink = state;
    char key[EVQ_MLFLOW_KEY_BYTES_MAX + 64];
    char model[EVQ_MLFLOW_ID_BYTES_MAX];
    struct item *item = NULL;

    if (result->metric_count == 0) {
        return EVQ_OK; // The end of a job: nothing to draw.
    }
    const size_t run = run_of(sink, result);
    if (run != SIZE_MAX) {
        const enum evq_status status = model_find(sink, &sink->runs[run], result, model, err);
        if (status != EVQ_OK) {
            if (status != EVQ_E_INVALID) {
                items_clear(sink); // The logger passes all of them again.
            }
            return status;
        }
        item = item_add(sink);
    }
    if (item != NULL) {
        item->run = run;
        evq_result_id(result, item->result_id);
        for (size_t i = 0; i < result->metric_count; i++) {
            evq_result_metric_key(result, &result->metrics[i], key, sizeof(key));
            evq_buffer_text(&item->metrics, i > 0 ? "," : "");
            evq_mlflow_metric(&item->metrics, key, is_alone(result, i), result->metrics[i].value,
                              result->finished_ms, result->step, model);
        }
        item->count = result->metric_count;
    }
    if (item == NULL || item->metrics.failed) {
        items_clear(sink);
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", sink->context->sink->name);
    }
    return EVQ_OK;
}

/* Sends count items of one run from first on; EVQ_E_INVALID: the server refuses them. */
static enum evq_status items_log(struct mlflow *sink, struct run *run, const struct item *first,
                                 size_t count, struct evq_error *err)
{
    struct evq_buffer all;
    bool more = false;

    evq_buffer_init(&all, 0);
    for (size_t i = 0; i < count; i++) {
        if (first[i].run == (size_t)(run - sink->runs)) {
            evq_buffer_text(&all, more ? "," : "");
            evq_buffer_append(&all, first[i].metrics.data, first[i].metrics.bytes);
            more = true;
        }
    }
    enum evq_status status = run_find(sink, run, err);
    if (status == EVQ_OK && all.failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", sink->context->sink->name);
    }
    if (status == EVQ_OK) {
        status = evq_mlflow_log(sink->server, run->id, (const char *)all.data, all.bytes, err);
    }
    if (status == EVQ_E_INVALID && run->given[0] == '\0') { // Our own run may have been deleted.
        char before[EVQ_MLFLOW_ID_BYTES_MAX];
        struct evq_error why = *err;
        (void)snprintf(before, sizeof(before), "%s", run->id);
        run->id[0] = '\0';
        status = run_find(sink, run, err);
        if (status == EVQ_OK && strcmp(before, run->id) != 0) {
            status = evq_mlflow_log(sink->server, run->id, (const char *)all.data, all.bytes, err);
        } else if (status == EVQ_OK) {
            *err = why;
            status = EVQ_E_INVALID;
        }
    }
    evq_buffer_free(&all);
    return status;
}

/* The same. If the server refuses several items, sends each by itself, so that one bad result costs
 * no other. */
static enum evq_status items_send(struct mlflow *sink, size_t run, size_t first, size_t end,
                                  struct evq_error *err)
{
    enum evq_status status =
        items_log(sink, &sink->runs[run], &sink->items[first], end - first, err);

    if (status != EVQ_E_INVALID) {
        return status;
    }
    status = EVQ_OK;
    for (size_t i = first; i < end && status == EVQ_OK; i++) {
        const struct item *item = &sink->items[i];
        if (item->run != run) {
            continue;
        }
        status = items_log(sink, &sink->runs[run], item, 1, err);
        if (status == EVQ_E_INVALID) {
            const struct evq_error why = *err;
            status = evq_sink_refuse(sink->context, item->result_id, item->metrics.data,
                                     item->metrics.bytes, why.message, err);
        }
    }
    return status;
}

/* All items of one run, in calls of what the server takes at once. */
static enum evq_status run_send(struct mlflow *sink, size_t run, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    size_t first = 0;
    size_t metrics = 0;
    size_t bytes = 0;

    for (size_t i = 0; i < sink->item_count && status == EVQ_OK; i++) {
        const struct item *item = &sink->items[i];
        if (item->run != run) {
            continue;
        }
        if (metrics > 0 && (metrics + item->count > EVQ_MLFLOW_METRICS_MAX ||
                            bytes + item->metrics.bytes + 1 > EVQ_MLFLOW_BATCH_BYTES_MAX)) {
            status = items_send(sink, run, first, i, err);
            first = i;
            metrics = 0;
            bytes = 0;
        }
        metrics += item->count;
        bytes += item->metrics.bytes + 1;
    }
    return status == EVQ_OK && metrics > 0 ? items_send(sink, run, first, sink->item_count, err)
                                           : status;
}

static enum evq_status mlflow_flush(void *state, struct evq_error *err)
{
    struct mlflow *sink = state;
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < sink->item_count && status == EVQ_OK; i++) {
        bool done = false; // Sent with an earlier item of the same run.
        for (size_t j = 0; j < i && !done; j++) {
            done = sink->items[j].run == sink->items[i].run;
        }
        if (!done) {
            status = run_send(sink, sink->items[i].run, err);
        }
    }
    items_clear(sink); // After a failure the logger gives the same results again.
    return status;
}

static const char *const options[] = {
    "uri",     "experiment",      "username", "password_file", "token_file",
    "ca_file", "timeout_seconds", "own_run",  "logged_models", NULL};

const struct evq_sink_ops evq_sink_mlflow = {
    .kind = "mlflow",
    .options = options,
    .open = mlflow_open,
    .write = mlflow_write,
    .flush = mlflow_flush,
    .close = mlflow_close,
};
