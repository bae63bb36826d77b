#include "shared/checkpoint/root_open.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint_builder.h"

/* O_NONBLOCK: opening a FIFO must not wait. O_NOCTTY: a terminal must not become ours. */
#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

static int open_resolved(int root_fd, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)flags,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    long fd = -1;

    for (int tries = 0; tries < 64; tries++) { // EAGAIN: a rename elsewhere raced with "..".
        fd = syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) {
            break;
        }
    }
    return (int)fd;
}

int evq_root_open_stepwise(int root_fd, const char *path, int flags)
{
    char component[NAME_MAX + 1];
    int at_fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 0);

    while (at_fd >= 0) {
        const char *slash = strchr(path, '/');
        size_t bytes = slash == NULL ? strlen(path) : (size_t)(slash - path);
        const char *rest = slash == NULL ? "" : slash + strspn(slash, "/");
        bool last = rest[0] == '\0';
        if (bytes > NAME_MAX) {
            (void)close(at_fd); // Opened for walking only.
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(component, path, bytes);
        component[bytes] = '\0';
        int next_fd =
            openat(at_fd, bytes == 0 ? "." : component,
                   last ? flags | O_NOFOLLOW : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int saved = errno;
        (void)close(at_fd);
        errno = saved;
        if (last) {
            return next_fd;
        }
        at_fd = next_fd;
        path = rest;
    }
    return -1;
}

static bool climbs(const char *path)
{
    for (const char *at = path; at != NULL && *at != '\0';) {
        const char *slash = strchr(at, '/');
        size_t bytes = slash == NULL ? strlen(at) : (size_t)(slash - at);
        if (bytes == 2 && at[0] == '.' && at[1] == '.') {
            return true;
        }
        at = slash == NULL ? NULL : slash + 1;
    }
    return false;
}

static enum evq_status open_failed(int error, const char *path, struct evq_error *err)
{

    switch (error) {
    case ENOENT:
    case ESTALE:
        return evq_error_set(err, EVQ_E_GONE, "'%.160s' does not exist", path);
    case ENOTDIR:
        return evq_error_set(err, EVQ_E_GONE, "'%.160s': a part of the path is not a directory",
                             path);
    case EXDEV:
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%.160s' leaves its root directory by a symbolic link", path);
    case ELOOP:
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%.160s' is a symbolic link that is not followed here", path);
    case ENXIO:
    case ENODEV:
        return evq_error_set(err, EVQ_E_INVALID, "'%.160s' is not a regular file", path);
    case ENAMETOOLONG:
        return evq_error_set(err, EVQ_E_INVALID, "'%.160s' is longer than a path may be", path);
    default:
        return evq_error_set(err, EVQ_E_IO, "open '%.160s': %s", path, strerror(error));
    }
}

static enum evq_status open_checked(int root_fd, const char *path, int flags, int *ret_fd,
                                    struct evq_error *err)
{
    if (path[0] == '/') {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%.160s' is absolute; expected a path relative to its root", path);
    }
    if (climbs(path)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%.160s' holds '..', which no path may", path);
    }
    const char *named = path[0] == '\0' ? "." : path;
    int fd = open_resolved(root_fd, named, flags);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) {
        fd = evq_root_open_stepwise(root_fd, named, flags);
    }
    if (fd < 0) {
        return open_failed(errno, path, err);
    }
    *ret_fd = fd;
    return EVQ_OK;
}

static enum evq_status check_kind(int fd, const char *path, bool want_file, bool want_directory,
                                  struct stat *ret_info, struct evq_error *err)
{

    if (fstat(fd, ret_info) != 0) {
        return evq_error_set(err, EVQ_E_IO, "fstat '%.160s': %s", path, strerror(errno));
    }
    if (S_ISREG(ret_info->st_mode) ? want_file : S_ISDIR(ret_info->st_mode) && want_directory) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_INVALID, "'%.160s' is not a %s", path,
                         want_file ? "regular file" : "directory");
}

enum evq_status evq_root_open_any(int root_fd, const char *path, int *ret_fd, struct stat *ret_info,
                                  struct evq_error *err)
{
    int fd = -1;
    enum evq_status status = open_checked(root_fd, path, OPEN_FLAGS, &fd, err);

    if (status == EVQ_OK) {
        status = check_kind(fd, path, true, true, ret_info, err);
    }
    if (status != EVQ_OK) {
        evq_file_close(&fd);
        return status;
    }
    *ret_fd = fd;
    return EVQ_OK;
}

enum evq_status evq_root_open(int root_fd, const char *path, bool directory, int *ret_fd,
                              struct evq_error *err)
{
    struct stat info;
    int fd = -1;
    enum evq_status status = open_checked(root_fd, path, OPEN_FLAGS, &fd, err);

    if (status == EVQ_OK) {
        status = check_kind(fd, path, !directory, directory, &info, err);
    }
    if (status != EVQ_OK) {
        evq_file_close(&fd);
        return status;
    }
    *ret_fd = fd;
    return EVQ_OK;
}

enum evq_status evq_root_open_part(int root_fd, const char *folder, const char *name,
                                   enum evq_status missing, int *ret_fd, struct stat *ret_info,
                                   struct evq_error *err)
{
    char path[PATH_MAX];
    int fd = -1;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%.160s' is longer than a path may be", name);
    }
    enum evq_status status = open_checked(root_fd, path, OPEN_FLAGS, &fd, err);
    if (status == EVQ_E_GONE) {
        return evq_error_set(err, missing, "'%.160s' is not there (yet)", name);
    }
    if (status == EVQ_OK) {
        status = check_kind(fd, name, true, false, ret_info, err);
    }
    if (status != EVQ_OK) {
        evq_file_close(&fd);
        return status;
    }
    *ret_fd = fd;
    return EVQ_OK;
}
