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
#include "worker/evaluators/program_log.h"
#include "worker/evaluators/program_run.h"
#include "worker/evaluators/python_json.h"
#include "worker/evaluators/result_files.h"
#include "worker/evaluators/task_lines.h"

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
    uint64_t turn;     // Number of the present job. Each job that is handed over has its own.
    bool echoes;       // The program names the job's number in its lines.
    uint64_t late;     // Lines about earlier jobs that arrived during this one.
    int64_t began_us;  // When the program took the present job, or ended its last task.
    int64_t report_ms; // How long its results were reported. That does not use up its time limit.
    bool *tasks_given; // Which tasks of the suite the present job has reported.
    size_t task_room;  // Allocated entries of tasks_given.
    struct evq_sample_store *samples; // Samples of the next task; NULL: none yet.
    struct evq_error refusal;         // Why a task's result was refused; EVQ_OK: none was.
};

/* What the next line of the program means for the job. */
enum said {
    SAID_NOTHING,
    SAID_READY,
    SAID_PROGRESS,
    SAID_SAMPLES,
    SAID_TASK,
    SAID_DONE,
    SAID_ERROR
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
    persistent->echoes = false;
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
    evq_sample_store_free(persistent->samples);
    free(persistent->tasks_given);
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

static int64_t json_count(const json_t *json, const char *key)
{
    double value = -1;

    return evq_python_json_number(json_object_get(json, key), &value) && value >= 0 && value < 9e15
               ? (int64_t)value
               : -1;
}

static enum evq_status task_take(struct evq_persistent *persistent, const json_t *line,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report, struct evq_error *err)
{
    struct evq_result *result = NULL;
    const json_t *metrics = json_object_get(line, "metrics");
    size_t number = 0;

    enum evq_status status = evq_task_lines_find(line, request, &number, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *task = request->suite->tasks[number].name;
    if (!json_is_object(metrics)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "the message of task '%s' has no \"metrics\", expected an object",
                             task);
    }
    if (persistent->tasks_given[number]) {
        return evq_error_set(err, EVQ_E_CORRUPT, "task '%s' was given twice", task);
    }
    status = evq_results_task(task, metrics, "task message", &result, err);
    if (status == EVQ_E_INVALID || status == EVQ_E_LIMIT) {
        // The program keeps to the protocol and would report the same again, so this is neither a
        // crash nor worth a retry.
        (void)evq_error_set(&persistent->refusal, status, "evaluator '%s': %s",
                            persistent->evaluator->name, err->message);
        return EVQ_E_STOPPED;
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (json_count(line, "n") >= 0) {
        result->n = json_count(line, "n");
    }
    const int64_t now_us = evq_clock_mono_us();
    result->timing.compute_us = now_us - persistent->began_us;
    result->timing.samples = result->n > 0 ? result->n : 0;
    persistent->began_us = now_us;
    result->backend = "persistent";
    result->device = persistent->devices[0] != '\0' ? persistent->devices : "cpu";
    const char *note = json_string_value(json_object_get(line, "note"));
    result->note = note != NULL ? note : "";
    persistent->tasks_given[number] = true;
    if (strcmp(evq_sample_store_task(persistent->samples), task) == 0) {
        evq_sample_store_finish(persistent->samples, result);
        persistent->samples = NULL;
    }
    const int64_t report_ms = evq_clock_mono_ms();
    status = report->task(report->context, result, &persistent->refusal);
    persistent->report_ms += evq_clock_mono_ms() - report_ms;
    if (status != EVQ_OK) {
        persistent->refusal.status = status;
        status = EVQ_E_STOPPED; // The program did nothing wrong, so it is asked to stop.
    }
    evq_result_free(result);
    return status;
}

/* Interprets one line. Any error means that the line breaks the protocol. */
static enum evq_status line_take(struct evq_persistent *persistent, const char *text, size_t bytes,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report, enum said *ret_said,
                                 struct evq_error *err)
{
    json_t *line = NULL;

    enum evq_status status =
        evq_python_json_object(text, bytes, "a line on standard output", &line, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *type = json_string_value(json_object_get(line, "type"));
    type = type != NULL ? type : "";
    const int64_t turn = json_count(line, "turn");
    persistent->echoes = persistent->echoes || turn > 0;
    if (turn > 0 && (uint64_t)turn != persistent->turn) {
        persistent->late++; // A line about an earlier job does not count for this one.
        *ret_said = SAID_NOTHING;
    } else if (strcmp(type, "ready") == 0) {
        *ret_said = SAID_READY;
    } else if (strcmp(type, "progress") == 0) {
        const char *words = json_string_value(json_object_get(line, "status"));
        *ret_said = SAID_PROGRESS;
        status = report->progress(report->context, json_count(line, "done"),
                                  json_count(line, "total"), words != NULL ? words : "");
    } else if (strcmp(type, "samples") == 0) {
        *ret_said = SAID_SAMPLES;
        status = evq_task_lines_samples(line, request, &persistent->samples, err);
    } else if (strcmp(type, "task") == 0) {
        *ret_said = SAID_TASK;
        status = task_take(persistent, line, request, report, err);
    } else if (strcmp(type, "done") == 0) {
        *ret_said = SAID_DONE;
    } else if (strcmp(type, "error") == 0) {
        const char *words = json_string_value(json_object_get(line, "message"));
        const bool final = json_is_true(json_object_get(line, "final"));
        char escaped[400];
        words = words != NULL ? words : "no message";
        *ret_said = SAID_ERROR;
        status = evq_error_set(err, final ? EVQ_E_INVALID : EVQ_E_RETRY, "evaluator '%s': %s",
                               persistent->evaluator->name,
                               evq_error_escape(words, strlen(words), escaped, sizeof(escaped)));
    } else {
        char shown[64];
        status = evq_error_set(err, EVQ_E_CORRUPT,
                               "a line on standard output has the \"type\" '%s', expected ready, "
                               "progress, samples, task, done or error",
                               evq_error_escape(type, strlen(type), shown, sizeof(shown)));
    }
    json_decref(line);
    return status;
}

/* Waits up to TICK_MS for the next line. *ret_said SAID_NOTHING: none yet. */
static enum evq_status line_next(struct evq_persistent *persistent,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report, enum said *ret_said,
                                 struct evq_failure *failure, struct evq_error *err)
{
    struct evq_line_pipe *lines = &persistent->lines;
    struct evq_error fault;
    char what[640];
    size_t bytes = 0;

