#include "producer/cli/submit/ready.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"
#include "shared/checkpoint/file_list.h"
#include "shared/checkpoint/root_open.h"

static struct evq_ready_seen *seen_find(const struct evq_ready *ready, const char *path)
{
    for (size_t i = 0; i < ready->seen_count; i++) {
        if (strcmp(ready->seen[i].path, path) == 0) {
            return &ready->seen[i];
        }
    }
    return NULL;
}

static void seen_drop(struct evq_ready *ready, struct evq_ready_seen *one)
{
    free(one->path);
    *one = ready->seen[--ready->seen_count];
}

static enum evq_status seen_add(struct evq_ready *ready, const char *path, uint64_t stamp,
                                struct evq_error *err)
{
    if (ready->seen_count == ready->seen_capacity) {
        const size_t capacity = ready->seen_capacity == 0 ? 16 : 2 * ready->seen_capacity;
        struct evq_ready_seen *items = realloc(ready->seen, capacity * sizeof *items);
        if (items == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu checkpoints", capacity);
        }
        ready->seen = items;
        ready->seen_capacity = capacity;
    }
    char *copy = strdup(path);
    if (copy == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a path");
    }
    ready->seen[ready->seen_count++] = (struct evq_ready_seen){copy, stamp, evq_clock_mono_ms()};
    return EVQ_OK;
}

static enum evq_status marker_missing(const struct evq_suite *suite, const char *path,
                                      struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_INCOMPLETE,
                         "'%s' has no file '%s' yet, for which the suite '%s' waits", path,
                         suite->ready, suite->name);
}

/* Rule 1. *ret_named: a suite names a marker, so that no other rule counts. */
static enum evq_status markers_check(const struct evq_ready *ready, int root_fd, const char *path,
                                     bool *ret_named, struct evq_error *err)
{
    int directory_fd = -1;

    *ret_named = false;
    if (evq_root_open(root_fd, path, true, &directory_fd, NULL) != EVQ_OK) {
        return EVQ_OK; // A single file: it has no place for a marker.
    }
    enum evq_status status = EVQ_OK;
    for (size_t i = 0; i < ready->suite_count && status == EVQ_OK; i++) {
        const struct evq_suite *suite = ready->suites[i];
        int fd = -1;
        if (suite->ready[0] == '\0') {
            continue;
        }
        *ret_named = true;
        if (evq_root_open(directory_fd, suite->ready, false, &fd, NULL) != EVQ_OK) {
            status = marker_missing(suite, path, err);
        }
        evq_file_close(&fd);
    }
    evq_file_close(&directory_fd);
    return status;
}

/* Returns EVQ_OK if the stamp of a checkpoint's files has been the same for EVQ_READY_MS.
 * comparable: false if the files could not be listed, so the stamp means nothing. */
static enum evq_status stamp_check(struct evq_ready *ready, const char *path, uint64_t stamp,
                                   bool comparable, struct evq_error *err)
{
    struct evq_ready_seen *one = seen_find(ready, path);
    enum evq_status status = EVQ_OK;
    const bool same = comparable && one != NULL && one->stamp == stamp;

    if (same && evq_clock_mono_ms() - one->since_ms >= EVQ_READY_MS) {
        seen_drop(ready, one);
        return EVQ_OK;
    }
    if (!same && one != NULL) {
        seen_drop(ready, one);
    }
    if (!same) {
        status = seen_add(ready, path, stamp, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    ready->waiting++;
    return evq_error_set(err, EVQ_E_INCOMPLETE, "the files of '%s' changed less than %d s ago",
                         path, EVQ_READY_MS / 1000);
}

/* Applies rule 3. */
static enum evq_status stays_check(struct evq_ready *ready, int root_fd, const char *path,
                                   struct evq_error *err)
{
    struct evq_file_list inventory = {0};
    enum evq_status status = evq_file_list_scan(root_fd, path, &inventory, err);

    if (status == EVQ_E_NOMEM) {
        return status;
    }
    if (status != EVQ_OK && status != EVQ_E_CHANGED) {
        return EVQ_OK; // The submit will report what is wrong with it.
    }
    const uint64_t stamp = evq_file_list_hash(&inventory);
    const bool comparable = status == EVQ_OK && inventory.count > 0;
    evq_file_list_free(&inventory);
    return stamp_check(ready, path, stamp, comparable, err);
}

/* Whether the manifest has a line for this file. */
static bool manifest_has(const char *manifest, const char *name)
{
    const size_t bytes = strlen(name);

    for (const char *line = manifest; *line != '\0';) {
        if (strncmp(line, name, bytes) == 0 && line[bytes] == '\t') {
            return true;
        }
        const char *end = strchr(line, '\n');
        line = end != NULL ? end + 1 : line + strlen(line);
    }
    return false;
}

enum evq_status evq_ready_check_listing(struct evq_ready *ready, const char *path,
                                        const struct evq_remote_listing *listing,
                                        struct evq_error *err)
{
    char digits[17] = "";
    bool named = false;

    for (size_t i = 0; i < ready->suite_count && !listing->is_file; i++) {
        const struct evq_suite *suite = ready->suites[i];
        named = named || suite->ready[0] != '\0';
        if (suite->ready[0] != '\0' && !manifest_has(listing->manifest, suite->ready)) {
            return marker_missing(suite, path, err);
        }
    }
    (void)snprintf(digits, sizeof digits, "%.16s", listing->fingerprint);
    return named ? EVQ_OK : stamp_check(ready, path, strtoull(digits, NULL, 16), true, err);
}

static const struct evq_suite *native_find(const struct evq_ready *ready)
{
    for (size_t i = 0; i < ready->suite_count; i++) {
        if (strcmp(ready->suites[i]->evaluator, "native") == 0 &&
            ready->suites[i]->prepare[0] == '\0') {
            return ready->suites[i];
        }
    }
    return NULL;
}

enum evq_status evq_ready_check(struct evq_ready *ready, int root_fd, const char *path,
                                struct evq_error *err)
{
    struct evq_error why = {0};
    bool named = false;
    enum evq_status status = markers_check(ready, root_fd, path, &named, err);

    if (status != EVQ_OK || named) {
        return status;
    }
    if (evq_checkpoint_check_complete(root_fd, path, &why) != EVQ_E_UNSUPPORTED) {
        return EVQ_OK; // Rule 2: the submit judges the content.
    }
    status = stays_check(ready, root_fd, path, err);
    const struct evq_suite *native = native_find(ready);
    if (status == EVQ_OK && native != NULL) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED, "the suite '%s' cannot evaluate '%s': %s",
                               native->name, path, why.message);
    }
    return status;
}

bool evq_ready_waits(const struct evq_ready *ready, const char *name)
{
    for (size_t i = 0; i < ready->seen_count; i++) {
        const char *slash = strrchr(ready->seen[i].path, '/');
        if (strcmp(slash != NULL ? slash + 1 : ready->seen[i].path, name) == 0) {
            return true;
        }
    }
    return false;
}

void evq_ready_free(struct evq_ready *ready)
{
    for (size_t i = 0; i < ready->seen_count; i++) {
        free(ready->seen[i].path);
    }
    free(ready->seen);
    *ready = (struct evq_ready){0};
}
