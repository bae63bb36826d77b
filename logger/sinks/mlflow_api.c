#include "logger/sinks/mlflow_api.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/json_memory.h"
#include "shared/base/utf8.h"

#define API         "/api/2.0/mlflow/"
#define HASH_BYTES  9               // "-" and 8 digits.
#define TAG_RUN     "evalq.run"     // Tag of a run that evalq made.
#define TAG_RESULTS "evalq.results" // Tag of the run that gets the results.

struct evq_mlflow {
    struct evq_http *http;
    char *who;
    char *base;          // Without a slash at its end.
    char *authorization; // A header, or NULL.
    char *experiment;
    char experiment_id[EVQ_MLFLOW_ID_BYTES_MAX]; // "": not known yet.
};

void evq_mlflow_close(struct evq_mlflow *mlflow)
{
    if (mlflow == NULL) {
        return;
    }
    evq_http_close(mlflow->http);
    if (mlflow->authorization != NULL) {
        explicit_bzero(mlflow->authorization, strlen(mlflow->authorization));
    }
    free(mlflow->authorization);
    free(mlflow->who);
    free(mlflow->base);
    free(mlflow->experiment);
    free(mlflow);
}

enum evq_status evq_mlflow_open(const struct evq_mlflow_config *config,
                                struct evq_mlflow **ret_mlflow, struct evq_error *err)
{
    struct evq_http_config http = config->http;
    struct evq_mlflow *mlflow = calloc(1, sizeof(*mlflow));
    size_t length = strlen(config->uri);

    if (mlflow == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%s", config->who);
    }
    while (length > 0 && config->uri[length - 1] == '/') {
        length--;
    }
    mlflow->who = strdup(config->who);
    mlflow->base = strndup(config->uri, length);
    mlflow->experiment = strdup(config->experiment);
    if (config->token != NULL &&
        asprintf(&mlflow->authorization, "Authorization: Bearer %s", config->token) < 0) {
        mlflow->authorization = NULL;
    }
    if (mlflow->who == NULL || mlflow->base == NULL || mlflow->experiment == NULL ||
        (config->token != NULL && mlflow->authorization == NULL)) {
        evq_mlflow_close(mlflow);
        return evq_error_set(err, EVQ_E_NOMEM, "%s", config->who);
    }
    http.who = mlflow->who;
    enum evq_status status = evq_http_open(&http, &mlflow->http, err);
    if (status != EVQ_OK) {
        evq_mlflow_close(mlflow);
        return status;
    }
    *ret_mlflow = mlflow;
    return EVQ_OK;
}

enum evq_status evq_mlflow_call(struct evq_mlflow *mlflow, const char *method, const char *path,
                                struct evq_buffer *body, json_t **ret_document,
                                char error[EVQ_MLFLOW_ERROR_BYTES_MAX], struct evq_error *err)
{
    const char *headers[] = {"Content-Type: application/json", "Expect:", mlflow->authorization,
                             NULL};
    struct evq_http_reply reply = {0};
    struct evq_buffer url;

    error[0] = '\0';
    evq_buffer_init(&url, 0);
    evq_buffer_printf(&url, "%s" API "%s", mlflow->base, path);
    if (url.failed || (body != NULL && body->failed)) {
        evq_buffer_free(&url);
        return evq_error_set(err, EVQ_E_NOMEM, "%s: a request", mlflow->who);
    }
    enum evq_status status = evq_http_call(mlflow->http, method, evq_buffer_string(&url), headers,
                                           body != NULL ? (const char *)body->data : NULL,
                                           body != NULL ? body->bytes : 0, &reply, err);
    if (status == EVQ_OK) {
        evq_json_memory_clear();
        *ret_document = json_loadb(reply.body.bytes > 0 ? (const char *)reply.body.data : "",
                                   reply.body.bytes, JSON_REJECT_DUPLICATES, NULL);
        const char *word = json_string_value(json_object_get(*ret_document, "error_code"));
        (void)snprintf(error, EVQ_MLFLOW_ERROR_BYTES_MAX, "%s", word != NULL ? word : "");
        status = evq_http_verdict(&reply, mlflow->who, "MLflow", err);
    }
    if (status == EVQ_OK && evq_json_memory_failed()) {
        status = evq_error_set(err, EVQ_E_RETRY, "%s: no memory for MLflow's answer", mlflow->who);
    }
    if (status == EVQ_OK && !json_is_object(*ret_document)) {
        status = evq_error_set(err, EVQ_E_RETRY,
                               "%s: MLflow answers %ld without a whole JSON object: is "
                               "this the address of its server?",
                               mlflow->who, reply.code);
    }
    evq_http_reply_free(&reply);
    evq_buffer_free(&url);
    return status;
}

