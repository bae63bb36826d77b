#include "shared/samples/samples_find.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX    EVQ_SAMPLES_SUFFIX
#define FILES_MAX 65536

struct search {
    struct evq_sample_choice choice;
    const struct evq_sample_place *place;
    struct evq_sample_files found;
    size_t room;
};

enum evq_status evq_samples_find_place(const char *text, struct evq_sample_place *ret,
                                       struct evq_error *err)
{
    struct evq_sample_place out = {.step = -1};
    const char *at = strrchr(text, '@');
    const size_t run_bytes = at != NULL ? (size_t)(at - text) : 0;
    char *end = NULL;
    char shown[128];

    if (run_bytes > 0 && run_bytes < sizeof out.run) {
        memcpy(out.run, text, run_bytes);
        out.run[run_bytes] = '\0';
    }
    errno = 0;
    if (at != NULL && at[1] >= '0' && at[1] <= '9') {
        out.step = strtoll(at + 1, &end, 10);
    }
    if (out.step < 0 || errno != 0 || *end != '\0' || out.step >= EVQ_JOB_STEP_MAX ||
        !evq_job_name_valid(out.run, EVQ_JOB_RUN_BYTES_MAX)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%s' is no checkpoint, expected RUN@STEP such as run1@500",
                             evq_error_escape(text, strlen(text), shown, sizeof shown));
    }
    *ret = out;
    return EVQ_OK;
}

static enum evq_status add_file(struct search *search, const char *job, const char *suite,
                                const char *task, struct evq_error *err)
{
    struct evq_sample_files *found = &search->found;

    if (found->count == search->room) {
        const size_t room = search->room == 0 ? 16 : 2 * search->room;
        struct evq_sample_file *files =
            room <= FILES_MAX ? reallocarray(found->files, room, sizeof *files) : NULL;
        if (files == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory for the list of samples");
        }
        found->files = files;
        search->room = room;
    }
    struct evq_sample_file *file = &found->files[found->count++];
    *file = (struct evq_sample_file){.job = ""};
    (void)snprintf(file->job, sizeof file->job, "%s", job);
    (void)snprintf(file->suite, sizeof file->suite, "%s", suite);
    (void)snprintf(file->task, sizeof file->task, "%s", task);
    return evq_samples_path(search->choice.directory, job, task, file->path, err);
}

/* Lists the tasks in the directory of one job. */
static enum evq_status list_job(struct search *search, const char *job, const char *suite,
                                struct evq_error *err)
{
    char path[EVQ_SAMPLES_PATH_BYTES + EVQ_JOB_ID_BYTES_MAX];
    struct dirent *entry;
    enum evq_status status = EVQ_OK;

