#include "worker/evaluators/program_run.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "shared/base/clock.h"
#include "worker/evaluators/environment.h"
#include "worker/evaluators/process.h"
#include "worker/evaluators/program_log.h"

#define TICK_MS      100
#define STATUS_BYTES 65
#define LEFTOVER_MS  200 // Time for reading what is still in the pipe after the program has ended.

static enum evq_status process_start(const struct evq_program_run *run,
                                     struct evq_program_log *output, struct evq_process *process,
                                     struct evq_arena *arena, struct evq_error *err)
{
    const struct evq_evaluator *evaluator = run->evaluator;
    char *const *envp =
        evq_environment_build(evaluator, run->devices, run->extra, run->extra_count, arena);

    if (envp == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "environment of '%s'", evaluator->name);
    }
    const struct evq_process_config config = {
        .argv = evaluator->argv,
        .envp = envp,
        .directory = evaluator->directory[0] != '\0' ? evaluator->directory : run->request->scratch,
        .stdin_fd = -1,
        .stdout_fd = output->write_fd,
        .stderr_fd = output->write_fd};
    const enum evq_status status = evq_process_start(&config, process, err);
    evq_program_log_started(output);
    return status;
}

/* Waits for the end, the time limit or a cancel. If the result is not EVQ_OK, the program may still
 * run. */
static enum evq_status process_watch(const struct evq_program_run *run,
                                     struct evq_program_log *output, struct evq_process *process,
                                     struct evq_error *err)
{
    const int64_t deadline_ms = evq_clock_mono_ms() + run->request->suite->limit_seconds * 1000;
    char status_line[STATUS_BYTES] = "";

    while (!evq_process_check(process)) {
        if (evq_clock_mono_ms() >= deadline_ms) {
            return evq_error_set(
                err, EVQ_E_TIMEOUT, "evaluator '%s' ran longer than its limit of %lld s",
                run->evaluator->name, (long long)run->request->suite->limit_seconds);
        }
        struct pollfd items[2] = {{.fd = process->status_fd, .events = POLLIN},
                                  {.fd = output->read_fd, .events = POLLIN}};
        const int left = evq_clock_left_ms(deadline_ms);
        (void)poll(items, 2, left < TICK_MS ? left : TICK_MS);
        const uint64_t before = output->changes;
        (void)evq_program_log_read(output);
        if (output->changes != before) {
            evq_program_log_line(output, status_line, sizeof(status_line));
        }
        if (run->report->progress(run->report->context, -1, -1, status_line) != EVQ_OK) {
            return evq_error_set(err, EVQ_E_STOPPED, "evaluator '%s' was stopped",
                                 run->evaluator->name);
        }
    }
    return EVQ_OK;
}

static void output_drain(struct evq_program_log *output)
{
    const int64_t deadline_ms = evq_clock_mono_ms() + LEFTOVER_MS;

    // A grandchild that left the session may keep the pipe open, so the time is limited.
    while (evq_program_log_read(output) && evq_clock_mono_ms() < deadline_ms) {
        struct pollfd item = {.fd = output->read_fd, .events = POLLIN};
        if (poll(&item, 1, evq_clock_left_ms(deadline_ms)) <= 0) {
            break;
        }
    }
}

static enum evq_status process_judge(const struct evq_program_run *run,
                                     const struct evq_process *process,
                                     const struct evq_program_log *output, const char *how,
                                     struct evq_failure *failure, struct evq_error *err)
{
    const char *name = run->evaluator->name;

    if (process->exec_errno != 0) {
        return evq_error_set(err, EVQ_E_INVALID, "evaluator '%s': '%s' %s", name,
                             run->evaluator->argv[0], how);
    }
    if (process->lost || WIFSIGNALED(process->wait_status)) {
        failure->crash = true;
        return evq_error_set(err, EVQ_E_RETRY, "evaluator '%s' ended by %s", name, how);
    }
    const int code = WEXITSTATUS(process->wait_status);
    if (code == 0) {
        return EVQ_OK;
    }
    if (code == EVQ_PROGRAM_RUN_EXIT_FINAL) {
        return evq_program_run_final(name, output, err);
    }
    char line[400];
    evq_program_log_line(output, line, sizeof(line));
    return evq_error_set(err, EVQ_E_RETRY, "evaluator '%s' ended with %s%s%s", name, how,
                         line[0] != '\0' ? ": " : "", line);
}

enum evq_status evq_program_run_final(const char *name, const struct evq_program_log *output,
                                      struct evq_error *err)
{
    char line[400];

    evq_program_log_line(output, line, sizeof(line));
    // The cause comes first, because the job's record and tables keep only the beginning.
    return line[0] != '\0' ? evq_error_set(err, EVQ_E_INVALID,
                                           "%s (evaluator '%s' failed for good, exit status %d)",
                                           line, name, EVQ_PROGRAM_RUN_EXIT_FINAL)
                           : evq_error_set(err, EVQ_E_INVALID,
                                           "evaluator '%s' failed for good (exit status %d)", name,
                                           EVQ_PROGRAM_RUN_EXIT_FINAL);
}

enum evq_status evq_program_run_wait(const struct evq_program_run *run, struct evq_failure *failure,
                                     struct evq_error *err)
{
    struct evq_program_log output;
    struct evq_process process = {0};
    char how[256];
    char tail[EVQ_PROGRAM_LOG_TAIL_BYTES + 1];

    struct evq_arena *arena = evq_arena_new(0);
    if (arena == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "evaluator '%s'", run->evaluator->name);
    }
    enum evq_status status = evq_program_log_open(
        run->log_path, run->request->config->worker.log_bytes_max, &output, err);
    if (status != EVQ_OK) {
        goto out;
    }
    status = process_start(run, &output, &process, arena, err);
    if (status == EVQ_OK) {
        status = process_watch(run, &output, &process, err);
        const bool killed = status != EVQ_OK;
        if (killed) {
            evq_process_end(&process, EVQ_PROGRAM_RUN_GRACE_MS);
        }
        output_drain(&output);
        evq_process_describe(&process, how, sizeof(how));
        if (!killed) {
            status = process_judge(run, &process, &output, how, failure, err);
        }
        evq_program_log_tail(&output, tail, sizeof(tail));
        (void)snprintf(failure->detail, sizeof(failure->detail), "%s%slog: %s\n%s",
                       killed ? how : "", killed ? "\n" : "", evq_program_log_where(&output), tail);
    }
out:
    evq_program_log_close(&output);
    evq_arena_free(arena);
    return status;
}
