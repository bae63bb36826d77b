#include "producer/gateway/lmms/lmms_result.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json_memory.h"

#define ENDING         "_results.json"
#define LOOKED_AT_MAX  16
#define FILE_BYTES_MAX (64 << 20)
#define SINGAPORE_MS   (8 * 3600 * 1000LL) // lmms-eval names its files with Singapore time.

static int is_results(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && strlen(entry->d_name) > strlen(ENDING) &&
           evq_file_ends_with(entry->d_name, ENDING);
}

/* Whether the file says that it belongs to this job. Several jobs may use one directory. */
static bool file_is_ours(const char *path, const char *job)
{
    struct stat info;

    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > FILE_BYTES_MAX) {
        return false;
    }
    json_t *file = json_load_file(path, 0, NULL);
    const char *said = json_string_value(json_object_get(json_object_get(file, "evalq"), "job"));
    const bool ours = said != NULL && strcmp(said, job) == 0;
    json_decref(file);
    return ours;
}

/* The newest results file of this job; false: there is none. */
static bool file_find(const struct evq_lmms_output *output, char path[PATH_MAX])
{
    struct dirent **list = NULL;
    bool found = false;

    const int count = scandir(output->directory, &list, is_results, alphasort);
    for (int i = count - 1; i >= 0 && i >= count - LOOKED_AT_MAX && !found; i--) {
        const int bytes = snprintf(path, PATH_MAX, "%s/%s", output->directory, list[i]->d_name);
        found = bytes > 0 && bytes < PATH_MAX && file_is_ours(path, output->job);
    }
    for (int i = 0; i < count; i++) {
        free(list[i]);
    }
    free(list);
    return found;
}

/* Finds the files DIRECTORY/TIME_samples_TASK.jsonl with the same TIME as the results. */
static json_t *samples_find(const struct evq_lmms_output *output, const char *results)
{
    char start[NAME_MAX + 1];
    char path[PATH_MAX];
    const struct dirent *entry;
    const char *slash = strrchr(results, '/');

    (void)snprintf(start, sizeof start, "%.*s_samples_", (int)(strlen(slash + 1) - strlen(ENDING)),
                   slash + 1);
    json_t *list = json_array();
    DIR *stream = opendir(output->directory);
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        const int bytes = snprintf(path, sizeof path, "%s/%s", output->directory, entry->d_name);
        if (strncmp(entry->d_name, start, strlen(start)) == 0 &&
            evq_file_ends_with(entry->d_name, ".jsonl") && bytes > 0 && bytes < PATH_MAX) {
            (void)json_array_append_new(list, json_string(path)); // Fewer, where memory is short.
        }
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
    return list;
}

/* "acc,none" -> "acc_stderr,none". */
static void std_error_name(const char *metric, char *out, size_t out_bytes)
{
    const size_t head = strcspn(metric, ",");
    (void)snprintf(out, out_bytes, "%.*s_stderr%s", (int)head, metric, metric + head);
}

/* JSON has no NaN: lmms-eval writes "N/A", and its clients read that as NaN. */
static json_t *number_json(double value, json_t *otherwise)
{
    if (isfinite(value)) {
        json_decref(otherwise);
        return json_real(value);
    }
    return otherwise;
}

static json_t *task_json(const struct evq_result *result)
{
    char name[192];
    json_t *task = json_pack("{s:s}", "alias", result->task);

    for (size_t i = 0; i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        (void)json_object_set_new(task, metric->name,
                                  number_json(metric->value, json_string("N/A")));
        if (!isnan(metric->std_error)) {
            std_error_name(metric->name, name, sizeof name);
            (void)json_object_set_new(task, name,
                                      number_json(metric->std_error, json_string("N/A")));
        }
    }
    return task;
}

