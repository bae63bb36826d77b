#include "worker/child/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "worker/child/channel.h"
#include "worker/child/child_job.h"
#include "worker/child/fetch.h"
#include "worker/child/runner.h"
#include "worker/child/sample_sender.h"
#include "worker/child/scratch.h"

#define PROGRESS_MS 200 // Shortest time between two progress notes.
#define PRUNE_JOBS  64  // Jobs between two cleanings of the scratch directory.

struct child {
    struct evq_config *config;
    struct evq_runner *runner;
    struct evq_channel channel;
    const struct evq_child_job *work; // The present job.
    bool cancelled;
    bool leaving;    // The child was told to exit, or the supervisor is gone.
    int64_t told_ms; // When the last progress note was sent.
    // The newest progress of the present job. A report that comes too early is sent with a later
    // one.
    int64_t done;
    int64_t total;
    char status[65];
    uint32_t jobs; // Jobs taken so far.
    // The attempt directory of the present job, and later of the next one.
    char scratch[EVQ_SCRATCH_PATH_BYTES];
    int scratch_fd; // The lock on that directory; -1: there is none.
    bool answered;  // The supervisor answered the last piece of samples:
    struct evq_error answer;
};

/* Reads notes of the supervisor while a job runs: a cancel or an exit. */
static void control_take(struct child *child)
{
    struct evq_note *note = NULL;

    evq_channel_fill(&child->channel);
    while (evq_channel_next(&child->channel, &note, NULL) == EVQ_OK && note != NULL) {
        child->cancelled = child->cancelled || strcmp(note->type, "cancel") == 0;
        child->leaving = child->leaving || strcmp(note->type, "exit") == 0;
        if (strcmp(note->type, "piece") == 0) {
            const int64_t number = evq_channel_get_integer(note, "status", EVQ_E_BUG);
            child->answered = true;
            (void)evq_error_set(&child->answer, (enum evq_status)number, "%s",
                                evq_channel_get_text(note, "message"));
        }
        evq_codec_note_free(note);
    }
    child->leaving = child->leaving || child->channel.ended;
}

/* Sends a note and waits until it is sent. The supervisor always reads. */
static enum evq_status note_tell(struct child *child, const char *type,
                                 const struct evq_field *fields, size_t field_count,
                                 struct evq_error *err)
{
    enum evq_status status = evq_channel_send(&child->channel, type, fields, field_count, err);
    while (status == EVQ_OK && child->channel.out.bytes > 0) {
        struct pollfd item = {.fd = child->channel.fd, .events = POLLOUT};
        (void)poll(&item, 1, 1000);
        status = evq_channel_flush(&child->channel, err);
    }
    if (status == EVQ_E_IO) {
        child->leaving = true;
    }
    return status;
}

static enum evq_status child_progress(void *context, int64_t done, int64_t total,
                                      const char *status)
{
    struct child *child = context;
    const int64_t now_ms = evq_clock_mono_ms();

    control_take(child);
    if (child->cancelled || child->leaving) {
        return EVQ_E_STOPPED;
    }
    if (done >= 0 || total >= 0) {
        child->done = done;
        child->total = total;
    }
    if (status != NULL && status[0] != '\0') {
        (void)snprintf(child->status, sizeof child->status, "%s", status); // Cut: it is only shown.
    }
    if (now_ms - child->told_ms >= PROGRESS_MS) {
        const struct evq_field fields[] = {evq_channel_integer("done", child->done),
                                           evq_channel_integer("total", child->total),
                                           evq_channel_text("status", child->status)};
        child->told_ms = now_ms;
        (void)note_tell(child, "progress", fields, sizeof(fields) / sizeof(fields[0]), NULL);
    }
    return EVQ_OK;
}

/* Waits a moment for notes of the supervisor. */
static enum evq_status child_wait(void *context)
{
    struct child *child = context;
    struct pollfd item = {.fd = child->channel.fd, .events = POLLIN};

