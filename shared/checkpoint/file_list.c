#include "shared/checkpoint/file_list.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/arena.h"
#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/root_open.h"

#define DEPTH_MAX       16
#define PATH_BYTES      4096
#define NAMES_BYTES_MAX ((size_t)64 << 20)

struct walk {
    int root_fd;
    struct evq_file_list *list;
    size_t capacity;
    size_t below; // Length of the checkpoint's path with its slash.
    struct evq_error *err;
};

static int64_t modified_ns(const struct stat *info)
{
    return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

static enum evq_status fail(const struct walk *walk, enum evq_status status, const char *path,
                            const char *what)
{

    return evq_error_set(walk->err, status, "'%.160s' %s", path, what);
}

static enum evq_status file_add(struct walk *walk, const char *path, const struct stat *info)
{
    struct evq_file_list *list = walk->list;

    if (list->count == walk->capacity) {
        const size_t capacity = walk->capacity == 0 ? 16 : 2 * walk->capacity;
        struct evq_file_list_entry *files = realloc(list->files, capacity * sizeof(*list->files));
        if (files == NULL) {
            return evq_error_set(walk->err, EVQ_E_NOMEM, "%zu files", capacity);
        }
        list->files = files;
        walk->capacity = capacity;
    }
    const char *copy = evq_arena_strdup(list->arena, path);
    const size_t bytes = strlen(path);
    if (copy == NULL && evq_arena_used(list->arena) + PATH_BYTES > NAMES_BYTES_MAX) {
        return fail(walk, EVQ_E_LIMIT, path, "belongs to a checkpoint with too many files");
    }
    if (copy == NULL) {
        return evq_error_set(walk->err, EVQ_E_NOMEM, "the files of a checkpoint");
    }
    list->files[list->count++] =
        (struct evq_file_list_entry){.path = copy,
                                     .name = copy + (bytes > walk->below ? walk->below : bytes),
                                     .bytes = (uint64_t)info->st_size,
                                     .modified_ns = modified_ns(info),
                                     .inode = info->st_ino};
    return EVQ_OK;
}

static enum evq_status folder_walk(struct walk *walk, int fd, const char *path, int depth);

static enum evq_status too_deep(const struct walk *walk, int fd, const char *path)
{
    evq_file_close(&fd);
    return fail(walk, EVQ_E_LIMIT, path, "lies too many folders deep");
}

/* Follows a link and counts its target. A link to nothing is not a file. */
static enum evq_status link_walk(struct walk *walk, const char *path, int depth)
{
    struct stat info;
    int fd = -1;
    enum evq_status status = evq_root_open_any(walk->root_fd, path, &fd, &info, walk->err);

    if (status == EVQ_E_GONE) {
        return EVQ_OK;
    }
    if (status == EVQ_OK && S_ISDIR(info.st_mode)) {
        return depth < DEPTH_MAX ? folder_walk(walk, fd, path, depth + 1)
                                 : too_deep(walk, fd, path);
    }
    if (status == EVQ_OK) {
        status = file_add(walk, path, &info);
    }
    evq_file_close(&fd);
    return status;
}

/* error: why a listed entry cannot be looked at. */
static enum evq_status entry_failed(const struct walk *walk, const char *path, int error)
{
    return error == ENOENT || error == ENOTDIR || error == ELOOP
               ? fail(walk, EVQ_E_CHANGED, path, "went away while the checkpoint was listed")
               : fail(walk, EVQ_E_IO, path, strerror(error));
}

static enum evq_status entry_walk(struct walk *walk, int folder_fd, const char *path,
                                  const char *name, int depth)
{
    struct stat info;

    if (fstatat(folder_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return entry_failed(walk, path, errno);
    }
    if (S_ISREG(info.st_mode)) {
        return file_add(walk, path, &info);
    }
    if (S_ISLNK(info.st_mode)) {
        return link_walk(walk, path, depth);
    }
    if (!S_ISDIR(info.st_mode)) {
        return fail(walk, EVQ_E_INVALID, path, "is neither a regular file nor a directory");
    }
    if (depth >= DEPTH_MAX) {
        return too_deep(walk, -1, path);
    }
    const int fd = openat(folder_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 ? folder_walk(walk, fd, path, depth + 1) : entry_failed(walk, path, errno);
}

/* Takes over fd. */
static enum evq_status folder_walk(struct walk *walk, int fd, const char *path, int depth)
{
    enum evq_status status = EVQ_OK;
    const struct dirent *entry = NULL;
    char inner[PATH_BYTES];
    DIR *stream = fdopendir(fd);

    if (stream == NULL) {
        const int error = errno;
        (void)close(fd); // Never read from.
        return error == ENOMEM ? evq_error_set(walk->err, EVQ_E_NOMEM, "a list of files")
                               : fail(walk, EVQ_E_IO, path, strerror(error));
    }
    while (status == EVQ_OK && (errno = 0, entry = readdir(stream)) != NULL) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, ".evalq") == 0) {
            continue;
        }
        const int bytes = path[0] == '\0' ? snprintf(inner, sizeof(inner), "%s", name)
                                          : snprintf(inner, sizeof(inner), "%s/%s", path, name);
        status = bytes > 0 && (size_t)bytes < sizeof(inner)
                     ? entry_walk(walk, fd, inner, name, depth)
                     : fail(walk, EVQ_E_LIMIT, path, "holds a path that is too long");
    }
    if (status == EVQ_OK && errno != 0) {
        status = fail(walk, EVQ_E_IO, path, strerror(errno));
    }
    (void)closedir(stream); // Opened for reading: a failed close loses nothing.
    return status;
}

