#include "worker/child/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"

#define TRIES_MAX        16 // Tries to make a directory, because a sweeper may remove each at once.
#define CLOSED_DEPTH_MAX 8  // Depth of nested folders without permissions that are removed.
#define DESCRIPTORS_MIN  16
#define ROOM_BYTES_MIN   65536

/* Makes the directory with mode 0700, and refuses one that belongs to another user. */
static enum evq_status directory_make(const char *path, struct evq_error *err)
{
    struct stat info;

    const enum evq_status status = evq_file_make_directories(path, 0700, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return evq_error_set(err, EVQ_E_IO, "'%s' is not a directory", path);
    }
    if (info.st_uid != geteuid()) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "scratch directory '%s' belongs to user %u; set worker.scratch", path,
                             (unsigned)info.st_uid);
    }
    return EVQ_OK;
}

struct log_age {
    char name[256];
    struct timespec time;
};

static int log_age_compare(const void *a, const void *b)
{
    const struct log_age *left = a;
    const struct log_age *right = b;

    if (left->time.tv_sec != right->time.tv_sec) {
        return left->time.tv_sec < right->time.tv_sec ? -1 : 1;
    }
    return (left->time.tv_nsec > right->time.tv_nsec) - (left->time.tv_nsec < right->time.tv_nsec);
}

static void logs_prune(const char *logs)
{
    struct log_age *ages = NULL;
    size_t count = 0;
    size_t room = 0;
    struct dirent *entry;
    struct stat info;

    DIR *dir = opendir(logs);
    if (dir == NULL) {
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(info.st_mode)) {
            continue;
        }
        if (count == room) {
            const size_t more = room > 0 ? room * 2 : 256;
            struct log_age *grown = realloc(ages, more * sizeof(*ages));
            if (grown == NULL) {
                break;
            }
            ages = grown;
            room = more;
        }
        (void)snprintf(ages[count].name, sizeof(ages[count].name), "%s", entry->d_name);
        ages[count++].time = info.st_mtim;
    }
    if (count > EVQ_SCRATCH_LOGS_KEPT) {
        qsort(ages, count, sizeof(*ages), log_age_compare);
        for (size_t i = 0; i < count - EVQ_SCRATCH_LOGS_KEPT; i++) {
            // Another worker may have removed it already.
            (void)unlinkat(dirfd(dir), ages[i].name, 0);
        }
    }
    free(ages);
    (void)closedir(dir);
}

/* Removes what killed processes left behind. A living process holds the lock of its directory. */
static void attempts_prune(const char *jobs)
{
    char path[EVQ_SCRATCH_PATH_BYTES + 257];
    struct dirent *entry;

    DIR *dir = opendir(jobs);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        int fd = entry->d_name[0] != '.' ? openat(dirfd(dir), entry->d_name,
                                                  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                                         : -1;
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            (void)snprintf(path, sizeof(path), "%s/%s", jobs, entry->d_name);
            evq_scratch_remove(path);
        }
        evq_file_close(&fd);
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
}

void evq_scratch_prune(const char *scratch)
{
    char path[EVQ_SCRATCH_PATH_BYTES];

    (void)snprintf(path, sizeof(path), "%s/logs", scratch);
    logs_prune(path);
    (void)snprintf(path, sizeof(path), "%s/jobs", scratch);
    attempts_prune(path);
}

static enum evq_status directories_make(const char *scratch, struct evq_error *err)
{
    static const char *const names[] = {"logs", "jobs", "prepared"};
    char path[EVQ_SCRATCH_PATH_BYTES];

    // scratch itself is checked first, because its owner could replace everything in it.
    enum evq_status status = directory_make(scratch, err);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == EVQ_OK; i++) {
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", scratch, names[i]) >= sizeof(path)) {
            return evq_error_set(err, EVQ_E_LIMIT, "worker.scratch is too long");
        }
        status = directory_make(path, err);
    }
    return status;
}

enum evq_status evq_scratch_open(const char *scratch, struct evq_error *err)
{
    const enum evq_status status = directories_make(scratch, err);

    if (status == EVQ_OK) {
        evq_scratch_prune(scratch);
    }
    return status;
}