/* The file as lm-eval lays it out, as far as the queue knows what belongs into it. */
static json_t *file_json(const struct evq_lmms_output *output, struct evq_result *const *results,
                         size_t count)
{
    char name[160];
    json_t *tasks = json_object();
    json_t *samples = json_object();

    for (size_t i = 0; i < count; i++) {
        (void)snprintf(name, sizeof name, "%s%s", results[i]->task, output->suffix);
        (void)json_object_set_new(tasks, name, task_json(results[i]));
        if (results[i]->n >= 0) {
            (void)json_object_set_new(samples, name,
                                      json_pack("{s:I, s:I}", "original", (json_int_t)results[i]->n,
                                                "effective", (json_int_t)results[i]->n));
        }
    }
    return json_pack("{s:o, s:o, s:s, s:{s:s, s:s, s:s}}", "results", tasks, "n-samples", samples,
                     "model_name", output->model, "evalq", "job", output->job, "variant",
                     output->variant, "from", "queue");
}

/* Written beside and renamed, so that nobody reads half of it. Returns 0 or errno. */
static int file_write(const struct evq_lmms_output *output, struct evq_result *const *results,
                      size_t count, char path[PATH_MAX])
{
    char partial[PATH_MAX];
    char when[32];
    struct tm parts;
    const int64_t at_ms = (count > 0 ? results[0]->finished_ms : 0) + SINGAPORE_MS;
    const time_t seconds = (time_t)(at_ms / 1000);

    if (gmtime_r(&seconds, &parts) == NULL ||
        strftime(when, sizeof when, "%Y%m%d_%H%M%S", &parts) == 0) {
        return EINVAL;
    }
    const int bytes = snprintf(path, PATH_MAX, "%s/%s" ENDING, output->directory, when);
    const int partial_bytes = snprintf(partial, sizeof partial, "%s/.%s-%016llx", output->directory,
                                       when, (unsigned long long)evq_clock_random());
    if (bytes < 0 || bytes >= PATH_MAX || partial_bytes < 0 || partial_bytes >= PATH_MAX) {
        return ENAMETOOLONG;
    }
    if (evq_file_make_directories(output->directory, 0777, NULL) != EVQ_OK) {
        return errno != 0 ? errno : EIO;
    }
    json_t *file = file_json(output, results, count);
    if (file == NULL || evq_json_memory_failed()) {
        json_decref(file);
        return ENOMEM;
    }
    errno = 0;
    int failed =
        json_dump_file(file, partial, JSON_INDENT(2)) != 0 ? (errno != 0 ? errno : EIO) : 0;
    json_decref(file);
    if (failed == 0 && rename(partial, path) != 0) {
        failed = errno;
    }
    if (failed != 0) {
        (void)unlink(partial); // It may not have been made.
    }
    return failed;
}

static json_t *metrics_json(struct evq_result *const *results, size_t count)
{
    json_t *tasks = json_object();

    for (size_t i = 0; i < count; i++) {
        json_t *metrics = json_object();
        for (size_t k = 0; k < results[i]->metric_count; k++) {
            const struct evq_metric *metric = &results[i]->metrics[k];
            (void)json_object_set_new(metrics, metric->name,
                                      number_json(metric->value, json_null()));
        }
        (void)json_object_set_new(tasks, results[i]->task, metrics);
    }
    return tasks;
}

json_t *evq_lmms_result(const struct evq_lmms_output *output, struct evq_result *const *results,
                        size_t count)
{
    char path[PATH_MAX];
    int failed = 0;

    bool found = file_find(output, path);
    if (!found && count > 0) {
        failed = file_write(output, results, count, path);
        found = failed == 0;
    }
    json_t *entry =
        json_pack("{s:o, s:o, s:o, s:s, s:s}", "results", found ? json_string(path) : json_null(),
                  "samples", found ? samples_find(output, path) : json_array(), "metrics",
                  metrics_json(results, count), "variant", output->variant, "job", output->job);
    if (failed != 0 && entry != NULL) {
        (void)json_object_set_new(
            entry, "note",
            json_sprintf("write a file in '%s': %s", output->directory, strerror(failed)));
    }
    return entry;
}
