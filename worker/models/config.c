#include "worker/models/config.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)

struct evq_model_config {
    struct evq_arena *arena;
    const struct evq_checkpoint *checkpoint; // NULL: only the options are known.
    const struct evq_task_config *task;
    const struct evq_model_value *values; // The values of config.json.
    size_t count;
    const char *file; // The name for messages.
    struct evq_error fault;
};

static enum evq_status read_values(struct evq_model_config *config, int fd, struct evq_error *err)
{
    struct evq_model_value *values = NULL;
    struct stat info;

    if (fstat(fd, &info) != 0) {
        return evq_error_set(err, EVQ_E_IO, "'%s': %s", config->file, strerror(errno));
    }
    if (info.st_size < 0 || (size_t)info.st_size > FILE_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s' holds %lld bytes, allowed are %zu",
                             config->file, (long long)info.st_size, FILE_BYTES_MAX);
    }
    const size_t bytes = (size_t)info.st_size;
    char *text = malloc(bytes + 1);
    if (text == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", bytes);
    }
    enum evq_status status = evq_file_read_at(fd, text, bytes, 0, config->file, err);
    if (status == EVQ_OK) {
        status = evq_model_config_json(config->arena, text, bytes, &values, &config->count, err);
        config->values = values;
        if (status != EVQ_OK) {
            // It returns the status that it was given.
            (void)evq_error_prefix(err, "'%s'", config->file);
        }
    }
    free(text);
    return status;
}

static enum evq_status open_file(struct evq_model_config *config, struct evq_error *err)
{
    const char *told =
        evq_pair_get(config->task->model, config->task->model_count, "config_path", "");
    int fd = -1;
    enum evq_status status = EVQ_OK;

    if (told[0] != '\0') {
        config->file = told;
        fd = open(told, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0) {
            return evq_error_set(err, EVQ_E_NOT_FOUND, "model: config_path '%s': %s", told,
                                 strerror(errno));
        }
    } else {
        config->file =
            evq_arena_printf(config->arena, "config.json of %s", config->checkpoint->path);
        status = evq_checkpoint_open_sibling(config->checkpoint, "config.json", &fd, err);
        if (status == EVQ_E_GONE) {
            config->file = NULL;
            if (err != NULL) {
                *err = (struct evq_error){0}; // An MLP has no config.json.
            }
            return EVQ_OK;
        }
    }
    if (status == EVQ_OK) {
        status = read_values(config, fd, err);
        (void)close(fd); // It was opened for reading, so a failed close loses nothing.
    }
    return status;
}

enum evq_status evq_model_config_open(const struct evq_checkpoint *checkpoint,
                                      const struct evq_task_config *task,
                                      struct evq_model_config **ret_config, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct evq_arena *arena = evq_arena_new(0);
    struct evq_model_config *config =
        arena == NULL ? NULL : evq_arena_alloc(arena, sizeof(*config));

    if (config == NULL) {
        evq_arena_free(arena);
        return evq_error_set(err, EVQ_E_NOMEM, "a model's configuration");
    }
    config->arena = arena;
    config->checkpoint = checkpoint;
    config->task = task;
    if (checkpoint != NULL) {
        status = open_file(config, err);
    }
    if (status != EVQ_OK) {
        evq_model_config_free(config);
        return status;
    }
    *ret_config = config;
    return EVQ_OK;
}

void evq_model_config_free(struct evq_model_config *config)
{
    if (config != NULL) {
        evq_arena_free(config->arena);
    }
}

struct found { // One value, and where it comes from.
    enum evq_model_value_kind kind;
    const char *text;
    const char *where;
};