/* Whether a few file descriptors can be opened, as many as an attempt needs. */
static bool descriptors_left(void)
{
    int fds[DESCRIPTORS_MIN];
    int count = 0;

    while (count < DESCRIPTORS_MIN && (fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        count++;
    }
    const int open_errno = errno;
    for (int i = 0; i < count; i++) {
        (void)close(fds[i]); // They were opened for reading.
    }
    errno = open_errno;
    return count == DESCRIPTORS_MIN;
}

enum evq_status evq_scratch_check(const char *scratch, struct evq_error *err)
{
    struct statvfs room;

    if (!descriptors_left()) {
        return evq_error_set(err, EVQ_E_FULL, "no file can be opened: %s", strerror(errno));
    }
    if (statvfs(scratch, &room) != 0) {
        return EVQ_OK; // The cause is not known, so the attempt's own failure is reported.
    }
    if ((room.f_flag & ST_RDONLY) != 0) {
        return evq_error_set(err, EVQ_E_FULL, "worker.scratch '%s' is read-only", scratch);
    }
    if ((uint64_t)room.f_bavail * room.f_frsize < ROOM_BYTES_MIN ||
        (room.f_files > 0 && room.f_favail == 0)) {
        return evq_error_set(err, EVQ_E_FULL, "the disk of worker.scratch '%s' is full", scratch);
    }
    return EVQ_OK;
}

enum evq_status evq_scratch_make_attempt(const char *scratch, char *ret_path, size_t path_bytes,
                                         int *ret_lock_fd, struct evq_error *err)
{
    struct stat info;

    for (int i = 0; i < TRIES_MAX; i++) {
        (void)snprintf(ret_path, path_bytes, "%s/jobs/XXXXXX", scratch);
        const bool made = mkdtemp(ret_path) != NULL;
        if (!made && errno == ENOENT && i == 0) { // Cleaners of /tmp remove old directories.
            const enum evq_status status = directories_make(scratch, err);
            if (status != EVQ_OK) {
                return status;
            }
            continue;
        }
        if (!made) {
            return evq_error_set(err, EVQ_E_IO, "create '%s': %s", ret_path, strerror(errno));
        }
        int fd = open(ret_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        // If the file system has no locks, sweepers get none either and remove nothing.
        if (fd >= 0 && ((void)flock(fd, LOCK_EX), fstat(fd, &info) == 0) && info.st_nlink > 0) {
            *ret_lock_fd = fd;
            return EVQ_OK;
        }
        const int error = errno;
        if (fd < 0 && error != ENOENT) {
            evq_scratch_remove(ret_path);
            return evq_error_set(err, EVQ_E_IO, "open '%s': %s", ret_path, strerror(error));
        }
        evq_file_close(&fd); // A sweeper removed it before we had the lock.
    }
    return evq_error_set(err, EVQ_E_IO, "'%s' was removed %d times", ret_path, TRIES_MAX);
}

static int content_remove(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind;
    return walk->level > 0 && remove(path) != 0;
}

bool evq_scratch_renew(const char *scratch, char *path, size_t path_bytes, int lock_fd)
{
    char next[EVQ_SCRATCH_PATH_BYTES];
    struct stat info;

    // The directory is renamed first. A process that the attempt left running could otherwise write
    // into it after it was emptied.
    (void)snprintf(next, sizeof(next), "%s/jobs/%016llx", scratch,
                   (unsigned long long)evq_clock_random());
    if (renameat2(AT_FDCWD, path, AT_FDCWD, next, RENAME_NOREPLACE) != 0) {
        return false;
    }
    (void)snprintf(path, path_bytes, "%s", next);
    return nftw(path, content_remove, 16, FTW_DEPTH | FTW_PHYS) == 0 &&
           fstat(lock_fd, &info) == 0 && (info.st_mode & 07777) == 0700;
}

static int entry_remove(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    (void)remove(path); // The next path is tried in any case.
    return 0;
}

static int folder_open(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)walk;
    if (kind == FTW_D || kind == FTW_DNR) {
        (void)chmod(path, 0700); // If this fails, its content stays.
    }
    return 0;
}

void evq_scratch_remove(const char *path)
{
    struct stat info;

    (void)nftw(path, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
    // Nothing can be removed from a read-only folder, such as a copy from a read-only file system,
    // so its mode is changed first. Folders that could not be read before show up in the next pass.
    for (int i = 0; i < CLOSED_DEPTH_MAX && lstat(path, &info) == 0; i++) {
        (void)nftw(path, folder_open, 16, FTW_PHYS);
        (void)nftw(path, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
    }
}
