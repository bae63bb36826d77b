#include "worker/evaluators/result_files.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/evaluators/harness_results.h"
#include "worker/evaluators/python_json.h"

#define FILE_BYTES_MAX   (16U << 20)
#define STD_ERROR_SUFFIX "_stderr"
#define TASKS_MAX        256

void evq_results_free(struct evq_results *results)
{
    for (size_t i = 0; i < results->count; i++) {
        evq_result_free(results->items[i]);
    }
    free(results->items);
    *results = (struct evq_results){0};
}

static bool name_valid(const char *name)
{
    const size_t bytes = strlen(name);

    return bytes > 0 && bytes <= EVQ_METRIC_NAME_BYTES_MAX &&
           evq_metric_name_printable(name) == bytes;
}

/* Recognises the name of a standard error: NAME_stderr or NAME_stderr_KIND, possibly followed by
 * ",FILTER", as lm-eval and lmms-eval write them ("acc_stderr_clt,none" belongs to "acc,none").
 * Returns the position of "_stderr", or NULL if name is a metric. */
static const char *std_error_suffix(const char *name)
{
    const char *comma = name + strcspn(name, ",");
    const size_t bytes = strlen(STD_ERROR_SUFFIX);

    for (const char *at = strstr(name, STD_ERROR_SUFFIX); at != NULL && at < comma;
         at = strstr(at + 1, STD_ERROR_SUFFIX)) {
        if (at > name && (at + bytes == comma || at[bytes] == '_')) {
            return at;
        }
    }
    return NULL;
}

static bool std_error_is_of(const char *name, const char *suffix, const char *metric)
{
    const size_t head = (size_t)(suffix - name);

    return strncmp(name, metric, head) == 0 &&
           strcmp(metric + head, suffix + strcspn(suffix, ",")) == 0;
}

/* If there are several kinds, the shortest name counts: NAME_stderr before NAME_stderr_clt. */
static double std_error_find(const json_t *metrics, const char *metric)
{
    double found = (double)NAN;
    size_t shortest = SIZE_MAX;
    const char *key;
    json_t *value;
    double number;

    json_object_foreach((json_t *)(uintptr_t)metrics, key, value)
    {
        const char *suffix = std_error_suffix(key);
        if (suffix != NULL && std_error_is_of(key, suffix, metric) && strlen(key) < shortest &&
            evq_python_json_number(value, &number)) {
            found = number;
            shortest = strlen(key);
        }
    }
    return found;
}

static enum evq_status metric_add(struct evq_result *result, struct evq_metric *metrics,
                                  const json_t *all, const char *key, const json_t *value,
                                  const char *where, struct evq_error *err)
{
    double number;

    if (!name_valid(key)) {
        char shown[64]; // The beginning of a name that is too long.
        return evq_error_set(
            err, EVQ_E_INVALID,
            "%s: a metric of task '%s' is named '%s' (%zu bytes), expected 1 to %d "
            "bytes without control characters",
            where, result->task, evq_error_escape(key, strlen(key), shown, sizeof(shown)),
            strlen(key), EVQ_METRIC_NAME_BYTES_MAX);
    }
    if (std_error_suffix(key) != NULL) {
        return EVQ_OK; // It is published with its metric, and is not a metric itself.
    }
    if (!evq_python_json_number(value, &number)) {
        return evq_error_set(err, EVQ_E_INVALID, "%s: metric '%s' of task '%s' is not a number",
                             where, key, result->task);
    }
    if (strcmp(key, "n") == 0) {
        if (!(number >= 0 && number < 9e15)) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "%s: 'n' of task '%s' is %g, expected a count of samples", where,
                                 result->task, number);
        }
        result->n = (int64_t)number;
        return EVQ_OK;
    }
    if (result->metric_count == EVQ_RESULT_METRICS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT,
                             "%s: task '%s' has more than %d metrics ('%s' is one too many): "
                             "make them tasks of their own",
                             where, result->task, EVQ_RESULT_METRICS_MAX, key);
    }
    char *name = evq_arena_strdup(result->arena, key);
    if (name == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%s", where);
    }
    metrics[result->metric_count++] = (struct evq_metric){.name = name,
                                                          .value = number,
                                                          .higher_is_better = -1,
                                                          .std_error = std_error_find(all, key)};
    return EVQ_OK;
}

enum evq_status evq_results_task(const char *task, const json_t *metrics, const char *where,
                                 struct evq_result **ret_result, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    const char *key;
    json_t *value;

    struct evq_result *result = evq_result_new();
    struct evq_metric *list =
        result != NULL ? evq_arena_array(result->arena, EVQ_RESULT_METRICS_MAX, sizeof(*list))
                       : NULL;
    if (list == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "%s", where);
        goto out;
    }
    result->task = evq_arena_strdup(result->arena, task);
    result->metrics = list;
    result->n = -1;
    if (result->task == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "%s", where);
        goto out;
    }
    // jansson can iterate over a const object only after a cast. Nothing is changed.
    json_object_foreach((json_t *)(uintptr_t)metrics, key, value)
    {
        status = metric_add(result, list, metrics, key, value, where, err);
        if (status != EVQ_OK) {
            goto out;
        }
    }
    if (result->metric_count == 0) {
        status = evq_error_set(err, EVQ_E_INVALID, "%s: no metric of task '%s'", where, task);
        goto out;
    }
    *ret_result = result;
    result = NULL;
out:
    evq_result_free(result);
    return status;
}

