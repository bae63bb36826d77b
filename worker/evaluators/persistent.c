#include "worker/evaluators/persistent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "worker/evaluators/environment.h"
#include "worker/evaluators/job_json.h"
#include "worker/evaluators/line_pipe.h"
#include "worker/evaluators/process.h"
#include "worker/evaluators/program_lines.h"
#include "worker/evaluators/program_log.h"
#include "worker/evaluators/program_run.h"

#define TICK_MS         100
#define CANCEL_GRACE_MS 5000
#define EXIT_GRACE_MS   2000

struct evq_persistent {
    const struct evq_evaluator *evaluator;
    const char *devices;
    const char *scratch;
    struct evq_process process;
    struct evq_line_pipe lines;
    struct evq_program_log errors;
    struct evq_program_job job; // What the program said about the present job.
};

enum evq_status evq_persistent_new(const struct evq_evaluator *evaluator, const char *devices,
                                   const char *scratch, struct evq_persistent **ret_persistent,
                                   struct evq_error *err)
{
    struct evq_persistent *persistent = calloc(1, sizeof(*persistent));

    if (persistent == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "evaluator '%s'", evaluator->name);
    }
    persistent->evaluator = evaluator;
    persistent->devices = devices;
    persistent->job.evaluator = evaluator->name;
    persistent->job.device = devices[0] != '\0' ? devices : "cpu";
    persistent->scratch = scratch;
    evq_line_pipe_init(&persistent->lines);
    persistent->errors.read_fd = persistent->errors.write_fd = persistent->errors.file_fd = -1;
    *ret_persistent = persistent;
    return EVQ_OK;
}

static void persistent_kill(struct evq_persistent *persistent, int64_t grace_ms)
{
    evq_file_close(&persistent->lines.in_fd);
    evq_process_end(&persistent->process, grace_ms);
    (void)evq_program_log_read(&persistent->errors); // The last output of the program is kept.
    evq_line_pipe_close(&persistent->lines);
    persistent->job.echoes = false;
}

static bool persistent_runs(struct evq_persistent *persistent)
{
    return persistent->process.guard > 0 && !evq_process_check(&persistent->process);
}

void evq_persistent_free(struct evq_persistent *persistent)
{
    static const char exit_line[] = "{\"type\": \"exit\"}\n";

    if (persistent == NULL) {
        return;
    }
    if (persistent_runs(persistent)) {
        enum evq_status ignored = evq_line_pipe_send(
            &persistent->lines, exit_line, sizeof(exit_line) - 1, evq_clock_mono_ms() + 100);
        (void)ignored; // The program also notices the end of its input.
        evq_file_close(&persistent->lines.in_fd);
        const int64_t deadline_ms = evq_clock_mono_ms() + EXIT_GRACE_MS;
        while (!evq_process_check(&persistent->process) && evq_clock_left_ms(deadline_ms) > 0) {
            struct pollfd item = {.fd = persistent->process.status_fd, .events = POLLIN};
            (void)poll(&item, 1, evq_clock_left_ms(deadline_ms));
        }
    }
    persistent_kill(persistent, EXIT_GRACE_MS);
    evq_program_log_close(&persistent->errors);
    evq_line_pipe_free(&persistent->lines);
    evq_program_lines_end(&persistent->job);
    free(persistent);
}

static enum evq_status process_launch(struct evq_persistent *persistent, const int in[2],
                                      const int out[2], struct evq_arena *arena,
                                      struct evq_error *err)
{
    const struct evq_evaluator *evaluator = persistent->evaluator;
    char *const *envp = evq_environment_build(evaluator, persistent->devices, NULL, 0, arena);

    if (envp == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "environment of '%s'", evaluator->name);
    }
    const struct evq_process_config config = {
        .argv = evaluator->argv,
        .envp = envp,
        .directory = evaluator->directory[0] != '\0' ? evaluator->directory : persistent->scratch,
        .stdin_fd = in[0],
        .stdout_fd = out[1],
        .stderr_fd = persistent->errors.write_fd};
    return evq_process_start(&config, &persistent->process, err);
}

