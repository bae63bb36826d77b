#include "shared/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)1 << 30) // One call takes less than 2 GiB.

static size_t piece(size_t bytes)
{
    return bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
}

enum evq_status evq_file_write(int fd, const void *data, size_t bytes, const char *name,
                               struct evq_error *err)
{
    const uint8_t *at = data;

    while (bytes > 0) {
        const ssize_t put = write(fd, at, piece(bytes));
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return evq_error_set(err, EVQ_E_IO, "write '%s': %s", name, strerror(errno));
        }
        at += put;
        bytes -= (size_t)put;
    }
    return EVQ_OK;
}

enum evq_status evq_file_write_at(int fd, const void *data, size_t bytes, uint64_t offset,
                                  const char *name, struct evq_error *err)
{
    const uint8_t *at = data;

    while (bytes > 0) {
        const ssize_t put = pwrite(fd, at, piece(bytes), (off_t)offset);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return evq_error_set(err, EVQ_E_IO, "write '%s': %s", name, strerror(errno));
        }
        at += put;
        bytes -= (size_t)put;
        offset += (uint64_t)put;
    }
    return EVQ_OK;
}

enum evq_status evq_file_sync(int fd, const char *name, struct evq_error *err)
{
    struct stat info;

    if (fdatasync(fd) != 0 || fstat(fd, &info) != 0) {
        return evq_error_set(err, EVQ_E_IO, "sync '%s': %s", name, strerror(errno));
    }
    return info.st_nlink > 0 ? EVQ_OK : evq_error_set(err, EVQ_E_GONE, "'%s' was removed", name);
}

enum evq_status evq_file_read_at(int fd, void *out, size_t bytes, uint64_t offset, const char *name,
                                 struct evq_error *err)
{
    uint8_t *at = out;

    while (bytes > 0) {
        const ssize_t got = pread(fd, at, piece(bytes), (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return evq_error_set(err, EVQ_E_IO, "read '%s': %s", name, strerror(errno));
        }
        if (got == 0) {
            return evq_error_set(err, EVQ_E_CORRUPT, "'%s' ends too early: %zu bytes are missing",
                                 name, bytes);
        }
        at += got;
        bytes -= (size_t)got;
        offset += (uint64_t)got;
    }
    return EVQ_OK;
}

enum evq_status evq_file_read(int dir_fd, const char *path, int flags, size_t bytes_max,
                              struct evq_buffer *out, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct stat info;
    char chunk[16384];
    size_t bytes = 0;
    ssize_t got = 0;

    const int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    if (fd < 0) {
        const bool absent = errno == ENOENT || errno == ENOTDIR;
        return evq_error_set(err, absent ? EVQ_E_NOT_FOUND : EVQ_E_IO, "open '%s': %s", path,
                             strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = evq_error_set(err, EVQ_E_INVALID, "'%s' is not a regular file", path);
        goto out;
    }
    // Counts what is read, because the file may grow after fstat().
    bool fits = (uintmax_t)info.st_size <= bytes_max;
    while (fits && ((got = read(fd, chunk, sizeof chunk)) > 0 || (got < 0 && errno == EINTR))) {
        if (got > 0) {
            evq_buffer_append(out, chunk, (size_t)got);
            bytes += (size_t)got;
            fits = bytes <= bytes_max;
        }
    }
    if (!fits) {
        status = evq_error_set(err, EVQ_E_LIMIT, "'%s' holds more than %zu bytes", path, bytes_max);
    } else if (got < 0) {
        status = evq_error_set(err, EVQ_E_IO, "read '%s': %s", path, strerror(errno));
    } else if (out->failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "'%s'", path);
    }
out:
    (void)close(fd); // Opened for reading: a failed close loses nothing.
    return status;
}

enum evq_status evq_file_replace(const char *path, const void *data, size_t bytes, mode_t mode,
                                 struct evq_error *err)
{
    char temporary[PATH_MAX];

    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp", path) >= sizeof temporary) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%.100s...' is too long", path);
    }
    (void)unlink(temporary); // A crash may have left one with another mode.
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", temporary, strerror(errno));
    }
    enum evq_status status = evq_file_write(fd, data, bytes, temporary, err);
    if (close(fd) != 0 && status == EVQ_OK) {
        status = evq_error_set(err, EVQ_E_IO, "write '%s': %s", temporary, strerror(errno));
    }
    if (status == EVQ_OK && rename(temporary, path) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "rename '%s' to '%s': %s", temporary, path,
                               strerror(errno));
    }
    if (status != EVQ_OK) {
        (void)unlink(temporary); // Best effort: the first error is the one to report.
    }
    return status;
}