enum evq_status evq_mlflow_text(const struct evq_mlflow *mlflow, const json_t *document,
                                const char *outer, const char *inner,
                                char out[EVQ_MLFLOW_ID_BYTES_MAX], struct evq_error *err)
{
    const json_t *object = outer != NULL ? json_object_get(document, outer) : document;
    const char *text = json_string_value(json_object_get(object, inner));

    if (text == NULL || text[0] == '\0' || strlen(text) >= EVQ_MLFLOW_ID_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_RETRY, "%s: MLflow's reply has no %s", mlflow->who, inner);
    }
    (void)snprintf(out, EVQ_MLFLOW_ID_BYTES_MAX, "%s", text);
    return EVQ_OK;
}

void evq_mlflow_query(struct evq_buffer *path, const char *text)
{
    static const char hex[] = "0123456789ABCDEF";

    for (const char *at = text; *at != '\0'; at++) {
        const unsigned char byte = (unsigned char)*at;
        const char coded[] = {'%', hex[byte >> 4], hex[byte & 15]};
        if (isalnum(byte)) {
            evq_buffer_append(path, at, 1);
        } else {
            evq_buffer_append(path, coded, sizeof(coded));
        }
    }
}

static enum evq_status experiment_get(struct evq_mlflow *mlflow,
                                      char error[EVQ_MLFLOW_ERROR_BYTES_MAX], struct evq_error *err)
{
    json_t *document = NULL;
    struct evq_buffer path;

    evq_buffer_init(&path, 0);
    evq_buffer_text(&path, "experiments/get-by-name?experiment_name=");
    evq_mlflow_query(&path, mlflow->experiment);
    const char *text = evq_buffer_string(&path);
    enum evq_status status =
        text == NULL ? evq_error_set(err, EVQ_E_NOMEM, "%s: a request", mlflow->who)
                     : evq_mlflow_call(mlflow, "GET", text, NULL, &document, error, err);
    const json_t *experiment = json_object_get(document, "experiment");
    const char *stage = json_string_value(json_object_get(experiment, "lifecycle_stage"));
    if (status == EVQ_OK && stage != NULL && strcmp(stage, "deleted") == 0) {
        status = evq_error_set(err, EVQ_E_RETRY,
                               "%s: the experiment '%s' was deleted: restore it, or name another",
                               mlflow->who, mlflow->experiment);
    }
    if (status == EVQ_OK) {
        status = evq_mlflow_text(mlflow, document, "experiment", "experiment_id",
                                 mlflow->experiment_id, err);
    }
    json_decref(document);
    evq_buffer_free(&path);
    return status;
}