    *ret_said = SAID_NOTHING;
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
        line_take(persistent, text, bytes, request, report, ret_said, &fault);
    if (status == EVQ_OK || status == EVQ_E_STOPPED || *ret_said == SAID_ERROR) {
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
    enum said said = SAID_NOTHING;

    while (said != SAID_READY) {
        const enum evq_status status = line_next(persistent, request, report, &said, failure, err);
        if (status != EVQ_OK) {
            // The program never saw the job, so the program is broken and not the checkpoint.
            failure->crash = false;
            return status;
        }
        if (said != SAID_NOTHING && said != SAID_READY && said != SAID_PROGRESS) {
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
    enum said said = SAID_NOTHING;

    if (evq_line_pipe_send(&persistent->lines, line, sizeof(line) - 1, deadline_ms) == EVQ_OK) {
        while (persistent->lines.out_fd >= 0 && said != SAID_DONE && said != SAID_ERROR &&
               evq_clock_left_ms(deadline_ms) > 0) {
            (void)line_next(persistent, request, &silent, &said, &failure, NULL);
        }
    }
    if (said != SAID_DONE && said != SAID_ERROR) {
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
    enum said said = SAID_NOTHING;

    persistent->report_ms = 0;
    while (said != SAID_DONE) {
        enum evq_status status = line_next(persistent, request, report, &said, failure, err);
        if (status == EVQ_OK && said == SAID_NOTHING) {
            status = report->progress(report->context, -1, -1, NULL);
        }
        if (status == EVQ_E_STOPPED) {
            status = job_cancel(persistent, request, err);
            if (persistent->refusal.status != EVQ_OK && err != NULL) {
                *err = persistent->refusal;
            }
            return persistent->refusal.status != EVQ_OK ? persistent->refusal.status : status;
        }
        if (status != EVQ_OK) {
            return status;
        }
        if (said == SAID_READY) {
            return persistent_crash(persistent, failure, err, "said ready in the middle of a job");
        }
        if (said != SAID_DONE && evq_clock_left_ms(deadline_ms + persistent->report_ms) == 0) {
            (void)job_cancel(persistent, request, NULL); // A program that stops in time stays warm.
            return evq_error_set(
                err, EVQ_E_TIMEOUT, "evaluator '%s' ran longer than its limit of %lld s",
                persistent->evaluator->name, (long long)request->suite->limit_seconds);
        }
    }
    for (size_t i = 0; i < request->suite->task_count; i++) {
        const char *task = request->suite->tasks[i].name;
        if (!persistent->tasks_given[i] && !evq_eval_task_is_done(request, task)) {
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

    return !open || (persistent->lines.said.bytes > 0 && !persistent->echoes);
}

static enum evq_status tasks_begin(struct evq_persistent *persistent,
                                   const struct evq_eval_request *request, struct evq_error *err)
{
    const size_t count = request->suite->task_count;

    evq_sample_store_free(persistent->samples); // Of a job that ended before its task did.
    persistent->samples = NULL;
    if (count > persistent->task_room) {
        bool *grown = realloc(persistent->tasks_given, count * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "evaluator '%s'", persistent->evaluator->name);
        }
        persistent->tasks_given = grown;
        persistent->task_room = count;
    }
    for (size_t i = 0; i < count; i++) {
        persistent->tasks_given[i] = false;
    }
    return EVQ_OK;
}

static enum evq_status job_hand(struct evq_persistent *persistent,
                                const struct evq_eval_request *request, struct evq_failure *failure,
                                struct evq_error *err)
{
    struct evq_buffer line;

    evq_buffer_init(&line, EVQ_LINE_PIPE_BYTES_MAX);
    persistent->late = 0;
    evq_job_json_text(request, ++persistent->turn, "", &line);
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

    enum evq_status status = tasks_begin(persistent, &request, err);
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

    enum evq_status status = tasks_begin(persistent, request, err);
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
        persistent->refusal.status = EVQ_OK;
        persistent->began_us = evq_clock_mono_us();
        status = job_hand(persistent, request, failure, err);
    }
    if (status == EVQ_OK) {
        status = job_follow(persistent, request, report, failure, err);
    }
    (void)evq_program_log_read(&persistent->errors);
    if (persistent->late > 0) {
        char note[96];
        (void)snprintf(note, sizeof(note), "evalq: %llu lines about an earlier job were dropped\n",
                       (unsigned long long)persistent->late);
        evq_program_log_note(&persistent->errors, note);
    }
    evq_program_log_tail(&persistent->errors, tail, sizeof(tail));
    (void)snprintf(failure->detail, sizeof(failure->detail), "log: %s\n%s",
                   evq_program_log_where(&persistent->errors), tail);
    return status;
}