static bool task_is_done(const char *task, const char *const *tasks_done, size_t task_done_count)
{
    for (size_t i = 0; i < task_done_count; i++) {
        if (strcmp(task, tasks_done[i]) == 0) {
            return true;
        }
    }
    return false;
}

static enum evq_status results_add(struct evq_results *results, const char *task,
                                   const json_t *metrics, const char *where, struct evq_error *err)
{
    struct evq_result *result = NULL;

    enum evq_status status = evq_results_task(task, metrics, where, &result, err);
    if (status == EVQ_OK) {
        results->items[results->count++] = result;
    }
    return status;
}

/* Whether the file is {METRIC: number}, for a suite of one task, and not {TASK: {...}}. The first
 * value decides. */
static bool json_is_flat(const json_t *json)
{
    void *first = json_object_iter((json_t *)(uintptr_t)json);

    return first == NULL || !json_is_object(json_object_iter_value(first));
}

/* The task's name in the file: its own name, or its option `source`. */
static const char *task_source(const struct evq_task_config *task)
{
    return evq_pair_get(task->options, task->option_count, "source", task->name);
}

/* A misspelt task in a file that was written for us is an error. A harness also lists the parts of
 * a task, which is allowed. */
static enum evq_status tasks_check(const struct evq_suite *suite, const json_t *json,
                                   const char *path, struct evq_error *err)
{
    const char *key;
    json_t *value;
    char name[256];

    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < suite->task_count; i++) {
            const char *source = task_source(&suite->tasks[i]);
            known = known || strcmp(source, key) == 0 || strcmp(source, "*") == 0;
        }
        if (!known) {
            return evq_error_set(err, EVQ_E_INVALID, "'%s': '%s' is not a task of suite '%s'", path,
                                 evq_error_escape(key, strlen(key), name, sizeof(name)),
                                 suite->name);
        }
    }
    return EVQ_OK;
}

/* For a suite whose only task has `source: "*"`: every task of the file is taken. Names that the
 * queue cannot carry are mapped, and groups without own metrics are skipped. */
static enum evq_status tasks_take(const char *const *tasks_done, size_t task_done_count,
                                  const json_t *json, const char *path, struct evq_results *results,
                                  struct evq_error *err)
{
    char name[EVQ_JOB_NAME_BYTES_MAX + 1];
    const char *key;
    json_t *metrics;

    if (json_object_size(json) > TASKS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s' has %zu tasks, allowed %d", path,
                             json_object_size(json), TASKS_MAX);
    }
    json_object_foreach((json_t *)(uintptr_t)json, key, metrics)
    {
        evq_job_map_name(key, EVQ_JOB_NAME_BYTES_MAX, name);
        if (!json_is_object(metrics) || json_object_size(metrics) == 0 ||
            task_is_done(name, tasks_done, task_done_count)) {
            continue;
        }
        const enum evq_status status = results_add(results, name, metrics, path, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    return results->count > 0 || task_done_count > 0
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_INVALID, "'%s' has no task with metrics", path);
}

static enum evq_status tasks_pick(const struct evq_suite *suite, const char *const *tasks_done,
                                  size_t task_done_count, const json_t *json, const char *path,
                                  struct evq_results *results, struct evq_error *err)
{
    for (size_t i = 0; i < suite->task_count; i++) {
        const char *task = suite->tasks[i].name;
        const char *source = task_source(&suite->tasks[i]);
        if (task_is_done(task, tasks_done, task_done_count)) {
            continue;
        }
        const json_t *metrics = json_object_get(json, source);
        if (!json_is_object(metrics)) {
            return evq_error_set(err, EVQ_E_INVALID, "'%s' has no metrics of task '%s'", path,
                                 source);
        }
        const enum evq_status status = results_add(results, task, metrics, path, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    return EVQ_OK;
}

enum evq_status evq_result_files_read(const struct evq_suite *suite, const char *const *tasks_done,
                                      size_t task_done_count, const char *form, const char *path,
                                      struct evq_results *ret_results, struct evq_error *err)
{
    enum evq_status status;
    struct evq_results results = {0};
    json_t *json = NULL;

    const bool open = suite->task_count == 1 && strcmp(task_source(&suite->tasks[0]), "*") == 0;
    const size_t room = open ? TASKS_MAX : suite->task_count;
    results.items = calloc(room > 0 ? room : 1, sizeof(*results.items));
    if (results.items == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", path);
    }
    const bool harness = form[0] != '\0';
    status = harness ? evq_harness_results_read(path, FILE_BYTES_MAX, &json, err)
                     : evq_python_json_file(AT_FDCWD, path, FILE_BYTES_MAX, &json, err);
    if (status == EVQ_OK && !harness && json_is_flat(json)) {
        status =
            suite->task_count == 1
                ? results_add(&results, suite->tasks[0].name, json, path, err)
                : evq_error_set(
                      err, EVQ_E_INVALID,
                      "'%s': suite '%s' has %zu tasks, so {TASK: {METRIC: number}} is expected",
                      path, suite->name, suite->task_count);
    } else if (status == EVQ_OK) {
        status = harness ? EVQ_OK : tasks_check(suite, json, path, err);
        if (status == EVQ_OK && open) {
            status = tasks_take(tasks_done, task_done_count, json, path, &results, err);
        } else if (status == EVQ_OK) {
            status = tasks_pick(suite, tasks_done, task_done_count, json, path, &results, err);
        }
    }
    json_decref(json);
    if (status != EVQ_OK) {
        evq_results_free(&results);
        return status;
    }
    *ret_results = results;
    return EVQ_OK;
}
