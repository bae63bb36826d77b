#include "producer/gateway/lmms/lmms_request.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/lmms/lmms_fields.h"
#include "shared/base/json_memory.h"

/* The keys of model_args in which lmms-eval looks for a model's name, in this order. */
static const char *const model_keys[] = {"peft",     "delta",         "pretrained",
                                         "model",    "model_version", "model_name",
                                         "model_id", "path",          "engine"};
#define MODEL_KEY_COUNT (sizeof model_keys / sizeof model_keys[0])

/* Replaces all bytes beyond ASCII. Jansson's messages quote the text and may end in half a
 * character, which would not be valid JSON. */
static void ascii_make(char *text)
{
    for (; *text != '\0'; text++) {
        *text = (unsigned char)*text < 0x80 ? *text : '?';
    }
}

/* Parses the body as an object. If it is anything else, *ret_fault says so. */
static enum evq_status body_read(const char *body, size_t bytes, json_t **ret_body,
                                 json_t **ret_fault)
{
    json_error_t error;

    if (bytes == 0) {
        *ret_fault = evq_lmms_fault("missing", "Field required", NULL);
        return *ret_fault != NULL ? EVQ_E_INVALID : EVQ_E_NOMEM;
    }
    json_t *value = json_loadb(body, bytes, JSON_DECODE_ANY, &error);
    if (evq_json_memory_failed()) {
        json_decref(value);
        return EVQ_E_NOMEM;
    }
    if (value == NULL) {
        ascii_make(error.text);
        *ret_fault =
            json_pack("{s:[{s:s, s:[s, i], s:s, s:{}, s:{s:s}}]}", "detail", "type", "json_invalid",
                      "loc", "body", error.position > 0 ? error.position - 1 : 0, "msg",
                      "JSON decode error", "input", "ctx", "error", error.text);
        return *ret_fault != NULL ? EVQ_E_INVALID : EVQ_E_NOMEM;
    }
    if (!json_is_object(value)) {
        *ret_fault = evq_lmms_fault(
            "model_attributes_type",
            "Input should be a valid dictionary or object to extract fields from", value);
        json_decref(value);
        return *ret_fault != NULL ? EVQ_E_INVALID : EVQ_E_NOMEM;
    }
    *ret_body = value;
    return EVQ_OK;
}

/* Takes the values or the faults of the fields. */
static enum evq_status fields_take(struct evq_lmms_fields *fields, json_t **ret_out,
                                   json_t **ret_fault)
{
    if (fields->failed) {
        return EVQ_E_NOMEM;
    }
    if (json_array_size(fields->detail) > 0) {
        *ret_fault = json_pack("{s:O}", "detail", fields->detail);
        return *ret_fault != NULL ? EVQ_E_INVALID : EVQ_E_NOMEM;
    }
    *ret_out = json_incref(fields->out);
    return EVQ_OK;
}

static void fields_of_evaluate(struct evq_lmms_fields *f, const json_t *body)
{
    evq_lmms_field(f, "model", EVQ_LMMS_TEXT, NULL);
    evq_lmms_field(f, "tasks", EVQ_LMMS_TEXTS, NULL);
    evq_lmms_field(f, "model_args", EVQ_LMMS_OBJECT | EVQ_LMMS_PLAIN | EVQ_LMMS_NULL, NULL);
    evq_lmms_field(f, "num_fewshot", EVQ_LMMS_INT | EVQ_LMMS_NULL, NULL);
    evq_lmms_field(f, "batch_size", EVQ_LMMS_INT | EVQ_LMMS_TEXT | EVQ_LMMS_NULL, NULL);
    evq_lmms_field(f, "device", EVQ_LMMS_TEXT | EVQ_LMMS_NULL, NULL);
    evq_lmms_field(f, "limit", EVQ_LMMS_INT | EVQ_LMMS_FLOAT | EVQ_LMMS_NULL, NULL);
    evq_lmms_field(f, "gen_kwargs", EVQ_LMMS_TEXT | EVQ_LMMS_NULL, NULL);
    evq_lmms_field(f, "log_samples", EVQ_LMMS_BOOL, "true");
    evq_lmms_field(f, "predict_only", EVQ_LMMS_BOOL, "false");
    evq_lmms_field(f, "num_gpus", EVQ_LMMS_INT, "1");
    evq_lmms_field(f, "output_dir", EVQ_LMMS_TEXT | EVQ_LMMS_NULL, NULL);
    if (json_object_get(body, "lmms_engine_kwargs") != NULL) {
        evq_lmms_field(f, "lmms_engine_kwargs", EVQ_LMMS_OBJECT | EVQ_LMMS_NULL, NULL);
    }
}