static const char *scalar_text(struct evq_model_config *config, const struct evq_scalar *scalar,
                               enum evq_model_value_kind *ret_kind)
{
    switch (scalar->kind) {
    case EVQ_SCALAR_BOOL:
        *ret_kind = EVQ_MODEL_VALUE_FLAG;
        return scalar->integer != 0 ? "true" : "false";
    case EVQ_SCALAR_INTEGER:
        *ret_kind = EVQ_MODEL_VALUE_NUMBER;
        return evq_arena_printf(config->arena, "%lld", (long long)scalar->integer);
    case EVQ_SCALAR_REAL:
        *ret_kind = EVQ_MODEL_VALUE_NUMBER;
        return evq_arena_printf(config->arena, "%.17g", scalar->real);
    case EVQ_SCALAR_TEXT:
        *ret_kind = EVQ_MODEL_VALUE_TEXT;
        return evq_arena_strndup(config->arena, scalar->text, scalar->text_bytes);
    default:
        return NULL;
    }
}

static bool find_scalar(struct evq_model_config *config, const char *name, struct found *found)
{
    static const char *const places[] = {"model_args", "hyper_parameters"};
    struct evq_scalar scalar;
    char path[300];

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const int length = snprintf(path, sizeof(path), "%s.%s", places[i], name);
        if (length < 0 || (size_t)length >= sizeof(path) ||
            !evq_checkpoint_scalar(config->checkpoint, path, &scalar)) {
            continue;
        }
        found->text = scalar_text(config, &scalar, &found->kind);
        found->where = places[i];
        if (found->text != NULL) {
            return true;
        }
    }
    return false;
}

/* Whether the value is in the group, at any depth. */
static bool is_within(const char *value, const char *group)
{
    const size_t bytes = strlen(group);

    return strncmp(value, group, bytes) == 0 && value[bytes] == '.';
}

/* If a name or a group comes twice, Python takes the last, and so do we. */
static const struct evq_model_value *find_value(const struct evq_model_config *config,
                                                const char *name)
{
    for (size_t i = config->count; i > 0; i--) {
        const struct evq_model_value *value = &config->values[i - 1];
        if (strcmp(value->name, name) == 0) {
            return value;
        }
        if (is_within(name, value->name)) {
            return NULL; // Earlier values belong to another group of this name.
        }
    }
    return NULL;
}

static bool find(struct evq_model_config *config, const char *name, struct found *found)
{
    *found = (struct found){
        .kind = EVQ_MODEL_VALUE_WORD,
        .text = evq_pair_get(config->task->model, config->task->model_count, name, NULL),
        .where = "model"};
    if (found->text != NULL) {
        return true;
    }
    const struct evq_model_value *value = find_value(config, name);
    if (value != NULL && value->kind != EVQ_MODEL_VALUE_NULL) {
        *found = (struct found){value->kind, value->text, config->file};
        return true;
    }
    return config->checkpoint != NULL && find_scalar(config, name, found);
}

bool evq_model_config_null(struct evq_model_config *config, const char *name)
{
    const struct evq_model_value *value = find_value(config, name);

    return !evq_model_config_has(config, name) && value != NULL;
}

bool evq_model_config_told(const struct evq_model_config *config, const char *name)
{
    return evq_pair_get(config->task->model, config->task->model_count, name, NULL) != NULL;
}

bool evq_model_config_has(struct evq_model_config *config, const char *name)
{
    struct found found;

    return find(config, name, &found);
}

bool evq_model_config_holds(const struct evq_model_config *config, const char *name)
{
    bool found = false;

    for (size_t i = config->count; i > 0 && strcmp(config->values[i - 1].name, name) != 0; i--) {
        found = found || is_within(config->values[i - 1].name, name);
    }
    return found;
}

size_t evq_model_config_values(const struct evq_model_config *config,
                               const struct evq_model_value **ret_values)
{
    *ret_values = config->values;
    return config->count;
}

/* Keeps the first fault. where: origin of the value; NULL: the fault is not about one value. */
static void refuse(struct evq_model_config *config, enum evq_status status, const char *where,
                   const char *message)
{
    if (config->fault.status == EVQ_OK) {
        config->fault.status =
            evq_error_set(&config->fault, status, "%s%s%s", where != NULL ? where : "",
                          where != NULL ? ": " : "", message);
    }
}

