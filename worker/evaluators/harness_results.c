#include "worker/evaluators/harness_results.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "worker/evaluators/python_json.h"

#define DEPTH_MAX   6
#define ENTRIES_MAX 100000

struct newest {
    bool (*wanted)(const char *name, const void *context);
    const void *context;
    int dir_fd; // Directory of the newest file; -1: none found yet.
    char name[EVQ_HARNESS_NAME_BYTES];
    struct timespec time;
    size_t entries;
};

static bool name_is_results(const char *name, const void *unused)
{
    const size_t bytes = strlen(name);

    (void)unused;
    return bytes < 256 && bytes >= strlen("results.json") &&
           ((strncmp(name, "results", 7) == 0 && strcmp(name + bytes - 5, ".json") == 0) ||
            (bytes > strlen("_results.json") && strcmp(name + bytes - 13, "_results.json") == 0));
}

static bool time_is_later(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

static void newest_offer(struct newest *newest, int dir_fd, const char *name,
                         const struct stat *info)
{
    if (newest->dir_fd >= 0 && !time_is_later(&info->st_mtim, &newest->time)) {
        return;
    }
    const int copy = fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) {
        return;
    }
    evq_file_close(&newest->dir_fd);
    newest->dir_fd = copy;
    newest->time = info->st_mtim;
    (void)snprintf(newest->name, sizeof(newest->name), "%s", name);
}

/* Searches dir_fd, which it takes over. It does not follow symbolic links. */
static void directory_walk(struct newest *newest, int dir_fd, int depth)
{
    struct dirent *entry;
    struct stat info;

    DIR *dir = fdopendir(dir_fd);
    if (dir == NULL) {
        (void)close(dir_fd);
        return;
    }
    while ((entry = readdir(dir)) != NULL && newest->entries++ < ENTRIES_MAX) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        if (S_ISREG(info.st_mode) && strlen(entry->d_name) < sizeof(newest->name) &&
            newest->wanted(entry->d_name, newest->context)) {
            newest_offer(newest, dirfd(dir), entry->d_name, &info);
        } else if (S_ISDIR(info.st_mode) && depth < DEPTH_MAX) {
            const int fd =
                openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (fd >= 0) {
                directory_walk(newest, fd, depth + 1);
            }
        }
    }
    (void)closedir(dir);
}

/* Finds the count in "n-samples": {TASK: {"original": 100, "effective": 20}}. */
static json_t *samples_of(const json_t *json, const char *task)
{
    const json_t *entry = json_object_get(json_object_get(json, "n-samples"), task);

    return json_object_get(entry, "effective");
}

static json_t *task_clean(const json_t *json, const char *task, json_t *metrics)
{
    const char *key;
    json_t *value;
    double number;

    json_t *clean = json_object();
    json_object_foreach(metrics, key, value)
    {
        // Texts such as "alias" and "N/A" are not metrics, and neither are "n" and "sample_len".
        if (evq_python_json_number(value, &number) && strcmp(key, "n") != 0 &&
            strcmp(key, "sample_len") != 0) {
            (void)json_object_set(clean, key,
                                  value); // If memory runs out, the check for all tasks notices it.
        }
    }
    json_t *samples = samples_of(json, task);
    if (json_is_number(samples)) {
        (void)json_object_set(clean, "n", samples);
    }
    return clean;
}

enum evq_status evq_harness_file_find(const char *path,
                                      bool (*wanted)(const char *name, const void *context),
                                      const void *context, int *ret_dir_fd,
                                      char ret_name[EVQ_HARNESS_NAME_BYTES], struct evq_error *err)
{
    struct newest newest = {.wanted = wanted, .context = context, .dir_fd = -1};

    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "results directory '%s': %s", path,
                             strerror(errno));
    }
    directory_walk(&newest, fd, 0);
    if (newest.dir_fd < 0) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "no such file beneath '%s'", path);
    }
    *ret_dir_fd = newest.dir_fd;
    memcpy(ret_name, newest.name, sizeof(newest.name));
    return EVQ_OK;
}

enum evq_status evq_harness_results_read(const char *path, size_t bytes_max, json_t **ret_tasks,
                                         struct evq_error *err)
{
    char name[EVQ_HARNESS_NAME_BYTES];
    int dir_fd = -1;
    json_t *json = NULL;
    const char *task;
    json_t *metrics;

    enum evq_status status = evq_harness_file_find(path, name_is_results, NULL, &dir_fd, name, err);
    if (status == EVQ_E_NOT_FOUND) {
        return evq_error_set(err, status, "no results*.json or *_results.json beneath '%s'", path);
    }
    status = status == EVQ_OK ? evq_python_json_file(dir_fd, name, bytes_max, &json, err) : status;
    evq_file_close(&dir_fd);
    if (status != EVQ_OK) {
        return status;
    }
    json_t *results = json_object_get(json, "results");
    json_t *tasks = json_object();
    if (!json_is_object(results) || tasks == NULL) {
        status = evq_error_set(err, EVQ_E_INVALID, "'%s' has no object \"results\"", name);
        json_decref(tasks);
        goto out;
    }
    json_object_foreach(results, task, metrics)
    {
        if (json_is_object(metrics)) {
            (void)json_object_set_new(tasks, task, task_clean(json, task, metrics));
        }
    }
    *ret_tasks = tasks;
out:
    json_decref(json);
    return status;
}