/* Parses "pretrained=/a/b,dtype=float16" into an object of texts. */
static json_t *args_of_text(const char *text)
{
    json_t *args = json_object();

    while (args != NULL && *text != '\0') {
        const size_t bytes = strcspn(text, ",");
        const char *equals = memchr(text, '=', bytes);
        if (equals != NULL && equals > text) {
            char *key = strndup(text, (size_t)(equals - text));
            const size_t value_bytes = bytes - (size_t)(equals + 1 - text);
            if (key == NULL ||
                json_object_set_new(args, key, json_stringn(equals + 1, value_bytes)) != 0) {
                json_decref(args);
                args = NULL;
            }
            free(key);
        }
        text += bytes + (text[bytes] == ',');
    }
    return args;
}

static int64_t gpus_of(const json_t *value)
{
    int64_t gpus = json_is_integer(value) ? json_integer_value(value) : 1;
    const char *text = json_string_value(value);
    char *end = NULL;

    if (text != NULL) {
        gpus = strtoll(text, &end, 10);
        gpus = end != text && *end == '\0' ? gpus : 1;
    }
    return gpus < 1 ? 1 : gpus; // LMMS-Eval's server also starts at least one process.
}

static bool is_one(const json_t *value)
{
    const char *text = json_string_value(value);

    return json_integer_value(value) == 1 || (text != NULL && strcmp(text, "1") == 0);
}

/*
 * num_gpus and batch_size may stand at the top level and, as the public guide writes them, within
 * model_args. Released clients always send 1 at the top level. So a value other than 1 at the top
 * level wins, then the value in model_args counts, then 1 (of batch_size: what was sent).
 */
static enum evq_status args_read(struct evq_lmms_request *request)
{
    const json_t *given = json_object_get(request->echo, "model_args");

    request->args = json_is_string(given)   ? args_of_text(json_string_value(given))
                    : json_is_object(given) ? json_copy((json_t *)(uintptr_t)given)
                                            : json_object();
    if (request->args == NULL) {
        return EVQ_E_NOMEM;
    }
    const json_t *above = json_object_get(request->echo, "batch_size");
    const json_t *inside = json_object_get(request->args, "batch_size");
    const bool taken = (json_is_null(above) || is_one(above)) &&
                       (json_is_integer(inside) || json_is_string(inside));
    request->batch = json_deep_copy(taken ? inside : above);
    if (request->batch == NULL) {
        return EVQ_E_NOMEM;
    }
    (void)json_object_del(request->args, "batch_size"); // -1: it is not there.
    request->gpus = gpus_of(json_object_get(request->echo, "num_gpus"));
    if (request->gpus == 1) {
        request->gpus = gpus_of(json_object_get(request->args, "num_gpus"));
    }
    (void)json_object_del(request->args, "num_gpus"); // -1: it is not there.
    return EVQ_OK;
}

const char *evq_lmms_member_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* Returns the key of model_args that names the model: a known key, or one whose value is an
 * absolute path. NULL: there is none. */
static const char *model_key(const json_t *args, const char *path)
{
    const char *key = NULL;
    json_t *value = NULL;

    for (size_t i = 0; i < MODEL_KEY_COUNT; i++) {
        const char *text = evq_lmms_member_text(args, model_keys[i]);
        if (path != NULL ? strcmp(text, path) == 0 : text[0] == '/') {
            return model_keys[i];
        }
    }
    json_object_foreach((json_t *)(uintptr_t)args, key, value)
    {
        const char *text = json_string_value(value);
        if (text != NULL && (path != NULL ? strcmp(text, path) == 0 : text[0] == '/')) {
            return key;
        }
    }
    return NULL;
}

static void model_find(struct evq_lmms_request *request)
{
    const json_t *engine = json_object_get(request->echo, "lmms_engine_kwargs");
    const char *name = "";

    request->merge = json_is_object(engine);
    request->path = evq_lmms_member_text(engine, "model_path");
    request->variant =
        strcmp(evq_lmms_member_text(engine, "checkpoint_type"), "ema") == 0 ? "ema" : "regular";
    request->output_dir = evq_lmms_member_text(request->echo, "output_dir");
    const char *key = model_key(request->args, request->path[0] != '\0' ? request->path : NULL);
    request->key = key != NULL ? key : "";
    if (request->path[0] == '\0' && key != NULL) {
        request->path = evq_lmms_member_text(request->args, key);
    }
    for (size_t i = 0; i < MODEL_KEY_COUNT && name[0] == '\0'; i++) {
        name = evq_lmms_member_text(request->args, model_keys[i]);
    }
    name = name[0] != '\0' ? name : request->path;
    evq_lmms_model_dir(name[0] != '\0' ? name : evq_lmms_member_text(request->echo, "model"),
                       request->model_dir);
}