static enum evq_status persistent_start(struct evq_persistent *persistent, const char *log_path,
                                        const struct evq_config *config, struct evq_error *err)
{
    int in[2] = {-1, -1};
    int out[2] = {-1, -1};

    persistent_kill(persistent, 0);
    evq_program_log_close(&persistent->errors);
    struct evq_arena *arena = evq_arena_new(0);
    if (arena == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "evaluator '%s'", persistent->evaluator->name);
    }
    enum evq_status status =
        evq_program_log_open(log_path, config->worker.log_bytes_max, &persistent->errors, err);
    if (status != EVQ_OK) {
        goto out;
    }
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "pipe for '%s': %s", persistent->evaluator->name,
                               strerror(errno));
        goto out;
    }
    status = process_launch(persistent, in, out, arena, err);
    evq_program_log_started(&persistent->errors);
    if (status != EVQ_OK) {
        goto out;
    }
    (void)fcntl(in[1], F_SETFL, O_NONBLOCK);
    (void)fcntl(out[0], F_SETFL, O_NONBLOCK);
    persistent->lines.in_fd = in[1];
    persistent->lines.out_fd = out[0];
    in[1] = out[0] = -1;
out:
    for (int i = 0; i < 2; i++) {
        evq_file_close(&in[i]);
        evq_file_close(&out[i]);
    }
    evq_arena_free(arena);
    return status;
}

/* The program broke the protocol: it is killed, and the job is charged with a crash. */
static enum evq_status persistent_crash(struct evq_persistent *persistent,
                                        struct evq_failure *failure, struct evq_error *err,
                                        const char *what)
{
    char how[256];

    const bool ended = evq_process_check(&persistent->process);
    evq_process_describe(&persistent->process, how, sizeof(how));
    persistent_kill(persistent, 0);
    failure->crash = true;
    if (ended && persistent->process.exec_errno != 0) {
        failure->crash = false;
        return evq_error_set(err, EVQ_E_INVALID, "evaluator '%s': '%s' %s",
                             persistent->evaluator->name, persistent->evaluator->argv[0], how);
    }
    if (ended && !persistent->process.lost && WIFEXITED(persistent->process.wait_status) &&
        WEXITSTATUS(persistent->process.wait_status) == EVQ_PROGRAM_RUN_EXIT_FINAL) {
        failure->crash = false;
        (void)evq_program_log_read(&persistent->errors);
        return evq_program_run_final(persistent->evaluator->name, &persistent->errors, err);
    }
    if (ended) {
        char line[400];
        evq_program_log_line(&persistent->errors, line, sizeof(line));
        return evq_error_set(err, EVQ_E_RETRY, "evaluator '%s' died: %s%s%s",
                             persistent->evaluator->name, how, line[0] != '\0' ? ": " : "", line);
    }
    return evq_error_set(err, EVQ_E_RETRY, "evaluator '%s' %s", persistent->evaluator->name, what);
}

/* Waits up to TICK_MS for the next line. *ret_said EVQ_PROGRAM_LINE_NONE: none yet. */
static enum evq_status line_next(struct evq_persistent *persistent,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report,
                                 enum evq_program_line *ret_said, struct evq_failure *failure,
                                 struct evq_error *err)
{
    struct evq_line_pipe *lines = &persistent->lines;
    struct evq_error fault;
    char what[640];
    size_t bytes = 0;

    *ret_said = EVQ_PROGRAM_LINE_NONE;
    const char *text = evq_line_pipe_first(lines, &bytes);
    if (text == NULL) {
        struct pollfd items[2] = {{.fd = lines->out_fd, .events = POLLIN},
                                  {.fd = persistent->errors.read_fd, .events = POLLIN}};
        (void)poll(items, 2, TICK_MS);
        (void)evq_program_log_read(&persistent->errors);
        const bool open = evq_line_pipe_fill(lines);
        text = evq_line_pipe_first(lines, &bytes);
        if (text == NULL && !open) {
            (void)evq_process_check(&persistent->process);
            for (int i = 0; i < 10 && !evq_process_check(&persistent->process); i++) {
                struct pollfd item = {.fd = persistent->process.status_fd, .events = POLLIN};
                // The program closed its output because it is exiting.
                (void)poll(&item, 1, TICK_MS);
            }
            return persistent_crash(persistent, failure, err, "closed its standard output");
        }
        if (text == NULL && lines->said.bytes > EVQ_LINE_PIPE_BYTES_MAX) {
            return persistent_crash(persistent, failure, err, "wrote a line of more than 1 MiB");
        }
        if (text == NULL) {
            return EVQ_OK;
        }
    }
    const enum evq_status status =
        evq_program_lines_take(&persistent->job, text, bytes, request, report, ret_said, &fault);
    if (status == EVQ_OK || status == EVQ_E_STOPPED || *ret_said == EVQ_PROGRAM_LINE_ERROR) {
        evq_line_pipe_drop(lines, bytes);
        if (status != EVQ_OK && err != NULL) {
            *err = fault;
        }
        return status;
    }
    (void)snprintf(what, sizeof(what), "broke the protocol: %s", fault.message);
    return persistent_crash(persistent, failure, err, what);
}

