#include "producer/cli/operate/retention.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "producer/client/pins/tree_copy.h"
#include "shared/checkpoint/pin_path.h"

/* The checkpoint that a result is of, made when it is new; NULL: it has none, or no memory. */
static struct evq_retention_checkpoint *one_of(struct evq_retention *retention,
                                               const struct evq_result *result)
{
    struct evq_retention_checkpoint fresh = {.step = result->step, .why = EVQ_RETENTION_UNKNOWN};
    const char *colon = strchr(result->checkpoint, ':');

    if (colon == NULL || (size_t)(colon - result->checkpoint) >= sizeof fresh.root ||
        strlen(colon + 1) >= sizeof fresh.path) {
        return NULL;
    }
    (void)snprintf(fresh.root, sizeof fresh.root, "%.*s", (int)(colon - result->checkpoint),
                   result->checkpoint);
    (void)snprintf(fresh.job, sizeof fresh.job, "%s", result->job);
    if (evq_pin_path_saved(colon + 1, fresh.path, sizeof fresh.path)) {
        (void)snprintf(fresh.pinned, sizeof fresh.pinned, "%s", colon + 1);
    }
    for (size_t i = 0; i < retention->count; i++) {
        struct evq_retention_checkpoint *one = &retention->checkpoints[i];
        if (one->step == fresh.step && strcmp(one->root, fresh.root) == 0 &&
            strcmp(one->path, fresh.path) == 0) {
            if (fresh.pinned[0] != '\0') {
                memcpy(one->pinned, fresh.pinned, sizeof one->pinned);
            }
            return one;
        }
    }
    if (retention->count == retention->room) {
        const size_t room = retention->room == 0 ? 64 : 2 * retention->room;
        struct evq_retention_checkpoint *ones =
            reallocarray(retention->checkpoints, room, sizeof *ones);
        if (ones == NULL) {
            retention->failed = true;
            return NULL;
        }
        retention->checkpoints = ones;
        retention->room = room;
    }
    retention->checkpoints[retention->count] = fresh;
    return &retention->checkpoints[retention->count++];
}

static bool is_better(const struct evq_retention *retention, double a, double b)
{
    return retention->direction == 0 ? a < b : a > b;
}

void evq_retention_add(struct evq_retention *retention, const struct evq_result *result)
{
    char key[sizeof retention->metric];
    struct evq_retention_checkpoint *one = one_of(retention, result);

    for (size_t i = 0; one != NULL && i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        evq_result_metric_key(result, metric, key, sizeof key);
        if (strcmp(key, retention->metric) != 0) {
            continue;
        }
        retention->direction =
            retention->direction >= 0 ? retention->direction : evq_metric_direction(metric);
        if (isfinite(metric->value) &&
            (!one->has_value || is_better(retention, metric->value, one->value))) {
            one->has_value = true;
            one->value = metric->value;
            (void)snprintf(one->value_job, sizeof one->value_job, "%s", result->job);
        }
    }
}

/* Whether a goes before b among the best. */
static bool goes_before(const struct evq_retention *retention,
                        const struct evq_retention_checkpoint *a,
                        const struct evq_retention_checkpoint *b)
{
    if (a->value != b->value) {
        return is_better(retention, a->value, b->value);
    }
    return a->step < b->step;
}

void evq_retention_rank(struct evq_retention *retention, size_t top, size_t last)
{
    for (size_t i = 0; i < retention->count; i++) {
        struct evq_retention_checkpoint *one = &retention->checkpoints[i];
        size_t better = 0;
        size_t newer = 0;
        for (size_t j = 0; j < retention->count; j++) {
            const struct evq_retention_checkpoint *other = &retention->checkpoints[j];
            better +=
                other->has_value && one->has_value && j != i && goes_before(retention, other, one);
            newer += other->step > one->step;
        }
        if (one->has_value && better < top) {
            one->why = EVQ_RETENTION_TOP;
            one->rank = better + 1;
        } else if (newer < last) {
            one->why = EVQ_RETENTION_NEWEST;
        } else if (one->why != EVQ_RETENTION_IN_USE && one->why != EVQ_RETENTION_MILESTONE) {
            one->why = one->has_value ? EVQ_RETENTION_NOT : EVQ_RETENTION_UNKNOWN;
        }
    }
}

void evq_retention_free(struct evq_retention *retention)
{
    free(retention->checkpoints);
    retention->checkpoints = NULL;
    retention->count = retention->room = 0;
}

enum evq_status evq_retention_removable_path(const char *root, const char *relative,
                                             const char *const *owned, size_t owned_count,
                                             char *out, size_t out_bytes, struct evq_error *err)
{
    char path[PATH_MAX];
    char real[PATH_MAX];
    struct stat info;

    if (snprintf(path, sizeof path, "%s/%s", root, relative) >= (int)sizeof path) {
        return evq_error_set(err, EVQ_E_INVALID, "its path is too long");
    }
    if (lstat(path, &info) != 0 || realpath(path, real) == NULL) {
        return evq_error_set(err,
                             errno == ENOENT || errno == ENOTDIR ? EVQ_E_NOT_FOUND : EVQ_E_INVALID,
                             "%s", strerror(errno));
    }
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
        return evq_error_set(err, EVQ_E_INVALID, "it is neither a file nor a directory");
    }
    for (size_t i = 0; i < owned_count; i++) {
        char directory[PATH_MAX];
        if (realpath(owned[i], directory) == NULL) {
            continue;
        }
        const size_t bytes = strlen(directory);
        if (strncmp(real, directory, bytes) == 0 && real[bytes] == '/' && real[bytes + 1] != '\0') {
            (void)snprintf(out, out_bytes, "%s", real);
            return EVQ_OK;
        }
    }
    return evq_error_set(err, EVQ_E_INVALID, "it lies in no directory given by --own");
}

static bool lies_within(const char *path, const char *directory)
{
    const size_t bytes = strlen(directory);
    return strncmp(path, directory, bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0');
}

const struct evq_retention_checkpoint *
evq_retention_sharer(const struct evq_retention *retention,
                     const struct evq_retention_checkpoint *one)
{
    for (size_t i = 0; i < retention->count; i++) {
        const struct evq_retention_checkpoint *other = &retention->checkpoints[i];
        if (other->why != EVQ_RETENTION_NOT && strcmp(other->root, one->root) == 0 &&
            lies_within(other->path, one->path)) {
            return other;
        }
    }
    return NULL;
}

enum evq_status evq_retention_remove(const char *path, struct evq_error *err)
{
    char parent[PATH_MAX];
    char hidden[NAME_MAX + 1];
    const char *name = strrchr(path, '/');

    if (name == NULL || name == path ||
        snprintf(parent, sizeof parent, "%.*s", (int)(name - path), path) >= (int)sizeof parent ||
        snprintf(hidden, sizeof hidden, ".%s.evalq-removed", name + 1) >= (int)sizeof hidden) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s' has too long a name to be removed", path);
    }
    const int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", parent, strerror(errno));
    }
    // The hidden name exists if an earlier call removed only a part.
    enum evq_status status = evq_tree_remove(fd, hidden, err);
    if (status == EVQ_OK && renameat(fd, name + 1, fd, hidden) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "rename '%s': %s", path, strerror(errno));
    }
    if (status == EVQ_OK) {
        status = evq_tree_remove(fd, hidden, err);
    }
    (void)close(fd); // Opened for reading.
    return status;
}
