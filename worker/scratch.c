#include "worker/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/file.h"

#define ATTEMPT_DAYS_MAX 14 // Longer than any time limit in use.

/* Made with 0700 where it is new; refused where it is somebody else's. */
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
            (void)unlinkat(dirfd(dir), ages[i].name, 0); // Another worker may have pruned it.
        }
    }
    free(ages);
    (void)closedir(dir);
}

/* What workers that were killed left behind: nobody can still be at work in it. */
static void attempts_prune(const char *scratch)
{
    char jobs[EVQ_SCRATCH_PATH_BYTES];
    char path[EVQ_SCRATCH_PATH_BYTES + 257];
    const time_t oldest = time(NULL) - ATTEMPT_DAYS_MAX * 86400;
    struct dirent *entry;
    struct stat info;

    (void)snprintf(jobs, sizeof(jobs), "%s/jobs", scratch);
    DIR *dir = opendir(jobs);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' &&
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            info.st_mtime < oldest) {
            (void)snprintf(path, sizeof(path), "%s/%s", jobs, entry->d_name);
            evq_scratch_remove(path);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
}

enum evq_status evq_scratch_open(const char *scratch, struct evq_error *err)
{
    static const char *const names[] = {"logs", "jobs", "prepared"};
    char path[EVQ_SCRATCH_PATH_BYTES];

    // First itself: whoever owns it could put other things in the place of what lies in it.
    enum evq_status status = directory_make(scratch, err);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == EVQ_OK; i++) {
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", scratch, names[i]) >= sizeof(path)) {
            return evq_error_set(err, EVQ_E_LIMIT, "worker.scratch is too long");
        }
        status = directory_make(path, err);
    }
    if (status == EVQ_OK) {
        (void)snprintf(path, sizeof(path), "%s/logs", scratch);
        logs_prune(path);
        attempts_prune(scratch);
    }
    return status;
}

void evq_scratch_log(const char *scratch, const char *id, int32_t attempt, char *out,
                     size_t out_bytes)
{
    const int head = snprintf(out, out_bytes, "%s/logs/", scratch);

    (void)snprintf(out + head, out_bytes - (size_t)head, "%s.a%d.log", id, attempt);
    for (char *c = out + head; *c != '\0'; c++) {
        *c = *c == '/' ? '_' : *c;
    }
}

enum evq_status evq_scratch_attempt(const char *scratch, char *ret_path, size_t path_bytes,
                                    struct evq_error *err)
{
    (void)snprintf(ret_path, path_bytes, "%s/jobs/XXXXXX", scratch);
    if (mkdtemp(ret_path) == NULL) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", ret_path, strerror(errno));
    }
    return EVQ_OK;
}

static int entry_remove(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    (void)remove(path); // The next one is tried all the same.
    return 0;
}

void evq_scratch_remove(const char *path)
{
    (void)nftw(path, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
}
