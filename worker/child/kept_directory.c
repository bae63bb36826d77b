#include "worker/child/kept_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "worker/child/scratch.h"

/* Whether the locked file is still the one at path. Another process may have removed it while this
 * process waited. */
static bool lock_is_current(int fd, const char *path)
{
    struct stat held;
    struct stat named;

    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino;
}

enum evq_status evq_kept_directory_lock(const char *path, const char *what,
                                        const struct evq_eval_report *report, int *ret_fd,
                                        bool *ret_made, struct evq_error *err)
{
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    char lock[EVQ_KEPT_DIRECTORY_BYTES];
    char status[64];
    struct stat info;

    if (snprintf(lock, sizeof(lock), "%s" EVQ_KEPT_DIRECTORY_LOCK, path) >= (int)sizeof(lock)) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%.60s...' is too long", path);
    }
    (void)snprintf(status, sizeof(status), "waits for %s", what);
    for (;;) {
        const int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
            return evq_error_set(err, EVQ_E_IO, "open '%s': %s", lock, strerror(errno));
        }
        if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
            *ret_made = stat(path, &info) == 0;
            if ((*ret_made || flock(fd, LOCK_EX | LOCK_NB) == 0) && lock_is_current(fd, lock)) {
                *ret_fd = fd;
                return EVQ_OK;
            }
        }
        (void)close(fd);
        if (report->progress(report->context, -1, -1, status) != EVQ_OK) {
            return evq_error_set(err, EVQ_E_STOPPED, "stopped while waiting for %s", what);
        }
        (void)nanosleep(&pause, NULL);
    }
}

bool evq_kept_directory_remove(const char *path)
{
    char partial[EVQ_KEPT_DIRECTORY_BYTES + sizeof(EVQ_KEPT_DIRECTORY_PARTIAL)];
    char lock[EVQ_KEPT_DIRECTORY_BYTES + sizeof(EVQ_KEPT_DIRECTORY_LOCK)];
    bool removed = false;

    (void)snprintf(partial, sizeof(partial), "%s" EVQ_KEPT_DIRECTORY_PARTIAL, path);
    (void)snprintf(lock, sizeof(lock), "%s" EVQ_KEPT_DIRECTORY_LOCK, path);
    int fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    // Another process may have removed it in the meantime, and a third may be making it again
    // behind a new lock of the same name.
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && lock_is_current(fd, lock)) {
        evq_scratch_remove(partial);
        evq_scratch_remove(path);
        (void)unlink(lock);
        removed = true;
    }
    evq_file_close(&fd);
    return removed;
}