    (void)snprintf(path, sizeof path, "%s/%s", search->choice.directory, job);
    DIR *dir = opendir(path);
    while (dir != NULL && status == EVQ_OK && (entry = readdir(dir)) != NULL) {
        char task[EVQ_JOB_NAME_BYTES_MAX + 1];
        const size_t bytes = strlen(entry->d_name);
        const size_t suffix = strlen(SUFFIX);
        if (bytes <= suffix || bytes - suffix >= sizeof task ||
            strcmp(entry->d_name + bytes - suffix, SUFFIX) != 0) {
            continue; // Such as the temporary file of a worker.
        }
        (void)snprintf(task, sizeof task, "%.*s", (int)(bytes - suffix), entry->d_name);
        if (evq_job_name_valid(task, EVQ_JOB_NAME_BYTES_MAX) &&
            (search->choice.task == NULL || strcmp(search->choice.task, task) == 0)) {
            status = add_file(search, job, suite, task, err);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return status;
}

static int by_generation(const void *a, const void *b)
{
    struct evq_job_name x;
    struct evq_job_name y;
    char left[EVQ_JOB_ID_BYTES_MAX];
    char right[EVQ_JOB_ID_BYTES_MAX];
    const struct evq_sample_file *p = a;
    const struct evq_sample_file *q = b;
    const int suite = strcmp(p->suite, q->suite);
    const int task = suite != 0 ? suite : strcmp(p->task, q->task);

    if (task != 0 || evq_job_id_parse(p->job, left, &x, NULL) != EVQ_OK ||
        evq_job_id_parse(q->job, right, &y, NULL) != EVQ_OK) {
        return task;
    }
    return (x.generation < y.generation) - (x.generation > y.generation); // The newest first.
}

/* Keeps the newest generation of each suite and task. */
static void drop_old(struct evq_sample_files *found)
{
    size_t kept = 0;

    if (found->count == 0) {
        return;
    }
    qsort(found->files, found->count, sizeof *found->files, by_generation);
    for (size_t i = 0; i < found->count; i++) {
        const struct evq_sample_file *one = &found->files[i];
        const struct evq_sample_file *last = kept > 0 ? &found->files[kept - 1] : NULL;
        if (last == NULL || strcmp(last->suite, one->suite) != 0 ||
            strcmp(last->task, one->task) != 0) {
            found->files[kept++] = *one;
        }
    }
    found->count = kept;
}

/* Lists the jobs of one checkpoint and variant: directories SUITE and SUITE~GENERATION. */
static enum evq_status list_jobs(struct search *search, struct evq_error *err)
{
    const struct evq_sample_place *place = search->place;
    char path[EVQ_SAMPLES_PATH_BYTES + EVQ_JOB_ID_BYTES_MAX];
    struct dirent *entry;
    enum evq_status status = EVQ_OK;

    (void)snprintf(path, sizeof path, "%s/%s/%" PRId64 "/%s", search->choice.directory, place->run,
                   place->step, search->choice.variant);
    DIR *dir = opendir(path);
    while (dir != NULL && status == EVQ_OK && (entry = readdir(dir)) != NULL) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        char scratch[EVQ_JOB_ID_BYTES_MAX];
        struct evq_job_name name;
        const int bytes = snprintf(id, sizeof id, "%s/%" PRId64 "/%s/%s", place->run, place->step,
                                   search->choice.variant, entry->d_name);
        if (bytes < (int)sizeof id && evq_job_id_parse(id, scratch, &name, NULL) == EVQ_OK &&
            (search->choice.suite == NULL || strcmp(search->choice.suite, name.suite) == 0)) {
            status = list_job(search, id, name.suite, err);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return status;
}

enum evq_status evq_samples_find_files(const struct evq_sample_choice *choice,
                                       const struct evq_sample_place *place,
                                       struct evq_sample_files *ret, struct evq_error *err)
{
    struct search search = {.choice = *choice, .place = place};

    if (!evq_job_name_valid(choice->variant, EVQ_JOB_NAME_BYTES_MAX)) {
        return evq_error_set(err, EVQ_E_INVALID, "the variant is no name of [A-Za-z0-9._-]");
    }
    if (!evq_job_name_valid(place->run, EVQ_JOB_RUN_BYTES_MAX)) {
        return evq_error_set(err, EVQ_E_INVALID, "the run is no name of [A-Za-z0-9._-]");
    }
    enum evq_status status = list_jobs(&search, err);
    drop_old(&search.found);
    if (status == EVQ_OK && search.found.count == 0) {
        const char *task = choice->task != NULL ? choice->task : "";
        const char *suite = choice->suite != NULL ? choice->suite : "";
        char shown_task[128];
        char shown_suite[128];
        status = evq_error_set(
            err, EVQ_E_NOT_FOUND,
            "%s@%" PRId64
            " has no samples%s%s%s%s in '%s': no job of this step has succeeded, or its "
            "suite does not have samples: true",
            place->run, place->step, choice->task != NULL ? " of task " : "",
            evq_error_escape(task, strlen(task), shown_task, sizeof shown_task),
            choice->suite != NULL ? " of suite " : "",
            evq_error_escape(suite, strlen(suite), shown_suite, sizeof shown_suite),
            choice->directory);
    }
    if (status != EVQ_OK) {
        free(search.found.files);
        return status;
    }
    *ret = search.found;
    return EVQ_OK;
}

enum evq_status evq_samples_find_one(const struct evq_sample_choice *choice,
                                     const struct evq_sample_place *place,
                                     struct evq_sample_file *ret, struct evq_error *err)
{
    struct evq_sample_files found = {.count = 0};
    enum evq_status status = evq_samples_find_files(choice, place, &found, err);

    if (status == EVQ_OK && found.count > 1) {
        status = evq_error_set(err, EVQ_E_INVALID,
                               "%s@%" PRId64
                               " has samples of %zu tasks, such as %s/%s and %s/%s: choose a task "
                               "and a suite",
                               place->run, place->step, found.count, found.files[0].suite,
                               found.files[0].task, found.files[1].suite, found.files[1].task);
    } else if (status == EVQ_OK) {
        *ret = found.files[0];
    }
    free(found.files);
    return status;
}

static int by_step(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

size_t evq_samples_find_steps(const char *directory, const char *run, int64_t *steps,
                              size_t steps_max)
{
    char path[EVQ_SAMPLES_PATH_BYTES + EVQ_JOB_ID_BYTES_MAX];
    int64_t *found = NULL;
    size_t count = 0;
    size_t room = 0;
    DIR *dir = NULL;

    (void)snprintf(path, sizeof path, "%s/%s", directory, run);
    if (evq_job_name_valid(run, EVQ_JOB_RUN_BYTES_MAX)) {
        dir = opendir(path);
    }
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        char text[EVQ_JOB_ID_BYTES_MAX];
        struct evq_sample_place place;
        const int bytes = snprintf(text, sizeof text, "%s@%s", run, entry->d_name);
        if (bytes >= (int)sizeof text || evq_samples_find_place(text, &place, NULL) != EVQ_OK) {
            continue;
        }
        if (count == room) {
            room = room == 0 ? 64 : 2 * room;
            int64_t *more = room <= FILES_MAX ? reallocarray(found, room, sizeof *found) : NULL;
            if (more == NULL) {
                break; // The steps that were found are listed.
            }
            found = more;
        }
        found[count++] = place.step;
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    if (count > 0) {
        qsort(found, count, sizeof *found, by_step);
    }
    const size_t dropped = count > steps_max ? count - steps_max : 0;
    for (size_t i = dropped; i < count; i++) {
        steps[i - dropped] = found[i];
    }
    free(found);
    return count - dropped;
}

enum evq_status evq_samples_find_check(const struct evq_sample_file *file,
                                       const struct evq_samples_header *header,
                                       struct evq_error *err)
{
    return strcmp(file->job, header->job) == 0 && strcmp(file->task, header->task) == 0
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_CORRUPT,
                               "'%s' holds the samples of task %s of job %s: it was copied or "
                               "renamed",
                               file->path, header->task, header->job);
}
