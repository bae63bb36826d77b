#include "worker/child/checkpoint_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "worker/child/kept_directory.h"

#define NAME_CHARS 32 // Characters of a fingerprint.

struct entry {
    char name[NAME_CHARS + 1];
    int64_t bytes;
    struct timespec used;
};

struct entries {
    struct entry *items;
    size_t count;
};

enum evq_status evq_checkpoint_cache_open(const char *directory, const char *scratch,
                                          int64_t bytes_max, struct evq_checkpoint_cache *ret_cache,
                                          struct evq_error *err)
{
    struct stat info;
    struct evq_error fault;
    const int bytes = directory[0] != '\0'
                          ? snprintf(ret_cache->directory, PATH_MAX, "%s", directory)
                          : snprintf(ret_cache->directory, PATH_MAX, "%s/cache", scratch);

    if (bytes < 0 || bytes >= PATH_MAX - NAME_CHARS - 16) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the path of worker.cache.directory is too long");
    }
    if (evq_file_make_directories(ret_cache->directory, 0700, &fault) != EVQ_OK) {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "worker.cache.directory: %s", fault.message);
    }
    // If another user owns the directory, that user could replace the weights.
    if (stat(ret_cache->directory, &info) != 0 || info.st_uid != geteuid()) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "worker.cache.directory '%s' does not belong to this worker's user",
                             ret_cache->directory);
    }
    ret_cache->bytes_max = bytes_max;
    return EVQ_OK;
}

static int64_t size_read(int directory_fd, const char *lock)
{
    char text[32] = "";
    int fd = openat(directory_fd, lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd >= 0 && read(fd, text, sizeof(text) - 1) < 0) {
        text[0] = '\0';
    }
    evq_file_close(&fd);
    const long long bytes = strtoll(text, NULL, 10);
    return bytes > 0 ? bytes : 0;
}

static int entry_compare(const void *a, const void *b)
{
    const struct timespec left = ((const struct entry *)a)->used;
    const struct timespec right = ((const struct entry *)b)->used;

    if (left.tv_sec != right.tv_sec) {
        return left.tv_sec < right.tv_sec ? -1 : 1;
    }
    return (left.tv_nsec > right.tv_nsec) - (left.tv_nsec < right.tv_nsec);
}

/* Lists all checkpoints of the cache except one, the least recently used first. */
static enum evq_status entries_read(const struct evq_checkpoint_cache *cache, const char *except,
                                    struct entries *entries, struct evq_error *err)
{
    const struct dirent *found;
    struct stat info;
    size_t capacity = 0;
    enum evq_status status = EVQ_OK;

    DIR *dir = opendir(cache->directory);
    if (dir == NULL) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", cache->directory, strerror(errno));
    }
    while (status == EVQ_OK && (found = readdir(dir)) != NULL) {
        if (strlen(found->d_name) != NAME_CHARS + strlen(EVQ_KEPT_DIRECTORY_LOCK) ||
            !evq_file_ends_with(found->d_name, EVQ_KEPT_DIRECTORY_LOCK) ||
            strncmp(found->d_name, except, NAME_CHARS) == 0 ||
            fstatat(dirfd(dir), found->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        if (entries->count == capacity) {
            capacity = capacity == 0 ? 64 : 2 * capacity;
            struct entry *items = realloc(entries->items, capacity * sizeof(*items));
            if (items == NULL) {
                status = evq_error_set(err, EVQ_E_NOMEM, "%zu cached checkpoints", capacity);
                break;
            }
            entries->items = items;
        }
        struct entry *entry = &entries->items[entries->count++];
        (void)snprintf(entry->name, sizeof(entry->name), "%.*s", NAME_CHARS, found->d_name);
        entry->bytes = size_read(dirfd(dir), found->d_name);
        entry->used = info.st_mtim;
    }
    (void)closedir(dir);
    if (entries->count > 0) {
        qsort(entries->items, entries->count, sizeof(*entries->items), entry_compare);
    }
    return status;
}

static bool entry_remove(const struct evq_checkpoint_cache *cache, const struct entry *entry)
{
    char path[PATH_MAX + NAME_CHARS + 2];

    (void)snprintf(path, sizeof(path), "%s/%s", cache->directory, entry->name);
    return evq_kept_directory_remove(path);
}

/* Reserves space. The caller holds the lock of the cache, so no other process reserves now. */
static enum evq_status reserve(const struct evq_checkpoint_cache *cache, const char *fingerprint,
                               int lock_fd, int64_t bytes, struct entries *entries,
                               struct evq_error *err)
{
    char text[32];
    int64_t used = 0;
    enum evq_status status = entries_read(cache, fingerprint, entries, err);

    for (size_t i = 0; i < entries->count; i++) {
        used += entries->items[i].bytes;
    }
    for (size_t i = 0; status == EVQ_OK && i < entries->count && used > cache->bytes_max - bytes;
         i++) {
        used -= entry_remove(cache, &entries->items[i]) ? entries->items[i].bytes : 0;
    }
    if (status == EVQ_OK && used > cache->bytes_max - bytes) {
        return evq_error_set(err, EVQ_E_FULL,
                             "worker.cache has no space for %lld bytes: other jobs use %lld of its "
                             "%lld bytes",
                             (long long)bytes, (long long)used, (long long)cache->bytes_max);
    }
    const int length = snprintf(text, sizeof(text), "%lld\n", (long long)bytes);
    if (status == EVQ_OK && (ftruncate(lock_fd, 0) != 0 ||
                             pwrite(lock_fd, text, (size_t)length, 0) != (ssize_t)length)) {
        status = evq_error_set(err, errno == ENOSPC || errno == EDQUOT ? EVQ_E_FULL : EVQ_E_IO,
                               "write in '%s': %s", cache->directory, strerror(errno));
    }
    return status;
}

enum evq_status evq_checkpoint_cache_reserve(const struct evq_checkpoint_cache *cache,
                                             const char *fingerprint, int lock_fd, int64_t bytes,
                                             struct evq_error *err)
{
    struct entries entries = {0};

    if (bytes > cache->bytes_max) {
        return evq_error_set(
            err, EVQ_E_RETRY,
            "the checkpoint has %lld bytes, but worker.cache.bytes allows %lld here",
            (long long)bytes, (long long)cache->bytes_max);
    }
    int fd = open(cache->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        evq_file_close(&fd);
        return evq_error_set(err, EVQ_E_IO, "lock '%s': %s", cache->directory, strerror(errno));
    }
    const enum evq_status status = reserve(cache, fingerprint, lock_fd, bytes, &entries, err);
    evq_file_close(&fd);
    free(entries.items);
    return status;
}

bool evq_checkpoint_cache_shrink(const struct evq_checkpoint_cache *cache, const char *fingerprint)
{
    struct entries entries = {0};
    bool removed = false;

    if (entries_read(cache, fingerprint, &entries, NULL) == EVQ_OK) {
        for (size_t i = 0; i < entries.count && !removed; i++) {
            removed = entry_remove(cache, &entries.items[i]);
        }
    }
    free(entries.items);
    return removed;
}

void evq_checkpoint_cache_touch(int lock_fd)
{
    (void)futimens(lock_fd, NULL); // If it fails, the checkpoint is removed earlier.
}