/* Checks sizes that pydantic does not limit, but that do not fit into a job. */
static enum evq_status limits_check(const struct evq_lmms_request *request, size_t bytes,
                                    json_t **ret_fault)
{
    if (bytes > EVQ_LMMS_REQUEST_BYTES_MAX) {
        *ret_fault = evq_lmms_fault("too_long", "Request should have at most 24576 bytes", NULL);
        return *ret_fault != NULL ? EVQ_E_INVALID : EVQ_E_NOMEM;
    }
    if (request->gpus > EVQ_LMMS_GPUS_MAX) {
        *ret_fault =
            evq_lmms_fault("less_than_equal", "num_gpus: Input should be less than or equal to 64",
                           json_object_get(request->echo, "num_gpus"));
        return *ret_fault != NULL ? EVQ_E_INVALID : EVQ_E_NOMEM;
    }
    return EVQ_OK;
}

enum evq_status evq_lmms_request_read(const char *body, size_t bytes,
                                      struct evq_lmms_request **ret_request, json_t **ret_fault)
{
    struct evq_lmms_fields fields = {.body = NULL};
    json_t *value = NULL;

    struct evq_lmms_request *request = calloc(1, sizeof *request);
    enum evq_status status =
        request == NULL ? EVQ_E_NOMEM : body_read(body, bytes, &value, ret_fault);
    if (status == EVQ_OK) {
        evq_lmms_fields_begin(&fields, value);
        if (!fields.failed) {
            fields_of_evaluate(&fields, value);
        }
        status = fields_take(&fields, &request->echo, ret_fault);
    }
    if (status == EVQ_OK) {
        status = args_read(request);
    }
    if (status == EVQ_OK) {
        model_find(request);
        status = limits_check(request, bytes, ret_fault);
    }
    evq_lmms_fields_end(&fields);
    json_decref(value);
    if (status != EVQ_OK) {
        evq_lmms_request_free(request);
        return status;
    }
    *ret_request = request;
    return EVQ_OK;
}

void evq_lmms_request_free(struct evq_lmms_request *request)
{
    if (request != NULL) {
        json_decref(request->echo);
        json_decref(request->args);
        json_decref(request->batch);
        free(request);
    }
}

enum evq_status evq_lmms_merge_read(const char *body, size_t bytes,
                                    struct evq_lmms_merge *ret_merge, json_t **ret_fault)
{
    struct evq_lmms_fields fields = {.body = NULL};
    json_t *value = NULL;

    *ret_merge = (struct evq_lmms_merge){.fields = NULL};
    enum evq_status status = body_read(body, bytes, &value, ret_fault);
    if (status == EVQ_OK) {
        evq_lmms_fields_begin(&fields, value);
        if (!fields.failed) {
            evq_lmms_field(&fields, "checkpoint_path", EVQ_LMMS_TEXT, NULL);
            evq_lmms_field(&fields, "output_path", EVQ_LMMS_TEXT | EVQ_LMMS_NULL, NULL);
            evq_lmms_field_word(&fields, "checkpoint_type", "regular", "ema");
        }
        status = fields_take(&fields, &ret_merge->fields, ret_fault);
    }
    if (status == EVQ_OK) {
        ret_merge->path = evq_lmms_member_text(ret_merge->fields, "checkpoint_path");
        ret_merge->output_path = evq_lmms_member_text(ret_merge->fields, "output_path");
        ret_merge->variant = evq_lmms_member_text(ret_merge->fields, "checkpoint_type");
    }
    evq_lmms_fields_end(&fields);
    json_decref(value);
    return status;
}

void evq_lmms_merge_free(struct evq_lmms_merge *merge)
{
    json_decref(merge->fields);
    *merge = (struct evq_lmms_merge){.fields = NULL};
}

void evq_lmms_model_dir(const char *name, char out[EVQ_LMMS_NAME_BYTES])
{
    static const char refused[] = "\"<>:/|\\?*[]";
    size_t end = strlen(name);
    size_t used = 0;
    int slashes = 0;

    while (end > 1 && name[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && (name[begin - 1] != '/' || slashes++ == 0)) {
        begin--;
    }
    for (size_t i = begin; i < end && used < EVQ_LMMS_NAME_BYTES - 3; i++) {
        if (strchr(refused, name[i]) == NULL && (unsigned char)name[i] >= 0x20) {
            out[used++] = name[i];
        } else if (used < 2 || out[used - 1] != '_' || out[used - 2] != '_' ||
                   strchr(refused, name[i - 1]) == NULL) {
            out[used++] = '_';
            out[used++] = '_';
        }
    }
    out[used] = '\0';
}
