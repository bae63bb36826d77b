#include "producer/client/pins/tree_copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"

#define COPY_BLOCK_BYTES ((size_t)8 << 20)

static enum evq_status clone_error(struct evq_error *err, const struct evq_tree_clone *clone,
                                   const char *verb, const char *path, int why)
{
    return evq_error_set(err, why == ENOENT ? EVQ_E_GONE : EVQ_E_IO, "pin: %s '%s/%s': %s", verb,
                         clone->root_path, path, strerror(why));
}

static void kind_weaken(struct evq_tree_clone *clone, enum evq_pin_kind kind)
{
    clone->kind = kind > clone->kind ? kind : clone->kind;
}

/* One block by the kernel where it can, else through a buffer. < 0: errno. */
static ssize_t block_copy(int from, int to, bool *by_kernel, uint8_t *buffer, size_t buffer_bytes)
{
    if (*by_kernel) {
        ssize_t done = copy_file_range(from, NULL, to, NULL, COPY_BLOCK_BYTES, 0);
        if (done >= 0 || (errno != EXDEV && errno != ENOSYS && errno != EINVAL &&
                          errno != EOPNOTSUPP && errno != EPERM)) {
            return done;
        }
        *by_kernel = false; // Nothing was copied yet: both are at their start.
    }
    ssize_t got = read(from, buffer, buffer_bytes);
    for (ssize_t put = 0; put < got;) {
        ssize_t part = write(to, buffer + put, (size_t)(got - put));
        if (part < 0 && errno == EINTR) {
            continue;
        }
        if (part < 0) {
            return -1;
        }
        put += part;
    }
    return got;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static enum evq_status file_copy(struct evq_tree_clone *clone, int from, int to, const char *path,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct stat before;
    struct stat after;
    const size_t buffer_bytes = 256 * 1024;
    bool by_kernel = true;
    uint8_t *buffer = NULL;
    ssize_t done = 1;

    if (fstat(from, &before) != 0) {
        return clone_error(err, clone, "read", path, errno);
    }
    if (before.st_size > clone->copy_bytes_max - clone->copied_bytes) {
        return evq_error_set(
            err, EVQ_E_FULL,
            "pin: '%s/%s' has to be copied, and its %lld bytes are over the %lld that "
            "are left of pin_bytes_max",
            clone->root_path, path, (long long)before.st_size,
            (long long)(clone->copy_bytes_max - clone->copied_bytes));
    }
    buffer = malloc(buffer_bytes);
    if (buffer == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "pin: '%s/%s'", clone->root_path, path);
    }
    for (int64_t total = 0; done > 0 && total <= before.st_size; total += done) {
        if (clone->stopped != NULL && clone->stopped(clone->stop_context)) {
            status = evq_error_set(err, EVQ_E_STOPPED, "pin: stopped in '%s/%s'", clone->root_path,
                                   path);
            goto out;
        }
        done = block_copy(from, to, &by_kernel, buffer, buffer_bytes);
        if (done < 0 && errno == EINTR) {
            done = 1;
            total--;
        }
    }
    if (done < 0) {
        status = clone_error(err, clone, "copy", path, errno);
    } else if (fstat(from, &after) != 0 || !same_file(&before, &after)) {
        status = evq_error_set(err, EVQ_E_CHANGED, "pin: '%s/%s' changed while it was copied",
                               clone->root_path, path);
    }
    clone->copied_bytes += before.st_size;
    kind_weaken(clone, EVQ_PIN_COPY);
out:
    free(buffer);
    return status;
}

/* Links the file behind descriptor `from`, so that it is the one that was looked at. */
static bool file_link(int from, int target_fd, const char *name)
{
    char self[64];

    (void)snprintf(self, sizeof(self), "/proc/self/fd/%d", from);
    return linkat(AT_FDCWD, self, target_fd, name, AT_SYMLINK_FOLLOW) == 0;
}

static enum evq_status file_clone(struct evq_tree_clone *clone, int from, const char *path,
                                  int target_fd, const char *name, struct evq_error *err)
{
    struct stat info;

    if (++clone->files > EVQ_PIN_FILES_MAX) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "pin: '%s/%s': more than %d files",
                             clone->root_path, path, EVQ_PIN_FILES_MAX);
    }
    if (fstat(from, &info) != 0) {
        return clone_error(err, clone, "read", path, errno);
    }
    clone->bytes += info.st_size;
    if (!clone->reflink && clone->hard_link && file_link(from, target_fd, name)) {
        kind_weaken(clone, EVQ_PIN_HARD_LINK);
        return EVQ_OK;
    }
    int to = openat(target_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, info.st_mode & 0777);
    if (to < 0) {
        return clone_error(err, clone, "pin", path, errno);
    }
    enum evq_status status = EVQ_OK;
    if (clone->reflink && ioctl(to, FICLONE, from) == 0) {
        goto out;
    }
    clone->lacks_reflink =
        clone->lacks_reflink || (clone->reflink && (errno == EOPNOTSUPP || errno == ENOTTY));
    clone->reflink = false;
    if (clone->hard_link && unlinkat(target_fd, name, 0) == 0) {
        if (file_link(from, target_fd, name)) {
            kind_weaken(clone, EVQ_PIN_HARD_LINK);
            goto out;
        }
        close(to);
        to = openat(target_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, info.st_mode & 0777);
        if (to < 0) {
            return clone_error(err, clone, "pin", path, errno);
        }
    }
    status = file_copy(clone, from, to, path, err);