static enum evq_status experiment_find(struct evq_mlflow *mlflow, struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX];
    json_t *document = NULL;
    struct evq_buffer body;

    if (mlflow->experiment_id[0] != '\0') {
        return EVQ_OK;
    }
    enum evq_status status = experiment_get(mlflow, error, err);
    if (status == EVQ_OK || strcmp(error, "RESOURCE_DOES_NOT_EXIST") != 0) {
        return status;
    }
    evq_buffer_init(&body, 0);
    evq_buffer_text(&body, "{\"name\":");
    evq_buffer_json_text(&body, mlflow->experiment);
    evq_buffer_text(&body, "}");
    status = evq_mlflow_call(mlflow, "POST", "experiments/create", &body, &document, error, err);
    if (status == EVQ_OK) {
        status =
            evq_mlflow_text(mlflow, document, NULL, "experiment_id", mlflow->experiment_id, err);
    } else if (strcmp(error, "RESOURCE_ALREADY_EXISTS") == 0) {
        status = experiment_get(mlflow, error, err); // Another client made it in between.
    }
    json_decref(document);
    evq_buffer_free(&body);
    return status;
}

void evq_mlflow_pair(struct evq_buffer *body, const char *key, const char *value)
{
    evq_buffer_text(body, "{\"key\":");
    evq_buffer_json_text(body, key);
    evq_buffer_text(body, ",\"value\":");
    evq_buffer_json_text(body, value);
    evq_buffer_text(body, "}");
}

/* Finds the oldest run with that tag. ret_run "": there is none. */
static enum evq_status run_search(struct evq_mlflow *mlflow, const char *tag, const char *key,
                                  char ret_run[EVQ_MLFLOW_ID_BYTES_MAX], struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX];
    json_t *document = NULL;
    struct evq_buffer body;

    // key is of [A-Za-z0-9._/-]: nothing in it ends the filter's text.
    evq_buffer_init(&body, 0);
    evq_buffer_printf(&body,
                      "{\"experiment_ids\":[\"%s\"],\"filter\":\"tags.\\\"%s\\\" = '%s'\","
                      "\"run_view_type\":\"ACTIVE_ONLY\",\"max_results\":1,"
                      "\"order_by\":[\"attributes.start_time ASC\",\"attributes.run_id ASC\"]}",
                      mlflow->experiment_id, tag, key);
    ret_run[0] = '\0';
    enum evq_status status =
        evq_mlflow_call(mlflow, "POST", "runs/search", &body, &document, error, err);
    const json_t *run = json_array_get(json_object_get(document, "runs"), 0);
    if (status == EVQ_OK && run != NULL) {
        status =
            evq_mlflow_text(mlflow, json_object_get(run, "info"), NULL, "run_id", ret_run, err);
    }
    json_decref(document);
    evq_buffer_free(&body);
    return status;
}

static enum evq_status run_create(struct evq_mlflow *mlflow, const char *key, const char *name,
                                  char ret_run[EVQ_MLFLOW_ID_BYTES_MAX], struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX];
    json_t *document = NULL;
    struct evq_buffer body;

    evq_buffer_init(&body, 0);
    evq_buffer_printf(&body, "{\"experiment_id\":\"%s\",\"start_time\":%" PRId64 ",\"run_name\":",
                      mlflow->experiment_id, evq_clock_unix_ms());
    evq_buffer_json_text(&body, name);
    evq_buffer_text(&body, ",\"tags\":[");
    evq_mlflow_pair(&body, TAG_RUN, key);
    evq_buffer_text(&body, ",");
    evq_mlflow_pair(&body, "mlflow.source.name", "evalq");
    evq_buffer_text(&body, "]}");
    enum evq_status status =
        evq_mlflow_call(mlflow, "POST", "runs/create", &body, &document, error, err);
    if (status == EVQ_OK) {
        status = evq_mlflow_text(mlflow, json_object_get(document, "run"), "info", "run_id",
                                 ret_run, err);
    }
    json_decref(document);
    evq_buffer_free(&body);
    return status;
}

/* Tags the run as the one that gets the results and marks it as finished, because nobody else
 * would. MLflow still accepts metrics. */