static int by_name(const void *a, const void *b)
{
    const struct evq_file_list_entry *left = a;
    const struct evq_file_list_entry *right = b;

    return strcmp(left->path, right->path);
}

enum evq_status evq_file_list_scan(int root_fd, const char *path, struct evq_file_list *ret,
                                   struct evq_error *err)
{
    struct evq_file_list list = {.arena = evq_arena_new(NAMES_BYTES_MAX)};
    struct walk walk = {.root_fd = root_fd, .list = &list, .err = err};
    char plain[PATH_BYTES];
    struct stat info;
    int fd = -1;

    if (list.arena == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "the files of a checkpoint");
    }
    const int bytes = snprintf(plain, sizeof(plain), "%s", strcmp(path, ".") == 0 ? "" : path);
    size_t end = bytes > 0 && (size_t)bytes < sizeof(plain) ? (size_t)bytes : 0;
    while (end > 0 && plain[end - 1] == '/') {
        plain[--end] = '\0';
    }
    walk.below = end == 0 ? 0 : end + 1;
    enum evq_status status = bytes >= 0 && (size_t)bytes < sizeof(plain)
                                 ? evq_root_open_any(root_fd, plain, &fd, &info, err)
                                 : fail(&walk, EVQ_E_INVALID, path, "is too long");
    if (status == EVQ_OK && S_ISDIR(info.st_mode)) {
        status = folder_walk(&walk, fd, plain, 0);
        fd = -1; // Closed.
    } else if (status == EVQ_OK) {
        status = file_add(&walk, plain, &info);
    }
    evq_file_close(&fd);
    if (status != EVQ_OK) {
        evq_file_list_free(&list);
        return status;
    }
    if (list.count > 0) {
        qsort(list.files, list.count, sizeof(*list.files), by_name);
    }
    *ret = list;
    return EVQ_OK;
}

void evq_file_list_free(struct evq_file_list *list)
{
    free(list->files);
    evq_arena_free(list->arena);
    *list = (struct evq_file_list){0};
}

static enum evq_status file_check(const struct walk *walk, const struct evq_file_list_entry *file)
{
    struct stat info;
    int fd = -1;
    enum evq_status status = evq_root_open_any(walk->root_fd, file->path, &fd, &info, walk->err);

    if (status == EVQ_OK &&
        (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != file->bytes ||
         modified_ns(&info) != file->modified_ns || info.st_ino != file->inode)) {
        status = fail(walk, EVQ_E_CHANGED, file->path, "changed");
    }
    evq_file_close(&fd);
    return status;
}

enum evq_status evq_file_list_verify(const struct evq_file_list *list, int root_fd,
                                     struct evq_error *err)
{
    const struct walk walk = {.root_fd = root_fd, .err = err};
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < list->count && status == EVQ_OK; i++) {
        status = file_check(&walk, &list->files[i]);
    }
    return status;
}

uint64_t evq_file_list_hash(const struct evq_file_list *list)
{
    uint64_t stamp = list->count;

    for (size_t i = 0; i < list->count; i++) {
        const struct evq_file_list_entry *file = &list->files[i];
        stamp = XXH3_64bits_withSeed(file->path, strlen(file->path), stamp);
        stamp = XXH3_64bits_withSeed(&file->bytes, sizeof(file->bytes), stamp);
    }
    return stamp;
}