out:
    if (close(to) != 0 && status == EVQ_OK) {
        status = clone_error(err, clone, "write", path, errno);
    }
    return status;
}

static enum evq_status tree_clone(struct evq_tree_clone *clone, const char *path, int target_fd,
                                  const char *name, int depth, struct evq_error *err);

static enum evq_status directory_clone(struct evq_tree_clone *clone, const char *path,
                                       int target_fd, const char *name, int depth,
                                       struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    DIR *dir = NULL;
    int into = -1;
    int fd = -1;

    if (depth >= EVQ_PIN_DEPTH_MAX) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "pin: '%s/%s' is deeper than %d directories",
                             clone->root_path, path, EVQ_PIN_DEPTH_MAX);
    }
    status = evq_root_open(clone->root_fd, path, true, &fd, err);
    if (status != EVQ_OK) {
        return status;
    }
    dir = fdopendir(fd);
    if (dir == NULL) {
        status = clone_error(err, clone, "read", path, errno);
        close(fd);
        goto out;
    }
    if (mkdirat(target_fd, name, 0777) != 0 ||
        (into = openat(target_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0) {
        status = clone_error(err, clone, "pin", path, errno);
        goto out;
    }
    struct dirent *entry = NULL;
    while (status == EVQ_OK && (entry = readdir(dir)) != NULL) {
        char below[PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            strcmp(entry->d_name, ".evalq") == 0) {
            continue;
        }
        int written = snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
        status = written < (int)sizeof(below)
                     ? tree_clone(clone, below, into, entry->d_name, depth + 1, err)
                     : evq_error_set(err, EVQ_E_UNSUPPORTED, "pin: a path in '%s/%s' is too long",
                                     clone->root_path, path);
    }
out:
    if (into >= 0) {
        close(into);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return status;
}

static enum evq_status tree_clone(struct evq_tree_clone *clone, const char *path, int target_fd,
                                  const char *name, int depth, struct evq_error *err)
{
    struct stat info;

    if (fstatat(clone->root_fd, path, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return clone_error(err, clone, "read", path, errno);
    }
    if (S_ISDIR(info.st_mode)) {
        return directory_clone(clone, path, target_fd, name, depth, err);
    }
    if (S_ISLNK(info.st_mode) && fstatat(clone->root_fd, path, &info, 0) == 0 &&
        S_ISDIR(info.st_mode)) {
        return directory_clone(clone, path, target_fd, name, depth, err);
    }
    if (!S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode)) {
        return EVQ_OK; // Sockets, pipes, devices hold no weights.
    }
    int from = -1; // A link that leaves the root is refused here.
    enum evq_status status = evq_root_open(clone->root_fd, path, false, &from, err);
    if (status == EVQ_OK) {
        status = file_clone(clone, from, path, target_fd, name, err);
        close(from);
    }
    return status;
}

enum evq_status evq_tree_clone(struct evq_tree_clone *clone, const char *path, int target_fd,
                               const char *name, struct evq_error *err)
{
    clone->kind = EVQ_PIN_REFLINK;
    clone->copied_bytes = 0;
    clone->bytes = 0;
    clone->files = 0;
    clone->lacks_reflink = false;
    return tree_clone(clone, path, target_fd, name, 0, err);
}

static enum evq_status tree_remove(int parent_fd, const char *name, int depth,
                                   struct evq_error *err)
{
    if (unlinkat(parent_fd, name, 0) == 0 || errno == ENOENT) {
        return EVQ_OK;
    }
    if (errno != EISDIR && errno != EPERM) {
        return evq_error_set(err, EVQ_E_IO, "remove '%s': %s", name, strerror(errno));
    }
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || depth > EVQ_PIN_DEPTH_MAX + 1) {
        if (fd >= 0) {
            close(fd);
        }
        return evq_error_set(err, EVQ_E_IO, "remove '%s': %s", name,
                             fd < 0 ? strerror(errno) : "too deep");
    }
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        close(fd);
        return evq_error_set(err, EVQ_E_NOMEM, "remove '%s'", name);
    }
    enum evq_status status = EVQ_OK;
    struct dirent *entry = NULL;
    while (status == EVQ_OK && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            status = tree_remove(dirfd(dir), entry->d_name, depth + 1, err);
        }
    }
    closedir(dir);
    if (status == EVQ_OK && unlinkat(parent_fd, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        status = evq_error_set(err, EVQ_E_IO, "remove '%s': %s", name, strerror(errno));
    }
    return status;
}

enum evq_status evq_tree_remove(int parent_fd, const char *name, struct evq_error *err)
{
    return tree_remove(parent_fd, name, 0, err);
}