static enum evq_status run_choose(struct evq_mlflow *mlflow, const char *run, const char *key,
                                  struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX];
    json_t *document = NULL;
    struct evq_buffer body;

    evq_buffer_init(&body, 0);
    evq_buffer_printf(&body, "{\"run_id\":\"%s\",\"key\":\"" TAG_RESULTS "\",\"value\":\"%s\"}",
                      run, key);
    enum evq_status status =
        evq_mlflow_call(mlflow, "POST", "runs/set-tag", &body, &document, error, err);
    json_decref(document);
    document = NULL;
    if (status == EVQ_OK) {
        evq_buffer_clear(&body);
        evq_buffer_printf(&body, "{\"run_id\":\"%s\",\"status\":\"FINISHED\"}", run);
        status = evq_mlflow_call(mlflow, "POST", "runs/update", &body, &document, error, err);
    }
    json_decref(document);
    evq_buffer_free(&body);
    return status;
}

enum evq_status evq_mlflow_run(struct evq_mlflow *mlflow, const char *key, const char *name,
                               char ret_run[EVQ_MLFLOW_ID_BYTES_MAX], struct evq_error *err)
{
    char run[EVQ_MLFLOW_ID_BYTES_MAX] = "";

    enum evq_status status = experiment_find(mlflow, err);
    if (status == EVQ_OK) {
        status = run_search(mlflow, TAG_RESULTS, key, run, err);
    }
    if (status == EVQ_OK && run[0] == '\0') {
        // A process died between creating a run and choosing it, or there was none.
        status = run_search(mlflow, TAG_RUN, key, run, err);
        if (status == EVQ_OK && run[0] == '\0') {
            status = run_create(mlflow, key, name, run, err);
        }
        if (status == EVQ_OK) {
            status = run_choose(mlflow, run, key, err);
        }
    }
    if (status == EVQ_OK) {
        (void)snprintf(ret_run, EVQ_MLFLOW_ID_BYTES_MAX, "%s", run);
        return EVQ_OK;
    }
    mlflow->experiment_id[0] = '\0'; // The experiment may have been deleted.
    if (status == EVQ_E_INVALID) {   // No result is at fault, and the cause may be repaired.
        status = EVQ_E_RETRY;
        if (err != NULL) {
            err->status = status;
        }
    }
    return status;
}

enum evq_status evq_mlflow_log(struct evq_mlflow *mlflow, const char *run, const char *metrics,
                               size_t bytes, struct evq_error *err)
{
    char error[EVQ_MLFLOW_ERROR_BYTES_MAX];
    json_t *document = NULL;
    struct evq_buffer body;

    evq_buffer_init(&body, 0);
    evq_buffer_text(&body, "{\"run_id\":");
    evq_buffer_json_text(&body, run);
    evq_buffer_text(&body, ",\"metrics\":[");
    evq_buffer_append(&body, metrics, bytes);
    evq_buffer_text(&body, "]}");
    enum evq_status status =
        evq_mlflow_call(mlflow, "POST", "runs/log-batch", &body, &document, error, err);
    if (status == EVQ_E_RETRY && strcmp(error, "RESOURCE_DOES_NOT_EXIST") == 0) {
        status = EVQ_E_INVALID; // A run that is not there does not come back.
        if (err != NULL) {
            err->status = status;
        }
    }
    json_decref(document);
    evq_buffer_free(&body);
    return status;
}

/* Whether a character may be in a key. MLflow accepts every letter and digit of Python; this table
 * has the common scripts. */
