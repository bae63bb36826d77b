#include "producer/cli/operate/keep.h"

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

/* The checkpoint that a result is of, made when it is new; NULL: it has none, or no memory. */
static struct evq_keep_one *one_of(struct evq_keep *keep, const struct evq_result *result)
{
    struct evq_keep_one fresh = {.step = result->step, .why = EVQ_KEEP_UNKNOWN};
    const char *colon = strchr(result->checkpoint, ':');

    if (colon == NULL || (size_t)(colon - result->checkpoint) >= sizeof fresh.root ||
        strlen(colon + 1) >= sizeof fresh.path) {
        return NULL;
    }
    (void)snprintf(fresh.root, sizeof fresh.root, "%.*s", (int)(colon - result->checkpoint),
                   result->checkpoint);
    (void)snprintf(fresh.job, sizeof fresh.job, "%s", result->job);
    if (evq_job_saved_path(colon + 1, fresh.path, sizeof fresh.path)) {
        (void)snprintf(fresh.pinned, sizeof fresh.pinned, "%s", colon + 1);
    }
    for (size_t i = 0; i < keep->count; i++) {
        struct evq_keep_one *one = &keep->ones[i];
        if (one->step == fresh.step && strcmp(one->root, fresh.root) == 0 &&
            strcmp(one->path, fresh.path) == 0) {
            if (fresh.pinned[0] != '\0') {
                memcpy(one->pinned, fresh.pinned, sizeof one->pinned);
            }
            return one;
        }
    }
    if (keep->count == keep->room) {
        const size_t room = keep->room == 0 ? 64 : 2 * keep->room;
        struct evq_keep_one *ones = reallocarray(keep->ones, room, sizeof *ones);
        if (ones == NULL) {
            keep->failed = true;
            return NULL;
        }
        keep->ones = ones;
        keep->room = room;
    }
    keep->ones[keep->count] = fresh;
    return &keep->ones[keep->count++];
}

static bool is_better(const struct evq_keep *keep, double a, double b)
{
    return keep->direction == 0 ? a < b : a > b;
}

void evq_keep_add(struct evq_keep *keep, const struct evq_result *result)
{
    char key[sizeof keep->metric];
    struct evq_keep_one *one = one_of(keep, result);

    for (size_t i = 0; one != NULL && i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        evq_result_metric_key(result, metric, key, sizeof key);
        if (strcmp(key, keep->metric) != 0) {
            continue;
        }
        keep->direction = keep->direction >= 0 ? keep->direction : evq_metric_direction(metric);
        if (isfinite(metric->value) &&
            (!one->has_value || is_better(keep, metric->value, one->value))) {
            one->has_value = true;
            one->value = metric->value;
            (void)snprintf(one->value_job, sizeof one->value_job, "%s", result->job);
        }
    }
}

/* Whether a goes before b among the best. */
static bool goes_before(const struct evq_keep *keep, const struct evq_keep_one *a,
                        const struct evq_keep_one *b)
{
    if (a->value != b->value) {
        return is_better(keep, a->value, b->value);
    }
    return a->step < b->step;
}

void evq_keep_rank(struct evq_keep *keep, size_t top, size_t last)
{
    for (size_t i = 0; i < keep->count; i++) {
        struct evq_keep_one *one = &keep->ones[i];
        size_t better = 0;
        size_t newer = 0;
        for (size_t j = 0; j < keep->count; j++) {
            const struct evq_keep_one *other = &keep->ones[j];
            better += other->has_value && one->has_value && j != i && goes_before(keep, other, one);
            newer += other->step > one->step;
        }
        if (one->has_value && better < top) {
            one->why = EVQ_KEEP_TOP;
            one->rank = better + 1;
        } else if (newer < last) {
            one->why = EVQ_KEEP_NEWEST;
        } else if (one->why != EVQ_KEEP_IN_USE && one->why != EVQ_KEEP_MILESTONE) {
            one->why = one->has_value ? EVQ_KEEP_NOT : EVQ_KEEP_UNKNOWN;
        }
    }
}

void evq_keep_free(struct evq_keep *keep)
{
    free(keep->ones);
    keep->ones = NULL;
    keep->count = keep->room = 0;
}

enum evq_status evq_keep_owned(const char *root, const char *relative, const char *const *owned,
                               size_t owned_count, char *out, size_t out_bytes,
                               struct evq_error *err)
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

const struct evq_keep_one *evq_keep_sharer(const struct evq_keep *keep,
                                           const struct evq_keep_one *one)
{
    for (size_t i = 0; i < keep->count; i++) {
        const struct evq_keep_one *other = &keep->ones[i];
        if (other->why != EVQ_KEEP_NOT && strcmp(other->root, one->root) == 0 &&
            lies_within(other->path, one->path)) {
            return other;
        }
    }
    return NULL;
}

enum evq_status evq_keep_remove(const char *path, struct evq_error *err)
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
    // What an earlier call left half-removed has that name.
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