    (void)poll(&item, 1, PROGRESS_MS);
    return child_progress(child, -1, -1, "sends samples");
}

/* Gives a piece of samples to the supervisor and waits until Redis has answered. */
static enum evq_status child_piece(void *context, const struct evq_sample_piece *piece,
                                   struct evq_error *err)
{
    struct child *child = context;
    const struct evq_field fields[] = {
        evq_channel_text("task", piece->task), evq_channel_text("digest", piece->digest),
        evq_channel_integer("bytes", piece->bytes), evq_channel_integer("at", piece->at),
        evq_channel_bytes("data", piece->data, piece->data_bytes)};

    child->answered = false;
    enum evq_status status =
        note_tell(child, "piece", fields, sizeof(fields) / sizeof(fields[0]), err);
    while (status == EVQ_OK && !child->answered) {
        status = child_wait(child);
    }
    if (status == EVQ_OK && child->answer.status != EVQ_OK) {
        *err = child->answer;
        status = err->status;
    }
    return status;
}

static enum evq_status child_task(void *context, const struct evq_result *result,
                                  struct evq_error *err)
{
    struct child *child = context;
    struct evq_result named = *result;
    struct evq_buffer record;
    char note[EVQ_SAMPLE_SENDER_NOTE_BYTES];

    control_take(child);
    if (child->cancelled || child->leaving) {
        return evq_error_set(err, EVQ_E_STOPPED, "stopped while a result was handed over");
    }
    named.job =
        child->work->id; // A record without these names is not valid. The supervisor adds the rest.
    named.run = child->work->job->run;
    named.step = child->work->job->step;
    named.variant = child->work->job->variant;
    named.suite = child->work->job->suite;
    enum evq_status status = EVQ_OK;
    if (child->config->samples.send) {
        const struct evq_sample_sender sender = {child->config, child->scratch, child, child_piece,
                                                 child_wait};
        status = evq_sample_sender_send(&sender, &named, note, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    evq_buffer_init(&record, 0);
    status = evq_codec_result_encode(&named, &record, err);
    if (status == EVQ_OK) {
        const struct evq_field field = evq_channel_bytes("result", record.data, record.bytes);
        status = note_tell(child, "task", &field, 1, err);
    }
    evq_buffer_free(&record);
    return status;
}

static enum evq_status error_tell(struct child *child, const struct evq_error *err,
                                  const struct evq_failure *failure)
{
    const struct evq_field fields[] = {
        evq_channel_integer("status", err->status), evq_channel_integer("crash", failure->crash),
        evq_channel_text("message", err->message), evq_channel_text("detail", failure->detail)};

    return note_tell(child, "error", fields, sizeof(fields) / sizeof(fields[0]), NULL);
}

static void scratch_drop(struct child *child)
{
    if (child->scratch_fd >= 0) {
        evq_scratch_remove(child->scratch);
        (void)close(child->scratch_fd);
        child->scratch_fd = -1;
    }
}

/* Makes sure that an attempt directory exists. Cleaners of /tmp may have removed the one that was
 * kept. */
static enum evq_status scratch_have(struct child *child, struct evq_error *err)
{
    struct stat info;

    if (child->scratch_fd >= 0 && fstat(child->scratch_fd, &info) == 0 && info.st_nlink > 0) {
        return EVQ_OK;
    }
    scratch_drop(child);
    return evq_scratch_make_attempt(child->config->worker.scratch, child->scratch,
                                    sizeof(child->scratch), &child->scratch_fd, err);
}

/* Empties the attempt directory. */
static void scratch_renew(struct child *child)
{
    if (child->scratch_fd >= 0 && !evq_scratch_renew(child->config->worker.scratch, child->scratch,
                                                     sizeof(child->scratch), child->scratch_fd)) {
        scratch_drop(child);
    }
}

static enum evq_status work_run(struct child *child, const struct evq_note *note,
                                const struct evq_child_job *work,
                                const struct evq_eval_report *report, struct evq_failure *failure,
                                struct evq_error *err)
{
    const struct evq_eval_request request = {
        .config = child->config,
        .suite = work->suite,
        .job = work->job,
        .id = work->id,
        .root_fd = work->root_fd,
        .root_path = work->root_path,
        .path = evq_child_job_path(work),
        .is_fetched = work->remote.directory[0] != '\0',
        .prepared = "",
        .shard = (int32_t)evq_channel_get_integer(note, "shard", -1),
        .shard_count = (int32_t)evq_channel_get_integer(note, "shard_count", 0),
        .tasks_done = work->tasks_done,
        .task_done_count = work->task_done_count,
        .scratch = child->scratch,
        .attempt = (int32_t)evq_channel_get_integer(note, "attempt", 1),
        .keyspace = evq_channel_get_text(note, "keyspace")};

    return evq_runner_eval(child->runner, work->id, &request, report, failure, err);
}

static void prune(const struct child *child)
{
    evq_scratch_prune(child->config->worker.scratch);
    evq_fetch_prune();
}

/* Whether such a failure may have been caused by a full disk or by a lack of file descriptors. */
static bool may_lack_room(enum evq_status status, const struct evq_failure *failure)
{
    const enum evq_fail_kind kind = evq_failure_kind(status, failure->crash);

    return status != EVQ_OK && status != EVQ_E_DEVICE &&
           (kind == EVQ_FAIL_RETRY || kind == EVQ_FAIL_INCOMPLETE);
}

static void job_take(struct child *child, const struct evq_note *note)
{
    const struct evq_eval_report report = {
        .context = child, .progress = child_progress, .task = child_task};
    struct evq_child_job work;
    struct evq_failure failure = {0};
    struct evq_error err = {0};
    struct evq_error lack = {0};

    child->cancelled = false;
    child->told_ms = 0;
    child->done = -1;
    child->total = -1;
    child->status[0] = '\0';
    enum evq_status status = evq_child_job_open(child->config, note, &report, &work, &err);
    if (status == EVQ_OK) {
        status = scratch_have(child, &err);
    }
    if (status == EVQ_OK) {
        child->work = &work;
        status = work_run(child, note, &work, &report, &failure, &err);
    }
    if (status == EVQ_E_GONE && work.root_path != NULL) {
        // The root may be another directory here than where the job was submitted.
        const struct evq_error gone = err;
        status = evq_error_set(&err, EVQ_E_GONE, "%.300s; on this worker, root '%s' is %s",
                               gone.message, work.job->root, work.root_path);
    }
    // This comes before the end is reported, so that no file of an ended attempt is left.
    scratch_renew(child);
    evq_child_job_close(&work);
    if (may_lack_room(status, &failure) &&
        evq_scratch_check(child->config->worker.scratch, &lack) != EVQ_OK) {
        status = evq_error_prefix(&lack, "%s", err.message);
        // The attempt's own files are gone now, so a disk that is still full is not this job's
        // fault.
        err = lack;
    }
    enum evq_status told = EVQ_OK;
    if (status == EVQ_OK) {
        told = note_tell(child, "done", NULL, 0, NULL);
    } else {
        err.status = status;
        told = error_tell(child, &err, &failure);
    }
    if (status == EVQ_E_DEVICE || told != EVQ_OK) {
        // After a CUDA fault the process cannot compute any more, so the child exits and is
        // replaced. It also exits if it cannot report the end of the job, because the supervisor
        // would wait for that until the time limit.
        child->leaving = true;
    }
    if (++child->jobs % PRUNE_JOBS == 0) { // Nobody waits for this child now.
        prune(child);
    }
}

static bool natives_served(const struct evq_config *config)
{
    for (size_t i = 0; i < config->suite_count; i++) {
        if (strcmp(config->suites[i].evaluator, "native") == 0) {
            return true;
        }
    }
    return false;
}

/* Returns the word in the worker's status that says whether the slot's persistent evaluators
 * started
 * (`evaluators` in docs/protocol.md). */
static const char *evaluators_state(enum evq_status start)
{
    if (start == EVQ_OK) {
        return "ready";
    }
    return evq_failure_kind(start, false) == EVQ_FAIL_FATAL ? "failed" : "retry";
}

static enum evq_status child_open(struct child *child, const struct evq_options *options,
                                  struct evq_error *err)
{
    const char *devices = getenv("CUDA_VISIBLE_DEVICES");
    char note[512] = "";
    const char *evaluators = "";

    devices = devices != NULL ? devices : "";
    enum evq_status status = evq_config_load(&options->source, &child->config, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_runner_config config = {
        .config = child->config,
        .devices = devices,
        .threads = options->threads >= 0 ? options->threads : child->config->worker.threads};
    status = evq_runner_open(&config, &child->runner, err);
    if (status == EVQ_OK && natives_served(child->config)) {
        status = evq_runner_open_native(child->runner, note, sizeof(note), err);
    }
    if (status == EVQ_OK && options->warm) {
        const struct evq_eval_report report = {.context = child, .progress = child_progress};
        struct evq_error fault;
        status = evq_runner_start_programs(child->runner, &report, &fault, err);
        evaluators = evaluators_state(fault.status);
        if (fault.status != EVQ_OK) {
            // This is more urgent than the note of the native engine.
            (void)snprintf(note, sizeof(note), "%s", fault.message);
        }
    }
    if (status != EVQ_OK) {
        return status;
    }
    prune(child); // The previous child may have been killed and may have left files.
    // The directory is made before anybody waits for it. If that fails, the first job reports why.
    (void)!scratch_have(child, NULL);
    const struct evq_field fields[] = {
        evq_channel_text("version", EVQ_VERSION), evq_channel_text("note", note),
        evq_channel_text("evaluators", evaluators), evq_channel_text("devices", devices)};
    return note_tell(child, "hello", fields, sizeof(fields) / sizeof(fields[0]), err);
}

static void process_settle(void)
{
    static const char score[] = "500";

    // If the supervisor dies, the child dies too. If it died before this line, the channel is
    // closed.
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Ctrl-C reaches the whole process group, but the supervisor decides when a child ends.
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    // If memory is short, the kernel should kill the evaluation and not the supervisor.
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!write(fd, score, sizeof(score) - 1);
        (void)close(fd);
    }
}

enum evq_exit evq_child_main(const struct evq_options *options)
{
    struct child child = {.scratch_fd = -1};
    struct evq_error err;
    struct evq_note *note = NULL;
    enum evq_exit code = EVQ_EXIT_OK;

    if (fcntl(EVQ_CHILD_FD, F_SETFD, FD_CLOEXEC) != 0) {
        (void)fprintf(stderr, "evalq-worker: child is started by the supervisor, not by hand\n");
        return EVQ_EXIT_USAGE;
    }
    process_settle();
    evq_channel_open(&child.channel, EVQ_CHILD_FD);
    enum evq_status status = child_open(&child, options, &err);
    if (status != EVQ_OK) {
        const struct evq_failure none = {0};
        (void)error_tell(&child, &err, &none);
        code = evq_status_exit_code(status);
        child.leaving = true;
    }
    while (!child.leaving) {
        evq_channel_fill(&child.channel);
        status = evq_channel_next(&child.channel, &note, &err);
        if (status != EVQ_OK || (note == NULL && child.channel.ended)) {
            break;
        }
        if (note == NULL) {
            struct pollfd item = {.fd = child.channel.fd, .events = POLLIN};
            (void)poll(&item, 1, -1);
            continue;
        }
        if (strcmp(note->type, "job") == 0) {
            job_take(&child, note);
        } else if (strcmp(note->type, "exit") == 0) {
            child.leaving = true;
        } // A cancel may arrive after the job has ended. Then there is nothing to do.
        evq_codec_note_free(note);
    }
    evq_runner_close(child.runner);
    scratch_drop(&child);
    evq_channel_close(&child.channel);
    evq_config_free(child.config);
    return code;
}
