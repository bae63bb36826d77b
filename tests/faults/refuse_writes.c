/*
 * Preloaded (LD_PRELOAD): a file system that turns read-only, or fails, while files of it are open
 * for writing, which no mount can be made to do.
 *
 *   EVQ_REFUSE_UNDER  a directory: what lies beneath it is meant
 *   EVQ_REFUSE_FILE   16 bytes (native): the error of every write there, 0 for none, which may
 * change at any time; and how many were refused
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct orders {
    _Atomic uint64_t error;
    _Atomic uint64_t refused;
};

static struct orders *orders; // In the file; NULL: there are none.
static const char *under;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("EVQ_REFUSE_FILE");
    const int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

    under = getenv("EVQ_REFUSE_UNDER");
    if (path == NULL) {
        return;
    }
    void *shared = fd >= 0 && under != NULL
                       ? mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
    if (shared == MAP_FAILED) {
        _exit(125); // What is not refused must not pass for what was.
    }
    orders = shared;
}

/* Whether a write to the path is refused: errno is set, and it is counted. */
static bool refused_path(const char *path)
{
    const uint64_t error = orders != NULL ? atomic_load(&orders->error) : 0;

    if (error == 0 || strncmp(path, under, strlen(under)) != 0) {
        return false;
    }
    atomic_fetch_add(&orders->refused, 1);
    errno = (int)error;
    return true;
}

static bool refused_fd(int fd, const char *name)
{
    char link[64];
    char path[2 * PATH_MAX];

    if (orders == NULL || atomic_load(&orders->error) == 0) {
        return false;
    }
    if (name[0] == '/') {
        return refused_path(name);
    }
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t bytes = fd != AT_FDCWD ? readlink(link, path, PATH_MAX) : 0;
    (void)snprintf(path + (bytes > 0 ? bytes : 0), PATH_MAX, "/%s", name);
    return refused_path(path);
}

static int opened(int dir_fd, const char *path, int flags, mode_t mode)
{
    const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;

    if (writes && refused_fd(dir_fd, path)) {
        return -1;
    }
    return (int)syscall(SYS_openat, dir_fd, path, flags, mode);
}

static mode_t mode_of(int flags, va_list more)
{
    return (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
}

#pragma GCC visibility push(default) // What replaces the C library's must be seen.

int open(const char *path, int flags, ...)
{
    va_list more;

    va_start(more, flags);
    const mode_t mode = mode_of(flags, more);
    va_end(more);
    return opened(AT_FDCWD, path, flags, mode);
}

int openat(int dir_fd, const char *path, int flags, ...)
{
    va_list more;

    va_start(more, flags);
    const mode_t mode = mode_of(flags, more);
    va_end(more);
    return opened(dir_fd, path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    return refused_fd(fd, "") ? -1 : syscall(SYS_write, fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    return refused_fd(fd, "") ? -1 : syscall(SYS_pwrite64, fd, data, bytes, offset);
}

int ftruncate(int fd, off_t bytes)
{
    return refused_fd(fd, "") ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
}

int mkdir(const char *path, mode_t mode)
{
    struct stat info;

    if (stat(path, &info) == 0) {
        errno = EEXIST; // Before it looks at the file system, as the kernel does.
        return -1;
    }
    return refused_path(path) ? -1 : (int)syscall(SYS_mkdir, path, mode);
}

int rename(const char *from, const char *to)
{
    return refused_path(from) ? -1 : (int)syscall(SYS_rename, from, to);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return refused_fd(from_fd, from) ? -1 : (int)syscall(SYS_renameat, from_fd, from, to_fd, to);
}

int unlink(const char *path)
{
    return refused_path(path) ? -1 : (int)syscall(SYS_unlink, path);
}

int unlinkat(int dir_fd, const char *path, int flags)
{
    return refused_fd(dir_fd, path) ? -1 : (int)syscall(SYS_unlinkat, dir_fd, path, flags);
}
