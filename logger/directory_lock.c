#include "logger/directory_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static enum evq_status held_by_another(int fd, const char *path, struct evq_error *err)
{
    char text[64] = "";
    const ssize_t got = pread(fd, text, sizeof(text) - 1, 0);

    text[got > 0 ? strcspn(text, "\n") : 0] = '\0';
    return evq_error_set(err, EVQ_E_CONFLICT,
                         "'%s' is locked by another logger (pid %s): stop that logger, or choose "
                         "another --directory",
                         path, text[0] != '\0' ? text : "unknown");
}

enum evq_status evq_directory_lock_take(const char *directory, const char *name, int *ret_fd,
                                        struct evq_error *err)
{
    char path[PATH_MAX];
    char text[64];
    enum evq_status status = EVQ_OK;

    if (snprintf(path, sizeof(path), "%s/%s", directory, name) >= (int)sizeof(path)) {
        return evq_error_set(err, EVQ_E_LIMIT, "path of lock file in '%s' is too long", directory);
    }
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
    }
    const int length = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    const int refused = flock(fd, LOCK_EX | LOCK_NB) != 0 ? errno : 0;
    if (refused == EWOULDBLOCK) {
        status = held_by_another(fd, path, err);
    } else if (refused != 0) { // NFS or Lustre, mounted without locks.
        status = evq_error_set(err, EVQ_E_IO, "lock '%s': %s (a file system with locks is needed)",
                               path, strerror(refused));
    } else if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)length, 0) != length) {
        status = evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
    }
    if (status != EVQ_OK) {
        (void)close(fd); // Nothing was written that a reader needs.
        return status;
    }
    *ret_fd = fd;
    return EVQ_OK;
}
