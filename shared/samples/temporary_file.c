#include "shared/samples/temporary_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"

#define TRIES_MAX     16 // A sweep may remove a new file before it is locked.
#define RANDOM_BYTES  6  // Of the name, as of mkstemp().
#define RANDOM_SUFFIX ".XXXXXX"

enum evq_status evq_temporary_file_open(const char *final_path, struct evq_temporary_file *ret,
                                        struct evq_error *err)
{
    char parent[EVQ_SAMPLES_PATH_BYTES];
    struct stat info;

    assert(strchr(final_path, '/') != NULL);
    (void)snprintf(parent, sizeof parent, "%s", final_path);
    *strrchr(parent, '/') = '\0'; // A samples file is at least two directories deep.
    for (int i = 0; i < TRIES_MAX; i++) {
        const enum evq_status status = evq_file_make_directories(parent, 0777, err);
        if (status != EVQ_OK) {
            return status;
        }
        // Two attempts can run at the same time on two machines, so the name is unique.
        (void)snprintf(ret->path, sizeof ret->path, "%s" RANDOM_SUFFIX, final_path);
        ret->fd = mkostemp(ret->path, O_CLOEXEC);
        if (ret->fd < 0 && errno == ENOENT) {
            continue; // The directory was empty, and somebody removed it.
        }
        if (ret->fd < 0) {
            return evq_error_set(err, EVQ_E_IO, "create '%s': %s", ret->path, strerror(errno));
        }
        // Without locks on this file system, a sweep gets none either and removes nothing.
        (void)flock(ret->fd, LOCK_EX);
        if (fstat(ret->fd, &info) == 0 && info.st_nlink > 0) {
            // The logger and other users may read it. A failure loses only that.
            (void)fchmod(ret->fd, 0644);
            return EVQ_OK;
        }
        evq_file_close(&ret->fd);
    }
    return evq_error_set(err, EVQ_E_IO, "'%s' was removed %d times", ret->path, TRIES_MAX);
}

enum evq_status evq_temporary_file_finish(struct evq_temporary_file *file, const char *final_path,
                                          struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (rename(file->path, final_path) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "rename '%s' to '%s': %s", file->path, final_path,
                               strerror(errno));
        evq_temporary_file_drop(file);
    }
    evq_file_close(&file->fd);
    return status;
}

void evq_temporary_file_drop(struct evq_temporary_file *file)
{
    if (file->fd >= 0) {
        (void)unlink(file->path); // A file that stays is removed by a sweep.
        evq_file_close(&file->fd);
    }
}

bool evq_temporary_file_sweep(const char *path)
{
    const size_t bytes = strlen(path);
    const size_t ending = strlen(EVQ_SAMPLES_SUFFIX RANDOM_SUFFIX);
    bool removed = false;

    if (bytes <= ending ||
        strncmp(path + bytes - ending, EVQ_SAMPLES_SUFFIX ".", ending - RANDOM_BYTES) != 0) {
        return false;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        removed = unlink(path) == 0;
    }
    evq_file_close(&fd);
    return removed;
}