static enum evq_status ready_wait(struct evq_persistent *persistent,
                                  const struct evq_eval_request *request,
                                  const struct evq_eval_report *report, struct evq_failure *failure,
                                  struct evq_error *err)
{
    const int64_t deadline_ms = evq_clock_mono_ms() + persistent->evaluator->start_seconds * 1000;
    enum evq_program_line said = EVQ_PROGRAM_LINE_NONE;

    while (said != EVQ_PROGRAM_LINE_READY) {
        const enum evq_status status = line_next(persistent, request, report, &said, failure, err);
        if (status != EVQ_OK) {
            // The program never saw the job, so the program is broken and not the checkpoint.
            failure->crash = false;
            return status;
        }
        if (said != EVQ_PROGRAM_LINE_NONE && said != EVQ_PROGRAM_LINE_READY &&
            said != EVQ_PROGRAM_LINE_PROGRESS) {
            return persistent_crash(persistent, failure, err, "spoke of a job before it was ready");
        }
        if (evq_clock_left_ms(deadline_ms) == 0) {
            persistent_kill(persistent, 0);
            return evq_error_set(err, EVQ_E_RETRY, "evaluator '%s' was not ready within %lld s",
                                 persistent->evaluator->name,
                                 (long long)persistent->evaluator->start_seconds);
        }
        if (report->progress(report->context, -1, -1, "start") != EVQ_OK) {
            persistent_kill(persistent, 0);
            return evq_error_set(err, EVQ_E_STOPPED, "stopped while evaluator '%s' started",
                                 persistent->evaluator->name);
        }
    }
    return EVQ_OK;
}

static enum evq_status silent_progress(void *context, int64_t done, int64_t total,
                                       const char *status)
{
    (void)context, (void)done, (void)total, (void)status;
    return EVQ_OK;
}

static enum evq_status silent_task(void *context, const struct evq_result *result,
                                   struct evq_error *err)
{
    (void)context, (void)result, (void)err;
    return EVQ_OK;
}

/* Asks the program to stop the job and waits. A program that does not answer is killed. */
static enum evq_status job_cancel(struct evq_persistent *persistent,
                                  const struct evq_eval_request *request, struct evq_error *err)
{
    static const char line[] = "{\"type\": \"cancel\"}\n";
    const struct evq_eval_report silent = {.progress = silent_progress, .task = silent_task};
    const int64_t deadline_ms = evq_clock_mono_ms() + CANCEL_GRACE_MS;
    struct evq_failure failure;
    enum evq_program_line said = EVQ_PROGRAM_LINE_NONE;

    if (evq_line_pipe_send(&persistent->lines, line, sizeof(line) - 1, deadline_ms) == EVQ_OK) {
        while (persistent->lines.out_fd >= 0 && said != EVQ_PROGRAM_LINE_DONE &&
               said != EVQ_PROGRAM_LINE_ERROR && evq_clock_left_ms(deadline_ms) > 0) {
            (void)line_next(persistent, request, &silent, &said, &failure, NULL);
        }
    }
    if (said != EVQ_PROGRAM_LINE_DONE && said != EVQ_PROGRAM_LINE_ERROR) {
        persistent_kill(persistent, 0);
    }
    return evq_error_set(err, EVQ_E_STOPPED, "evaluator '%s' was stopped",
                         persistent->evaluator->name);
}

static enum evq_status job_follow(struct evq_persistent *persistent,
                                  const struct evq_eval_request *request,
                                  const struct evq_eval_report *report, struct evq_failure *failure,
                                  struct evq_error *err)
{
    const int64_t deadline_ms = evq_clock_mono_ms() + request->suite->limit_seconds * 1000;
    enum evq_program_line said = EVQ_PROGRAM_LINE_NONE;

