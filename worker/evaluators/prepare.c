#include "worker/evaluators/prepare.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "worker/child/kept_directory.h"
#include "worker/child/scratch.h"
#include "worker/evaluators/job_json.h"
#include "worker/evaluators/program_run.h"

#define PATH_BYTES 8192
#define AGE_BYTES  (PATH_BYTES + 257) // Room for a directory, a slash and a name.

static enum evq_status prepare_make(const struct evq_evaluator *evaluator,
                                    const struct evq_program_place *place, const char *final,
                                    const struct evq_eval_request *request,
                                    const struct evq_eval_report *report,
                                    struct evq_failure *failure, struct evq_error *err)
{
    char job[PATH_BYTES];
    char checkpoint[PATH_BYTES];
    char partial[PATH_BYTES];

    (void)snprintf(job, sizeof(job), "%s/prepare.json", request->scratch);
    (void)snprintf(partial, sizeof(partial), "%s" EVQ_KEPT_DIRECTORY_PARTIAL, final);
    evq_job_json_checkpoint(request, checkpoint, sizeof(checkpoint));
    evq_scratch_remove(partial); // A killed attempt left it; we hold the lock, so nobody uses it.
    if (mkdir(partial, 0700) != 0) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", partial, strerror(errno));
    }
    const struct evq_pair extra[] = {
        {"EVALQ_JOB", job}, {"EVALQ_CHECKPOINT", checkpoint}, {"EVALQ_OUTPUT", partial}};
    const struct evq_program_run run = {.evaluator = evaluator,
                                        .request = request,
                                        .devices = place->devices,
                                        .log_path = place->log_path,
                                        .extra = extra,
                                        .extra_count = sizeof(extra) / sizeof(extra[0]),
                                        .report = report};
    enum evq_status status = evq_job_json_write(request, partial, job, err);
    if (status == EVQ_OK) {
        status = evq_program_run_wait(&run, failure, err);
        (void)unlink(job); // The command may run once more in this attempt.
    }
    if (status == EVQ_OK && !evq_file_directory_has_entries(partial)) {
        status = evq_error_set(err, EVQ_E_RETRY,
                               "prepare '%s' ended with exit status 0 but left $EVALQ_OUTPUT empty",
                               evaluator->name);
    }
    if (status == EVQ_OK && rename(partial, final) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "rename '%s': %s", partial, strerror(errno));
    }
    if (status != EVQ_OK) {
        evq_scratch_remove(partial);
    }
    return status;
}

struct age {
    char path[AGE_BYTES];
    struct timespec used;
};

static int age_compare(const void *a, const void *b)
{
    const struct timespec left = ((const struct age *)a)->used;
    const struct timespec right = ((const struct age *)b)->used;

    if (left.tv_sec != right.tv_sec) {
        return left.tv_sec < right.tv_sec ? -1 : 1;
    }
    return (left.tv_nsec > right.tv_nsec) - (left.tv_nsec < right.tv_nsec);
}

static void prepared_prune(const char *directory)
{
    enum { AGES_MAX = 64 };
    struct dirent *entry;
    struct stat info;
    size_t count = 0;

    struct age *ages = calloc(AGES_MAX, sizeof(*ages));
    DIR *dir = opendir(directory);
    while (ages != NULL && dir != NULL && count < AGES_MAX && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.' ||
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISDIR(info.st_mode)) {
            continue;
        }
        (void)snprintf(ages[count].path, AGE_BYTES, "%s/%s", directory, entry->d_name);
        if (evq_file_ends_with(entry->d_name,
                               EVQ_KEPT_DIRECTORY_PARTIAL)) { // A killed worker may have left it.
            ages[count].path[strlen(ages[count].path) - strlen(EVQ_KEPT_DIRECTORY_PARTIAL)] = '\0';
            (void)evq_kept_directory_remove(ages[count].path);
        } else {
            ages[count++].used = info.st_mtim;
        }
    }
    if (count > EVQ_PREPARE_KEPT) {
        qsort(ages, count, sizeof(*ages), age_compare);
        for (size_t i = 0; i < count - EVQ_PREPARE_KEPT; i++) {
            (void)evq_kept_directory_remove(ages[i].path);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    free(ages);
}

enum evq_status evq_prepare_open(const struct evq_evaluator *evaluator,
                                 const struct evq_program_place *place, const char *key,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report,
                                 struct evq_prepared *ret_prepared, struct evq_failure *failure,
                                 struct evq_error *err)
{
    char directory[PATH_BYTES];
    bool made = false;
    int lock_fd = -1;

    (void)snprintf(directory, sizeof(directory), "%s/prepared", request->config->worker.scratch);
    const int bytes =
        snprintf(ret_prepared->path, sizeof(ret_prepared->path), "%s/%s", directory, key);
    if (bytes < 0 || (size_t)bytes >= sizeof(ret_prepared->path)) {
        return evq_error_set(err, EVQ_E_LIMIT, "worker.scratch is too long");
    }
    enum evq_status status = EVQ_OK;
    while (status == EVQ_OK && !made) {
        status =
            evq_kept_directory_lock(ret_prepared->path, "prepare", report, &lock_fd, &made, err);
        if (status == EVQ_OK && !made) {
            status =
                prepare_make(evaluator, place, ret_prepared->path, request, report, failure, err);
            // The next turn takes the lock shared, so that other slots can use the directory while
            // we evaluate. If another process removes it before that, we make it again.
            evq_file_close(&lock_fd);
        }
    }
    if (status != EVQ_OK) {
        return status;
    }
    // It was used now, so it is removed last.
    (void)utimensat(AT_FDCWD, ret_prepared->path, NULL, 0);
    ret_prepared->lock_fd = lock_fd;
    prepared_prune(directory);
    return EVQ_OK;
}

void evq_prepare_close(struct evq_prepared *prepared)
{
    evq_file_close(&prepared->lock_fd);
}
