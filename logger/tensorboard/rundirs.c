#include "logger/tensorboard/rundirs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "logger/directory_lock.h"
#include "shared/base/file.h"
#include "shared/queue/job.h"

struct rundir {
    struct rundir *next; // Written last first.
    char name[EVQ_JOB_RUN_BYTES_MAX + 1];
    void *run;
    bool dirty;
};

struct evq_rundirs {
    char base[PATH_MAX];
    char leaf[64];
    char lock_name[64];
    int lock_fd;
    size_t open_max;
    size_t open_count;
    const struct evq_rundirs_ops *ops;
    void *context;
    struct rundir *first;
};

/* The directory and the lock in it are there; both anew where they were removed. */
static enum evq_status base_hold(struct evq_rundirs *dirs, struct evq_error *err)
{
    struct stat info;

    if (dirs->lock_fd >= 0 && fstat(dirs->lock_fd, &info) == 0 && info.st_nlink > 0) {
        return EVQ_OK;
    }
    evq_file_close(&dirs->lock_fd); // A file that nobody can find holds nobody off.
    const enum evq_status status = evq_file_make_directories(dirs->base, 0755, err);
    return status == EVQ_OK
               ? evq_directory_lock_take(dirs->base, dirs->lock_name, &dirs->lock_fd, err)
               : status;
}

enum evq_status evq_rundirs_open(const char *base, const char *leaf, const char *lock_name,
                                 size_t open_max, const struct evq_rundirs_ops *ops, void *context,
                                 struct evq_rundirs **ret_dirs, struct evq_error *err)
{
    struct evq_rundirs *dirs = calloc(1, sizeof(*dirs));

    if (dirs == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink directory '%s'", base);
    }
    dirs->lock_fd = -1;
    dirs->open_max = open_max;
    dirs->ops = ops;
    dirs->context = context;
    (void)snprintf(dirs->leaf, sizeof(dirs->leaf), "%s", leaf);
    (void)snprintf(dirs->lock_name, sizeof(dirs->lock_name), "%s", lock_name);
    enum evq_status status =
        snprintf(dirs->base, sizeof(dirs->base), "%s", base) < (int)sizeof(dirs->base)
            ? base_hold(dirs, err)
            : evq_error_set(err, EVQ_E_LIMIT, "path of sink directory '%.80s...' is too long",
                            base);
    if (status != EVQ_OK) {
        evq_rundirs_close(dirs);
        return status;
    }
    *ret_dirs = dirs;
    return EVQ_OK;
}

static void rundir_free(struct evq_rundirs *dirs, struct rundir *dir)
{
    if (dir->run != NULL) {
        dirs->ops->close(dir->run);
    }
    free(dir);
}

/* Closes the run written longest ago, after a flush, which may fail. */
static enum evq_status close_oldest(struct evq_rundirs *dirs, struct evq_error *err)
{
    struct rundir **link = &dirs->first;

    while (*link != NULL && (*link)->next != NULL) {
        link = &(*link)->next;
    }
    struct rundir *oldest = *link;
    if (oldest == NULL) {
        return EVQ_OK;
    }
    const enum evq_status status = oldest->dirty ? dirs->ops->flush(oldest->run, err) : EVQ_OK;
    *link = NULL;
    dirs->open_count--;
    rundir_free(dirs, oldest);
    return status;
}

bool evq_rundirs_name_valid(const char *name)
{
    const bool lock = name[0] == '.' && evq_file_ends_with(name, ".lock");

    return !lock && evq_job_name_valid(name, EVQ_JOB_RUN_BYTES_MAX);
}

static enum evq_status rundir_open(struct evq_rundirs *dirs, const char *name,
                                   struct rundir **ret_dir, struct evq_error *err)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s%s%s", dirs->base, name,
                          dirs->leaf[0] ? "/" : "", dirs->leaf);

    if (length >= (int)sizeof(path) || !evq_rundirs_name_valid(name)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' cannot name a run's directory", name);
    }
    enum evq_status status = base_hold(dirs, err);
    if (status == EVQ_OK) {
        status = evq_file_make_directories(path, 0755, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    struct rundir *dir = calloc(1, sizeof(*dir));
    if (dir == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", path);
    }
    (void)snprintf(dir->name, sizeof(dir->name), "%s", name);
    status = dirs->ops->open(dirs->context, path, &dir->run, err);
    if (status != EVQ_OK) {
        free(dir);
        return status;
    }
    *ret_dir = dir;
    return EVQ_OK;
}

enum evq_status evq_rundirs_get(struct evq_rundirs *dirs, const char *run, void **ret_run,
                                struct evq_error *err)
{
    struct rundir **link = &dirs->first;
    struct rundir *dir = NULL;

    while (*link != NULL && strcmp((*link)->name, run) != 0) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        dir = *link;
        *link = dir->next;
    } else {
        if (dirs->open_count >= dirs->open_max) {
            enum evq_status closed = close_oldest(dirs, err);
            if (closed != EVQ_OK) {
                return closed;
            }
        }
        enum evq_status status = rundir_open(dirs, run, &dir, err);
        if (status != EVQ_OK) {
            return status;
        }
        dirs->open_count++;
    }
    dir->next = dirs->first;
    dirs->first = dir;
    dir->dirty = true;
    *ret_run = dir->run;
    return EVQ_OK;
}

void evq_rundirs_wrote(struct evq_rundirs *dirs, const void *run, enum evq_status status)
{
    struct rundir *dir = dirs->first; // Get put it there.

    if (run == NULL || dir == NULL || dir->run != run || status == EVQ_OK ||
        status == EVQ_E_INVALID || status == EVQ_E_LIMIT) {
        return;
    }
    dirs->first = dir->next;
    dirs->open_count--;
    rundir_free(dirs, dir);
}

enum evq_status evq_rundirs_flush(struct evq_rundirs *dirs, struct evq_error *err)
{
    for (struct rundir **link = &dirs->first; *link != NULL; link = &(*link)->next) {
        struct rundir *dir = *link;
        if (!dir->dirty) {
            continue;
        }
        const enum evq_status status = dirs->ops->flush(dir->run, err);
        if (status != EVQ_OK) {
            *link = dir->next;
            dirs->open_count--;
            rundir_free(dirs, dir);
            return status;
        }
        dir->dirty = false;
    }
    return EVQ_OK;
}

void evq_rundirs_visit(struct evq_rundirs *dirs, bool (*wanted)(const char *directory))
{
    const struct dirent *entry = NULL;
    DIR *stream = opendir(dirs->base);

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        char path[PATH_MAX];
        struct evq_error ignored;
        void *run = NULL;
        const int length = snprintf(path, sizeof(path), "%s/%s%s%s", dirs->base, entry->d_name,
                                    dirs->leaf[0] != '\0' ? "/" : "", dirs->leaf);
        if (length > 0 && length < (int)sizeof(path) && evq_rundirs_name_valid(entry->d_name) &&
            wanted(path)) {
            const enum evq_status status = evq_rundirs_get(dirs, entry->d_name, &run, &ignored);
            (void)status; // Tried again at the next stop.
        }
    }
    if (stream != NULL) {
        (void)closedir(stream); // Opened for reading.
    }
}

void evq_rundirs_close(struct evq_rundirs *dirs)
{
    if (dirs == NULL) {
        return;
    }
    while (dirs->first != NULL) {
        struct rundir *dir = dirs->first;
        dirs->first = dir->next;
        rundir_free(dirs, dir);
    }
    evq_file_close(&dirs->lock_fd); // The lock goes with it.
    free(dirs);
}