    persistent->job.report_ms = 0;
    while (said != EVQ_PROGRAM_LINE_DONE) {
        enum evq_status status = line_next(persistent, request, report, &said, failure, err);
        if (status == EVQ_OK && said == EVQ_PROGRAM_LINE_NONE) {
            status = report->progress(report->context, -1, -1, NULL);
        }
        if (status == EVQ_E_STOPPED) {
            status = job_cancel(persistent, request, err);
            if (persistent->job.refusal.status != EVQ_OK && err != NULL) {
                *err = persistent->job.refusal;
            }
            return persistent->job.refusal.status != EVQ_OK ? persistent->job.refusal.status
                                                            : status;
        }
        if (status != EVQ_OK) {
            return status;
        }
        if (said == EVQ_PROGRAM_LINE_READY) {
            return persistent_crash(persistent, failure, err, "said ready in the middle of a job");
        }
        if (said != EVQ_PROGRAM_LINE_DONE &&
            evq_clock_left_ms(deadline_ms + persistent->job.report_ms) == 0) {
            (void)job_cancel(persistent, request, NULL); // A program that stops in time stays warm.
            return evq_error_set(
                err, EVQ_E_TIMEOUT, "evaluator '%s' ran longer than its limit of %lld s",
                persistent->evaluator->name, (long long)request->suite->limit_seconds);
        }
    }
    for (size_t i = 0; i < request->suite->task_count; i++) {
        const char *task = request->suite->tasks[i].name;
        if (!persistent->job.tasks_given[i] && !evq_eval_task_is_done(request, task)) {
            return evq_error_set(err, EVQ_E_RETRY, "evaluator '%s' said done without task '%s'",
                                 persistent->evaluator->name, task);
        }
    }
    return EVQ_OK;
}

/* Lines without a job number could be taken for results of the next job. A program that does not
 * number its lines and wrote something since its last job ended is therefore not given another. */
static bool spoke_unasked(struct evq_persistent *persistent)
{
    const bool open = evq_line_pipe_fill(&persistent->lines);

    return !open || (persistent->lines.said.bytes > 0 && !persistent->job.echoes);
}

static enum evq_status job_hand(struct evq_persistent *persistent,
                                const struct evq_eval_request *request, struct evq_failure *failure,
                                struct evq_error *err)
{
    struct evq_buffer line;

    evq_buffer_init(&line, EVQ_LINE_PIPE_BYTES_MAX);
    persistent->job.late = 0;
    evq_job_json_text(request, ++persistent->job.turn, "", &line);
    evq_buffer_text(&line, "\n");
    enum evq_status status = EVQ_OK;
    if (line.failed) {
        status = evq_error_set(err, EVQ_E_LIMIT, "the job is larger than 1 MiB as JSON");
    } else if (evq_line_pipe_send(&persistent->lines, line.data, line.bytes,
                                  evq_clock_mono_ms() + 30000) != EVQ_OK) {
        status = persistent_crash(persistent, failure, err, "does not read its standard input");
    }
    evq_buffer_free(&line);
    return status;
}

enum evq_status evq_persistent_warm(struct evq_persistent *persistent,
                                    const struct evq_config *config, const struct evq_suite *suite,
                                    const struct evq_eval_report *report, struct evq_error *err)
{
    const struct evq_eval_request request = {.config = config, .suite = suite};
    const struct evq_eval_report no_tasks = {
        .context = report->context, .progress = report->progress, .task = silent_task};
    struct evq_failure failure = {0};

    enum evq_status status = evq_program_lines_begin(&persistent->job, &request, err);
    if (status == EVQ_OK) {
        status = persistent_start(persistent, NULL, config, err);
    }
    return status == EVQ_OK ? ready_wait(persistent, &request, &no_tasks, &failure, err) : status;
}

enum evq_status evq_persistent_eval(struct evq_persistent *persistent, const char *log_path,
                                    const struct evq_eval_request *request,
                                    const struct evq_eval_report *report,
                                    struct evq_failure *failure, struct evq_error *err)
{
    char tail[EVQ_PROGRAM_LOG_TAIL_BYTES + 1];

    enum evq_status status = evq_program_lines_begin(&persistent->job, request, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (persistent_runs(persistent) && !spoke_unasked(persistent)) {
        evq_program_log_switch(&persistent->errors, log_path);
    } else {
        status = persistent_start(persistent, log_path, request->config, err);
        if (status == EVQ_OK) {
            status = ready_wait(persistent, request, report, failure, err);
        }
    }
    if (status == EVQ_OK) {
        persistent->job.refusal.status = EVQ_OK;
        persistent->job.began_us = evq_clock_mono_us();
        status = job_hand(persistent, request, failure, err);
    }
    if (status == EVQ_OK) {
        status = job_follow(persistent, request, report, failure, err);
    }
    (void)evq_program_log_read(&persistent->errors);
    if (persistent->job.late > 0) {
        char note[96];
        (void)snprintf(note, sizeof(note), "evalq: %llu lines about an earlier job were dropped\n",
                       (unsigned long long)persistent->job.late);
        evq_program_log_note(&persistent->errors, note);
    }
    evq_program_log_tail(&persistent->errors, tail, sizeof(tail));
    (void)snprintf(failure->detail, sizeof(failure->detail), "log: %s\n%s",
                   evq_program_log_where(&persistent->errors), tail);
    return status;
}