static bool is_allowed(const char *text, size_t bytes)
{
    static const struct {
        uint32_t first;
        uint32_t last;
    } letters[] = {
        {0xc0, 0xd6},     {0xd8, 0xf6},     {0xf8, 0x2c1},    // Latin.
        {0x391, 0x3a1},   {0x3a3, 0x3f5},   {0x400, 0x481},   // Greek, Cyrillic.
        {0x48a, 0x52f},   {0x5d0, 0x5ea},   {0x1e00, 0x1eff}, // Hebrew; more Latin.
        {0x620, 0x64a},   {0x660, 0x669},   {0x671, 0x6d3},   // Arabic.
        {0x904, 0x939},   {0xe01, 0xe30},   {0xe32, 0xe33},   // Devanagari, Thai: vowels above and
        {0xe40, 0xe46},                                       // below the letters are no letters.
        {0x3041, 0x3096}, {0x30a1, 0x30fa}, {0x30fc, 0x30fc}, // Kana.
        {0x3400, 0x4db5}, {0x4e00, 0x9fa5}, {0xac00, 0xd7a3}, // Han, Hangul.
    };
    uint32_t code = (unsigned char)text[0] & (0xffu >> bytes);

    if (bytes == 1) {
        return isalnum((unsigned char)text[0]) || strchr("_-. :/", text[0]) != NULL;
    }
    for (size_t i = 1; i < bytes; i++) {
        code = code << 6 | ((unsigned char)text[i] & 0x3fu);
    }
    for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); i++) {
        if (code >= letters[i].first && code <= letters[i].last) {
            return true;
        }
    }
    return false;
}

/* Translates a name into a key that MLflow accepts; other characters become underscores (acc,none
 * is acc_none). alone: no other metric gets the same key. If it is false, or if more than ASCII
 * signs is lost, the key ends in a hash of the name, so that no two names share a curve. */
static void key_map(const char *key, bool alone, char out[EVQ_MLFLOW_KEY_BYTES_MAX + 1])
{
    const size_t key_bytes = strlen(key);
    size_t bytes = 0;
    size_t room = 0; // Where the hash can begin.
    size_t length = 0;
    bool lost = false;

    for (size_t at = 0; at < key_bytes; at += length) {
        length = evq_utf8_sequence(key + at, key_bytes - at);
        const bool keep = length > 0 && is_allowed(key + at, length);
        const size_t put = keep ? length : 1;
        lost = lost || (!keep && (length != 1 || !alone)) || bytes + put > EVQ_MLFLOW_KEY_BYTES_MAX;
        if (bytes + put > EVQ_MLFLOW_KEY_BYTES_MAX) {
            break;
        }
        memcpy(out + bytes, keep ? key + at : "_", put);
        bytes += put;
        room = bytes + HASH_BYTES <= EVQ_MLFLOW_KEY_BYTES_MAX ? bytes : room;
        length = length > 0 ? length : 1;
    }
    out[bytes] = '\0';
    if (lost) {
        (void)snprintf(out + room, HASH_BYTES + 1, "-%08x",
                       (unsigned)(XXH3_64bits(key, key_bytes) & UINT32_MAX));
    }
}

static char sign_map(char sign)
{
    return (sign & 0x80) != 0 || is_allowed(&sign, 1) ? sign : '_';
}

bool evq_mlflow_alike(const char *a, const char *b)
{
    while (*a != '\0' && sign_map(*a) == sign_map(*b)) {
        a++;
        b++;
    }
    return *a == *b; // Both texts end here.
}

void evq_mlflow_metric(struct evq_buffer *out, const char *key, bool alone, double value,
                       int64_t timestamp_ms, int64_t step, const char *model)
{
    char allowed[EVQ_MLFLOW_KEY_BYTES_MAX + 1];

    key_map(key, alone, allowed);
    evq_buffer_text(out, "{\"key\":");
    evq_buffer_json_text(out, allowed);
    evq_buffer_text(out, ",\"value\":");
    evq_buffer_json_double(out, value);
    evq_buffer_printf(out, ",\"timestamp\":%" PRId64 ",\"step\":%" PRId64, timestamp_ms, step);
    if (model[0] != '\0' && isfinite(value)) { // MLflow would store a model's NaN as 0.
        evq_buffer_text(out, ",\"model_id\":");
        evq_buffer_json_text(out, model);
    }
    evq_buffer_text(out, "}");
}
