#include "worker/child/child_job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"
#include "worker/child/channel.h"
#include "worker/evaluators/checkpoint_location.h"

static bool file_is_here(const struct evq_child_job *work)
{
    const char *const paths[] = {work->job->pin, work->job->path};
    int fd = -1;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]) && work->root_fd >= 0; i++) {
        if (paths[i] != NULL && paths[i][0] != '\0' &&
            evq_root_open(work->root_fd, paths[i], false, &fd, NULL) == EVQ_OK) {
            (void)close(fd); // It was opened for reading only.
            return true;
        }
    }
    return false;
}

/* Weights in shared memory are read in place if they are on this machine; otherwise they are
 * fetched. */
static enum evq_status memory_open(const struct evq_config *config,
                                   const struct evq_eval_report *report, struct evq_child_job *work,
                                   struct evq_error *err)
{
    const struct evq_snapshot *snapshot = &work->job->snapshot;
    char boot[EVQ_SNAPSHOT_BOOT_BYTES_MAX + 1];
    char host[256] = "";

    // The name is used in messages only. The boot id tells whether it is the same machine.
    (void)gethostname(host, sizeof(host) - 1);
    evq_snapshot_boot(boot);
    const bool ours = work->job->snapshot_given ? strcmp(snapshot->boot, boot) == 0
                                                : strcmp(work->job->host, host) == 0;
    // A snapshot of another machine is not read here, even if a file of the same name exists.
    const bool told = work->job->snapshot_given && !ours;
    if (!told && file_is_here(work)) {
        return EVQ_OK;
    }
    if (snapshot->place[0] == '\0') {
        return ours ? EVQ_OK // If it does not exist, the evaluation reports that it is gone.
                    : evq_error_set(err, EVQ_E_RETRY,
                                    "'%s' is in the memory of host '%.80s', which this worker on "
                                    "'%.80s' does not share: run a worker for its suite there",
                                    work->job->path, work->job->host, host);
    }
    if (snapshot->bytes > config->worker.fetch_bytes_max) {
        return evq_error_set(err, EVQ_E_RETRY,
                             "'%s' has %lld bytes in the memory of another host, but "
                             "worker.fetch_bytes_max allows %lld here",
                             work->job->path, (long long)snapshot->bytes,
                             (long long)config->worker.fetch_bytes_max);
    }
    const enum evq_status status = evq_fetch_open(
        work->job, config->worker.scratch, &evq_fetch_limits_default, report, &work->fetched, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_file_close(&work->root_fd);
    work->root_path = work->fetched.directory;
    work->root_fd = open(work->fetched.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return EVQ_OK;
}

/* Reads a remote checkpoint from this machine's cache. */
static enum evq_status remote_open(const struct evq_config *config, const struct evq_root *root,
                                   const struct evq_eval_report *report, struct evq_child_job *work,
                                   struct evq_error *err)
{
    const enum evq_status status =
        evq_remote_fetch_open(config, root, work->job, report, &work->remote, err);
    if (status != EVQ_OK) {
        return status;
    }
    work->root_path = work->remote.directory;
    work->root_fd = open(work->remote.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return work->root_fd >= 0 ? EVQ_OK
                              : evq_error_set(err, EVQ_E_IO, "open '%s': %s",
                                              work->remote.directory, strerror(errno));
}

/* Splits "a\nb\n" in place. The pointers point into the text of the note. */
static enum evq_status tasks_done_split(const struct evq_note *note, struct evq_child_job *work,
                                        struct evq_error *err)
{
    char *text = evq_arena_strdup(note->arena, evq_channel_get_text(note, "tasks_done"));
    const size_t bytes = text != NULL ? strlen(text) : 0;

    work->tasks_done = evq_arena_array(note->arena, bytes + 1, sizeof(*work->tasks_done));
    if (text == NULL || work->tasks_done == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "job %s", work->id);
    }
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        work->tasks_done[work->task_done_count++] = line;
    }
    return EVQ_OK;
}

enum evq_status evq_child_job_open(const struct evq_config *config, const struct evq_note *note,
                                   const struct evq_eval_report *report, struct evq_child_job *work,
                                   struct evq_error *err)
{
    const struct evq_field *record = evq_codec_note_field(note, "record");
    const char *suite = evq_channel_get_text(note, "suite");

    *work = (struct evq_child_job){
        .root_fd = -1, .fetched = {.directory_fd = -1}, .remote = {.lock_fd = -1}};
    work->id = evq_channel_get_text(note, "id");
    work->suite = evq_config_suite(config, suite);
    if (work->suite == NULL ||
        strcmp(work->suite->digest, evq_channel_get_text(note, "digest")) != 0) {
        return evq_error_set(
            err, EVQ_E_RETRY,
            "suite '%s' in %s changed since this worker started: restart the worker", suite,
            config->file);
    }
    if (record == NULL || record->type != EVQ_FIELD_BYTES) {
        return evq_error_set(err, EVQ_E_BUG, "a job without its record");
    }
    enum evq_status status =
        evq_codec_job_decode(record->bytes, record->byte_count, &work->job, err);
    if (status == EVQ_OK) {
        status = tasks_done_split(note, work, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_root *root = evq_config_root_find(config, work->job->root);
    if (root == NULL) {
        // This is a fault of this machine's set-up, so the job's attempt is not charged.
        return evq_error_set(
            err, EVQ_E_INCOMPLETE,
            "root '%s' of checkpoint '%s' is not known on this worker: add under roots: in %s the "
            "line \"%s: /DIRECTORY/HERE\"",
            work->job->root, work->job->path, config->file[0] != '\0' ? config->file : "evalq.yaml",
            work->job->root);
    }
    work->root_path = root->path;
    if (root->is_remote) {
        return remote_open(config, root, report, work, err);
    }
    work->root_fd = open(root->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int open_errno = errno;
    if (root == &config->shm) {
        status = memory_open(config, report, work, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (work->root_fd < 0) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "root '%s' is %s here, which cannot be opened: %s", root->name,
                             work->root_path, strerror(open_errno));
    }
    return EVQ_OK;
}

void evq_child_job_close(struct evq_child_job *work)
{
    evq_file_close(&work->root_fd);
    evq_fetch_close(&work->fetched);
    evq_remote_fetch_close(&work->remote);
    evq_job_free(work->job);
}

const char *evq_child_job_path(const struct evq_child_job *work)
{
    if (work->remote.directory[0] != '\0') {
        return work->remote.name;
    }
    return work->fetched.directory[0] != '\0'
               ? work->fetched.name
               : evq_checkpoint_location_pick(work->root_fd, work->job);
}
