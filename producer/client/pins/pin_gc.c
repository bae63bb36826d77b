/* Releases pins whose jobs have ended, lists the pins of a directory and collects them. Declared in
 * pin.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "producer/client/pins/pin_record.h"
#include "producer/client/pins/tree_copy.h"
#include "shared/base/clock.h"

#define HALF_KEPT_S 3600 // An unfinished pin of this age is removed.

enum evq_status evq_pin_release(const char *directory, struct evq_error *err)
{
    char parent[PATH_MAX];
    char half[64];
    const char *name = strrchr(directory, '/');

    if (name == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is not the directory of a pin", directory);
    }
    (void)snprintf(parent, sizeof(parent), "%.*s", (int)(name - directory), directory);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_IO, "open '%s': %s", parent, strerror(errno));
    }
    // The pin is renamed first, so that nobody sees a part of it.
    (void)snprintf(half, sizeof(half), ".half-%016llx", (unsigned long long)evq_clock_random());
    enum evq_status status = EVQ_OK;
    if (renameat(fd, name + 1, fd, half) == 0) {
        status = evq_tree_remove(fd, half, err);
    } else if (errno != ENOENT) {
        status = evq_error_set(err, EVQ_E_IO, "remove '%s': %s", directory, strerror(errno));
    }
    close(fd);
    return status;
}

/* Whether a job needs the pin. waited: jobs that were never sent, or that are lost, have
 * had enough time. */
static bool job_needs(const struct evq_pin_record *record, const struct evq_pin_record_job *job,
                      bool waited, evq_pin_job_fn job_state, void *context)
{
    if (job->sent_as == NULL) {
        return !job->refused && !waited;
    }
    switch (job_state(context, record->queue, job->sent_as, job->epoch)) {
    case EVQ_PIN_JOB_ENDED:
        return false;
    case EVQ_PIN_JOB_LOST:
        return !waited;
    default:
        return true;
    }
}

int evq_pin_lock(const char *directory)
{
    char path[PATH_MAX + 8];

    (void)snprintf(path, sizeof(path), "%s/" EVQ_PIN_RECORD_NAME, directory);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) {
        (void)flock(fd, LOCK_EX); // Without locks, only the rename protects the pin.
    }
    return fd;
}

enum evq_status evq_pin_release_if_ended(const char *directory, evq_pin_job_fn job_state,
                                         void *context, int64_t unsent_ms, bool *ret_released,
                                         struct evq_error *err)
{
    struct evq_pin_record record;
    struct stat info;
    bool needed = false;

    *ret_released = false;
    if (evq_pin_record_read(directory, &record) != EVQ_OK) {
        *ret_released = true; // An earlier call released it.
        return EVQ_OK;
    }
    bool waited = unsent_ms >= 0 && evq_clock_unix_ms() - record.created_ms > unsent_ms;
    for (size_t at = 0; at < record.job_count && !needed; at++) {
        needed = job_needs(&record, &record.jobs[at], waited, job_state, context);
    }
    size_t bytes = record.text.bytes;
    evq_buffer_free(&record.text);
    if (needed) {
        return EVQ_OK;
    }
    // Another process may have added a job since the record was read. The record only grows.
    int lock = evq_pin_lock(directory);
    enum evq_status status = EVQ_OK;
    if (lock < 0 || (fstat(lock, &info) == 0 && (uint64_t)info.st_size == bytes)) {
        status = evq_pin_release(directory, err);
        *ret_released = status == EVQ_OK;
    }
    if (lock >= 0) {
        close(lock);
    }
    return status;
}

struct pins_walk {
    const char *output_dir;
    const char *queue;
    evq_pin_fn on_pin;
    evq_pin_job_fn job_state;
    void *context;
    int64_t unsent_ms;
    int64_t released;
    int64_t left;
};

static void half_remove(int pins_fd, const char *name)
{
    struct stat info;

    if (fstatat(pins_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        info.st_mtim.tv_sec < evq_clock_unix_ms() / 1000 - HALF_KEPT_S) {
        (void)!evq_tree_remove(pins_fd, name, NULL); // If this fails, the next gc tries again.
    }
}

static void walk_one(struct pins_walk *walk, const char *directory)
{
    struct evq_pin_record record;

    if (evq_pin_record_read(directory, &record) != EVQ_OK) {
        return;
    }
    if (walk->on_pin != NULL) {
        struct evq_pin_info info = {.directory = directory,
                                    .queue = record.queue,
                                    .run = record.run,
                                    .copied_bytes = record.copied_bytes};
        walk->on_pin(walk->context, &info);
    } else if (walk->queue == NULL || strcmp(walk->queue, record.queue) == 0) {
        bool released = false;
        // A pin that cannot be removed is counted as left.
        (void)!evq_pin_release_if_ended(directory, walk->job_state, walk->context, walk->unsent_ms,
                                        &released, NULL);
        walk->released += released;
        walk->left += !released;
    }
    evq_buffer_free(&record.text);
}

static enum evq_status pins_each(struct pins_walk *walk, struct evq_error *err)
{
    char path[PATH_MAX];
    char directory[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/" EVQ_PINS_PATH, walk->output_dir);
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return errno == ENOENT || errno == ENOTDIR
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
    }
    struct dirent *entry = NULL;
    while ((entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, ".half-", 6) == 0 && walk->on_pin == NULL) {
            half_remove(dirfd(dir), entry->d_name);
        } else if (entry->d_name[0] != '.' && snprintf(directory, sizeof(directory), "%s/%s", path,
                                                       entry->d_name) < (int)sizeof(directory)) {
            walk_one(walk, directory);
        }
    }
    closedir(dir);
    return EVQ_OK;
}

enum evq_status evq_pin_list(const char *output_dir, evq_pin_fn on_pin, void *context,
                             struct evq_error *err)
{
    struct pins_walk walk = {.output_dir = output_dir, .on_pin = on_pin, .context = context};

    return pins_each(&walk, err);
}

enum evq_status evq_pin_gc(const char *output_dir, const char *queue, evq_pin_job_fn job_state,
                           void *context, int64_t unsent_ms, int64_t *ret_released,
                           int64_t *ret_left, struct evq_error *err)
{
    struct pins_walk walk = {.output_dir = output_dir,
                             .queue = queue,
                             .job_state = job_state,
                             .context = context,
                             .unsent_ms = unsent_ms};
    enum evq_status status = pins_each(&walk, err);

    *ret_released = walk.released;
    *ret_left = walk.left;
    evq_pin_tidy(output_dir);
    return status;
}

void evq_pin_tidy(const char *output_dir)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/" EVQ_PINS_PATH, output_dir);
    if (rmdir(path) == 0) { // It fails, as it should, if the directory is not empty.
        (void)snprintf(path, sizeof(path), "%s/.evalq", output_dir);
        (void)rmdir(path);
    }
}
