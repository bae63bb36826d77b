#include "logger/run_directories.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "logger/directory_lock.h"
#include "shared/base/file.h"
#include "shared/queue/job.h"

struct run_directory {
    struct run_directory *next; // Written last first.
    char name[EVQ_JOB_RUN_BYTES_MAX + 1];
    void *run;
    bool dirty;
};

struct evq_run_directories {
    char base[PATH_MAX];
    char leaf[64];
    char lock_name[64];
    int lock_fd;
    size_t open_max;
    size_t open_count;
    const struct evq_run_directories_ops *ops;
    void *context;
    struct run_directory *first;
};

/* Makes the directory and takes its lock, again if somebody removed them. */
static enum evq_status base_hold(struct evq_run_directories *directories, struct evq_error *err)
{
    struct stat info;

    if (directories->lock_fd >= 0 && fstat(directories->lock_fd, &info) == 0 && info.st_nlink > 0) {
        return EVQ_OK;
    }
    evq_file_close(&directories->lock_fd); // A file that nobody can find holds nobody off.
    const enum evq_status status = evq_file_make_directories(directories->base, 0755, err);
    return status == EVQ_OK ? evq_directory_lock_take(directories->base, directories->lock_name,
                                                      &directories->lock_fd, err)
                            : status;
}

enum evq_status evq_run_directories_open(const char *base, const char *leaf, const char *lock_name,
                                         size_t open_max, const struct evq_run_directories_ops *ops,
                                         void *context,
                                         struct evq_run_directories **ret_directories,
                                         struct evq_error *err)
{
    struct evq_run_directories *directories = calloc(1, sizeof(*directories));

    if (directories == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "sink directory '%s'", base);
    }
    directories->lock_fd = -1;
    directories->open_max = open_max;
    directories->ops = ops;
    directories->context = context;
    (void)snprintf(directories->leaf, sizeof(directories->leaf), "%s", leaf);
    (void)snprintf(directories->lock_name, sizeof(directories->lock_name), "%s", lock_name);
    enum evq_status status =
        snprintf(directories->base, sizeof(directories->base), "%s", base) <
                (int)sizeof(directories->base)
            ? base_hold(directories, err)
            : evq_error_set(err, EVQ_E_LIMIT, "path of sink directory '%.80s...' is too long",
                            base);
    if (status != EVQ_OK) {
        evq_run_directories_close(directories);
        return status;
    }
    *ret_directories = directories;
    return EVQ_OK;
}

static void run_directory_free(struct evq_run_directories *directories,
                               struct run_directory *directory)
{
    if (directory->run != NULL) {
        directories->ops->close(directory->run);
    }
    free(directory);
}

/* Closes the run written longest ago, after a flush, which may fail. */
static enum evq_status close_oldest(struct evq_run_directories *directories, struct evq_error *err)
{
    struct run_directory **link = &directories->first;

    while (*link != NULL && (*link)->next != NULL) {
        link = &(*link)->next;
    }
    struct run_directory *oldest = *link;
    if (oldest == NULL) {
        return EVQ_OK;
    }
    const enum evq_status status =
        oldest->dirty ? directories->ops->flush(oldest->run, err) : EVQ_OK;
    *link = NULL;
    directories->open_count--;
    run_directory_free(directories, oldest);
    return status;
}

bool evq_run_directories_name_valid(const char *name)
{
    const bool lock = name[0] == '.' && evq_file_ends_with(name, ".lock");

    return !lock && evq_job_name_valid(name, EVQ_JOB_RUN_BYTES_MAX);
}

static enum evq_status run_directory_open(struct evq_run_directories *directories, const char *name,
                                          struct run_directory **ret_directory,
                                          struct evq_error *err)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s%s%s", directories->base, name,
                          directories->leaf[0] ? "/" : "", directories->leaf);

    if (length >= (int)sizeof(path) || !evq_run_directories_name_valid(name)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' cannot name a run's directory", name);
    }
    enum evq_status status = base_hold(directories, err);
    if (status == EVQ_OK) {
        status = evq_file_make_directories(path, 0755, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    struct run_directory *directory = calloc(1, sizeof(*directory));
    if (directory == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", path);
    }
    (void)snprintf(directory->name, sizeof(directory->name), "%s", name);
    status = directories->ops->open(directories->context, path, &directory->run, err);
    if (status != EVQ_OK) {
        free(directory);
        return status;
    }
    *ret_directory = directory;
    return EVQ_OK;
}

enum evq_status evq_run_directories_get(struct evq_run_directories *directories, const char *run,
                                        void **ret_run, struct evq_error *err)
{
    struct run_directory **link = &directories->first;
    struct run_directory *directory = NULL;

    while (*link != NULL && strcmp((*link)->name, run) != 0) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        directory = *link;
        *link = directory->next;
    } else {
        if (directories->open_count >= directories->open_max) {
            enum evq_status closed = close_oldest(directories, err);
            if (closed != EVQ_OK) {
                return closed;
            }
        }
        enum evq_status status = run_directory_open(directories, run, &directory, err);
        if (status != EVQ_OK) {
            return status;
        }
        directories->open_count++;
    }
    directory->next = directories->first;
    directories->first = directory;
    directory->dirty = true;
    *ret_run = directory->run;
    return EVQ_OK;
}

void evq_run_directories_wrote(struct evq_run_directories *directories, const void *run,
                               enum evq_status status)
{
    struct run_directory *directory = directories->first; // Get put it there.

    if (run == NULL || directory == NULL || directory->run != run || status == EVQ_OK ||
        status == EVQ_E_INVALID || status == EVQ_E_LIMIT) {
        return;
    }
    directories->first = directory->next;
    directories->open_count--;
    run_directory_free(directories, directory);
}

enum evq_status evq_run_directories_flush(struct evq_run_directories *directories,
                                          struct evq_error *err)
{
    for (struct run_directory **link = &directories->first; *link != NULL; link = &(*link)->next) {
        struct run_directory *directory = *link;
        if (!directory->dirty) {
            continue;
        }
        const enum evq_status status = directories->ops->flush(directory->run, err);
        if (status != EVQ_OK) {
            *link = directory->next;
            directories->open_count--;
            run_directory_free(directories, directory);
            return status;
        }
        directory->dirty = false;
    }
    return EVQ_OK;
}

void evq_run_directories_close(struct evq_run_directories *directories)
{
    if (directories == NULL) {
        return;
    }
    while (directories->first != NULL) {
        struct run_directory *directory = directories->first;
        directories->first = directory->next;
        run_directory_free(directories, directory);
    }
    evq_file_close(&directories->lock_fd); // This releases the lock.
    free(directories);
}