/* Sets errno if path is not a directory. */
static bool is_directory(const char *path)
{
    struct stat info;

    if (stat(path, &info) != 0) {
        return false;
    }
    errno = ENOTDIR;
    return S_ISDIR(info.st_mode);
}

enum evq_status evq_file_make_directories(const char *path, mode_t mode, struct evq_error *err)
{
    char part[PATH_MAX];
    const size_t length = strlen(path);

    if (length == 0 || length >= sizeof part) {
        return evq_error_set(err, EVQ_E_LIMIT, "directory path of %zu bytes, allowed 1 to %zu",
                             length, sizeof part - 1);
    }
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != '\0') {
            continue;
        }
        part[i] = '\0';
        if (mkdir(part, mode) != 0 && (errno != EEXIST || !is_directory(part))) {
            return evq_error_set(err, EVQ_E_IO, "create directory '%s': %s", part, strerror(errno));
        }
        part[i] = path[i];
    }
    return EVQ_OK;
}

bool evq_file_unchanged(const struct stat *before, const struct stat *now)
{
    return before->st_dev == now->st_dev && before->st_ino == now->st_ino &&
           before->st_size == now->st_size && before->st_mtim.tv_sec == now->st_mtim.tv_sec &&
           before->st_mtim.tv_nsec == now->st_mtim.tv_nsec;
}

void evq_file_close(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd); // Callers use this only where a failed close loses nothing.
        *fd = -1;
    }
}

bool evq_file_program_find(const char *name, char *out, size_t out_bytes)
{
    if (strchr(name, '/') != NULL) {
        (void)snprintf(out, out_bytes, "%s", name);
        return access(name, X_OK) == 0;
    }
    for (const char *path = getenv("PATH"); path != NULL && *path != '\0';) {
        const size_t bytes = strcspn(path, ":");
        const int used = snprintf(out, out_bytes, "%.*s/%s", (int)bytes, path, name);
        if (bytes > 0 && used > 0 && (size_t)used < out_bytes && access(out, X_OK) == 0) {
            return true;
        }
        path += bytes + (path[bytes] == ':');
    }
    return false;
}

char *evq_file_program_fault(const char *name, int fault, char *out, size_t out_bytes)
{
    struct stat info;

    if (fault == EACCES && strchr(name, '/') != NULL && stat(name, &info) == 0 &&
        S_ISREG(info.st_mode) && access(name, X_OK) != 0) {
        (void)snprintf(out, out_bytes, "cannot be executed: %s; run `chmod +x '%s'`",
                       strerror(fault), name);
    } else {
        (void)snprintf(out, out_bytes, "cannot be executed: %s", strerror(fault));
    }
    return out;
}

bool evq_file_ends_with(const char *path, const char *ending)
{
    const size_t bytes = strlen(path);
    const size_t ending_bytes = strlen(ending);

    return bytes >= ending_bytes && strcmp(path + bytes - ending_bytes, ending) == 0;
}

bool evq_file_directory_has_entries(const char *path)
{
    struct dirent *entry;
    bool found = false;

    DIR *dir = opendir(path);
    while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
        found = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return found;
}