void evq_model_config_refuse(struct evq_model_config *config, enum evq_status status,
                             const char *format, ...)
{
    char message[sizeof(config->fault.message)];
    va_list arguments;

    va_start(arguments, format);
    // The text is truncated if it is too long.
    (void)vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    refuse(config, status, config->file, message);
}

enum evq_status evq_model_config_fault(const struct evq_model_config *config, struct evq_error *err)
{
    if (config->fault.status == EVQ_OK) {
        return EVQ_OK;
    }
    return evq_error_set(err, config->fault.status, "%s", config->fault.message);
}

static void refuse_value(struct evq_model_config *config, const char *name,
                         const struct found *found, const char *expected)
{
    char shown[64];
    char message[sizeof(config->fault.message)];

    evq_error_escape(found->text, strlen(found->text), shown, sizeof(shown));
    (void)snprintf(message, sizeof(message), "%s is '%s', expected %s", name, shown, expected);
    refuse(config, EVQ_E_INVALID, found->where, message);
}

static void refuse_missing(struct evq_model_config *config, const char *name)
{
    char message[sizeof(config->fault.message)];

    if (config->checkpoint == NULL) {
        return; // A checkpoint is there when it matters.
    }
    (void)snprintf(message, sizeof(message),
                   "%s is not known: it is neither in %s nor among the model options", name,
                   config->file != NULL ? config->file
                                        : "the checkpoint (and no config.json is beside it)");
    refuse(config, EVQ_E_INVALID, NULL, message);
}

/* Reads options and numbers alike: the whole text must be one finite number. */
static bool number_of(const struct found *found, double *ret_value)
{
    char *end = NULL;

    if (found->kind != EVQ_MODEL_VALUE_NUMBER && found->kind != EVQ_MODEL_VALUE_WORD) {
        return false;
    }
    *ret_value = strtod(found->text, &end);
    return end != found->text && *end == '\0' && isfinite(*ret_value);
}

int64_t evq_model_config_integer(struct evq_model_config *config, const char *name, int64_t least,
                                 int64_t most, int64_t fallback)
{
    struct found found;
    double value = 0;
    char expected[80];

    if (!find(config, name, &found)) {
        if (fallback < least) {
            refuse_missing(config, name);
            return least;
        }
        return fallback;
    }
    // Python may have written 768.0. Every value in the range is exact as a double.
    if (!number_of(&found, &value) || floor(value) != value || value < (double)least ||
        value > (double)most) {
        (void)snprintf(expected, sizeof(expected), "a whole number from %lld to %lld",
                       (long long)least, (long long)most);
        refuse_value(config, name, &found, expected);
        return least;
    }
    return (int64_t)value;
}

double evq_model_config_real(struct evq_model_config *config, const char *name, double fallback)
{
    struct found found;
    double value = 0;

    if (!find(config, name, &found)) {
        if (isnan(fallback)) {
            refuse_missing(config, name);
            return 1.0;
        }
        return fallback;
    }
    if (!number_of(&found, &value) || value <= 0) {
        refuse_value(config, name, &found, "a finite number above zero");
        return 1.0;
    }
    return value;
}

bool evq_model_config_flag(struct evq_model_config *config, const char *name, bool fallback)
{
    struct found found;

    if (!find(config, name, &found)) {
        return fallback;
    }
    const bool yes = strcmp(found.text, "true") == 0;
    const bool known = yes || strcmp(found.text, "false") == 0;
    if (!known || (found.kind != EVQ_MODEL_VALUE_FLAG && found.kind != EVQ_MODEL_VALUE_WORD)) {
        refuse_value(config, name, &found, "true or false");
        return fallback;
    }
    return yes;
}

const char *evq_model_config_text(struct evq_model_config *config, const char *name,
                                  const char *fallback)
{
    struct found found;

    if (!find(config, name, &found)) {
        if (fallback == NULL) {
            refuse_missing(config, name);
            return "";
        }
        return fallback;
    }
    if (found.kind != EVQ_MODEL_VALUE_TEXT && found.kind != EVQ_MODEL_VALUE_WORD) {
        refuse_value(config, name, &found, "text");
        return fallback != NULL ? fallback : "";
    }
    return found.text;
}
