#include "producer/cli/up/training.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "producer/cli/inspect/feed.h"
#include "producer/cli/inspect/live.h"
#include "producer/cli/json.h"
#include "producer/cli/up/command_output.h"
#include "producer/cli/view.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#define POLL_MS       150   // How often results are read.
#define SINKS_MS      10000 // Time for sinks to take the last results.
#define WHY_MS        5000  // How often to look why jobs wait, while the command runs.
#define WHY_END_MS    1000  // The same limit, after the command has ended.
#define PATIENT_MS    2000  // If the command ends later than this, say that we wait for it.
#define LAST_WORDS_MS 1000  // Time to read output that is left after the command's end.

struct training {
    struct evq_process_manager *manager;
    struct evq_feed *feed;
    struct evq_result_table *results;
    struct evq_live live;
    int output_fd; // The command's output on a terminal; -1: it writes by itself.
    struct evq_command_output output;
    int64_t open; // Open jobs at the last look.
    json_t *said; // Keys: the reasons for waiting that were printed.
    int64_t next_why_ms;
    uint32_t told; // A bit for each error of a look that was printed.
    int64_t begin_ms;
};

/* Opens a pseudo terminal for the command, so that it writes line by line as on a terminal. Its
 * lines appear above the footer. */
static enum evq_status open_pty(struct training *training, int *ret_slave, struct evq_error *err)
{
    char name[128];
    struct termios mode;
    struct winsize size;
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    int slave = -1;
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0 ||
        ptsname_r(master, name, sizeof name) != 0 ||
        (slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) {
        enum evq_status status =
            evq_error_set(err, EVQ_E_IO, "open a terminal for the command: %s", strerror(errno));
        evq_file_close(&master);
        return status;
    }
    if (tcgetattr(slave, &mode) == 0) {
        mode.c_oflag &= ~(tcflag_t)OPOST; // Our own terminal makes \r\n of \n.
        mode.c_lflag &= ~(tcflag_t)ECHO;
        (void)tcsetattr(slave, TCSANOW, &mode); // If it fails, only the appearance is worse.
    }
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
        (void)ioctl(slave, TIOCSWINSZ, &size);
    }
    training->output_fd = master;
    *ret_slave = slave;
    return EVQ_OK;
}

static enum evq_status start_command(struct training *training, char *const *argv,
                                     struct evq_error *err)
{
    struct evq_service *command = &training->manager->command;
    int slave = -1;
    enum evq_status status = EVQ_OK;
    (void)snprintf(command->name, sizeof command->name, "command");
    command->command = argv;
    if (training->manager->cli->terminal.is_tty) {
        status = open_pty(training, &slave, err);
    }
    command->output_fd = slave;
    if (status == EVQ_OK) {
        status = evq_service_start(command, err);
    }
    command->output_fd = -1;
    evq_file_close(&slave); // The command has its own.
    return status;
}

/* Prints the command's complete lines above the footer, and its bars as the footer's first lines.
 */
static void show_output(struct training *training)
{
    struct evq_command_output *output = &training->output;
    struct evq_live *live = &training->live;
    char bar[EVQ_LIVE_LINE_BYTES];

    if (output->lines.bytes > 0) {
        evq_live_erase(live);
        (void)fwrite(output->lines.data, 1, output->lines.bytes, stdout);
        evq_buffer_clear(&output->lines);
    }
    evq_live_bars_clear(live);
    for (size_t i = 0; i < output->row_count; i++) {
        evq_command_output_plain(&output->rows[i], bar, sizeof bar);
        if (bar[strspn(bar, " ")] != '\0') {
            evq_live_bar(live, bar);
        }
    }
    evq_live_redraw(live);
}

/* Reads the command's output. */
static void pass_output(struct training *training)
{
    char bytes[65536];
    ssize_t got = read(training->output_fd, bytes, sizeof bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (got <= 0) {
        (void)close(training->output_fd); // EIO: no process has the terminal open.
        training->output_fd = -1;
        evq_command_output_end(&training->output);
    } else {
        evq_command_output_take(&training->output, bytes, (size_t)got);
    }
    show_output(training);
}

/* Prints the name of each run once, because `evalq results` needs it. */
static void say_runs(struct training *training)
{
    const char *run = NULL;
    while ((run = evq_feed_next_run(training->feed)) != NULL) {
        evq_live_erase(&training->live);
        evq_cli_say(training->manager->cli, "evalq: run %s: `evalq results %s` shows its results",
                    run, run);
    }
}

static void on_result(void *context, const struct evq_result *result)
{
    struct training *training = context;
    struct evq_result_table_row *row = evq_result_table_add(training->results, result);
    if (row != NULL && row->ended && result->task[0] == '\0') {
        say_runs(training); // The name stands before the first row.
        char cause[EVQ_VIEW_CAUSE_BYTES];
        evq_live_row(
            &training->live, row,
            evq_view_cause_of(training->manager->cli, row->job, row->reason, cause, sizeof cause));
    }
}

static void footer_running(struct evq_live *live, const json_t *view)
{
    size_t index = 0;
    const json_t *job = NULL;
    json_array_foreach(json_object_get(view, "jobs"), index, job)
    {
        char progress[32] = "";
        int64_t done = evq_json_integer(job, "progress", -1);
        int64_t total = evq_json_integer(job, "total", -1);
        if (done >= 0 && total > 0) {
            (void)snprintf(progress, sizeof progress, " %3" PRId64 "%%", 100 * done / total);
        }
        const char *text = evq_json_text(job, "status", "");
        const char *worker = evq_json_text(job, "worker", "?");
        evq_live_footer_line(live, "running  step %s %s%s%s%s on %.*s",
                             evq_json_text(job, "step", "?"), evq_json_text(job, "suite", "?"),
                             progress, text[0] != '\0' ? " " : "", text,
                             (int)evq_result_table_worker_name_bytes(worker), worker);
    }
}

static void footer(struct training *training, const struct evq_run_counts *counts)
{
    struct evq_live *live = &training->live;
    struct evq_queue *queue = training->manager->cli->queue;
    char *text = NULL;
    json_t *view = NULL;

    if (!live->terminal->is_tty) {
        return;
    }
    evq_live_footer_clear(live);
    if (counts->by_state[EVQ_JOB_RUNNING] > 0 &&
        evq_queue_jobs(queue, "running", "", "", EVQ_LIVE_FOOTER_LINES_MAX - 2, &text, NULL) ==
            EVQ_OK &&
        evq_json_take(text, &view, NULL) == EVQ_OK) {
        footer_running(live, view);
        json_decref(view);
    }
    const struct evq_service *command = &training->manager->command;
    evq_live_footer_line(live, "%s; evaluated %" PRId64 ", running %" PRId64 ", waiting %" PRId64,
                         command->pid != 0 ? "training" : "training has ended",
                         counts->by_state[EVQ_JOB_DONE], counts->by_state[EVQ_JOB_RUNNING],
                         counts->by_state[EVQ_JOB_QUEUED] + counts->by_state[EVQ_JOB_DELAYED]);
}

/* Whether to continue after a look failed with this error. An outage passes, because the manager
 * restarts the server. While the command runs, any error is printed once and ignored. */
static bool look_passes(struct training *training, enum evq_status status,
                        const struct evq_error *err)
{
    const struct evq_process_manager *manager = training->manager;
    const uint32_t kind = UINT32_C(1) << status;

    if (evq_conn_retryable(status)) {
        return true;
    }
    if (manager->command.pid != 0 && (training->told & kind) == 0) {
        training->told |= kind;
        evq_live_erase(&training->live);
        evq_cli_say(manager->cli, "evalq: %s; the command goes on", err->message);
    }
    return manager->command.pid != 0;
}

/* One look at the queue. */
static enum evq_status look(struct training *training, struct evq_error *err)
{
    struct evq_run_counts counts;
    enum evq_status status = evq_feed_poll(training->feed, on_result, training, err);
    if (status == EVQ_OK) {
        say_runs(training);
        status = evq_feed_counts(training->feed, &counts, err);
    }
    if (status != EVQ_OK && look_passes(training, status, err)) {
        training->open = -1;
        return EVQ_OK;
    }
    if (status == EVQ_OK) {
        training->open = counts.open;
        footer(training, &counts);
        evq_command_output_tick(&training->output);
        show_output(training);
    }
    return status;
}

/* Whether some sink has not taken all results yet. say: print which one. */
static bool sinks_lag(struct training *training, bool say)
{
    json_t *view = NULL;
    bool lag = false;
    size_t index = 0;
    const json_t *sink = NULL;
    if (evq_view_stats(training->manager->cli, &view, NULL) != EVQ_OK) {
        return false;
    }
    json_array_foreach(json_object_get(view, "sinks"), index, sink)
    {
        int64_t behind = evq_json_integer(sink, "lag", 0) + evq_json_integer(sink, "pending", 0);
        const char *reason = evq_json_text(sink, "error", "");
        lag = lag || behind > 0;
        if (say && behind > 0) {
            char shown[1024];
            (void)fflush(stdout); // The summary comes first, also if both go into one file.
            evq_cli_say(training->manager->cli,
                        "evalq: the sink '%s' has yet to take %" PRId64
                        " result%s, which the queue keeps for the next `evalq up`%s%s",
                        evq_json_text(sink, "name", "?"), behind, behind == 1 ? "" : "s",
                        reason[0] != '\0' ? ": " : "",
                        evq_error_escape(reason, strlen(reason), shown, sizeof shown));
        }
    }
    json_decref(view);
    return lag;
}

/* Prints each reason for which jobs wait once. */
static void say_reasons(struct training *training, const json_t *view)
{
    struct evq_cli *cli = training->manager->cli;
    const char *why = NULL;
    const json_t *count = NULL;
    json_object_foreach(json_object_get(view, "waiting"), why, count)
    {
        char shown[1024];
        if (json_object_get(training->said, why) != NULL ||
            json_object_set_new(training->said, why, json_true()) != 0) {
            continue;
        }
        evq_live_erase(&training->live);
        evq_cli_say(cli, "evalq: %" PRId64 " %s: %s", (int64_t)json_number_value(count),
                    json_number_value(count) == 1 ? "job waits" : "jobs wait",
                    evq_error_escape(why, strlen(why), shown, sizeof shown));
    }
}

/* Prints why jobs wait. Returns true if the command has ended and no worker here can run the other
 * jobs; then prints that too and sets the exit code. */
static bool is_stuck(struct training *training, bool ended)
{
    struct evq_cli *cli = training->manager->cli;
    json_t *view = NULL;
    const char *why = NULL;
    char shown[1024];
    if (training->open <= 0 || evq_clock_mono_ms() < training->next_why_ms) {
        return false;
    }
    training->next_why_ms = evq_clock_mono_ms() + (ended ? WHY_END_MS : WHY_MS);
    if (evq_view_stats(cli, &view, NULL) != EVQ_OK) {
        return false;
    }
    say_reasons(training, view);
    const bool stuck = ended && evq_process_manager_is_stuck(training->manager, view, &why);
    if (stuck) {
        const json_t *states = json_object_get(view, "states");
        // This view is newer than the last look: other jobs may have ended in between.
        training->open =
            evq_json_integer(states, "queued", 0) + evq_json_integer(states, "delayed", 0);
        evq_live_erase(&training->live);
        evq_cli_say(cli,
                    "evalq: %" PRId64 " %s still open, and no worker here can run %s: %s. Correct "
                    "the configuration %s; the next `evalq up` runs %s",
                    training->open, training->open == 1 ? "job is" : "jobs are",
                    training->open == 1 ? "it" : "them",
                    evq_error_escape(why, strlen(why), shown, sizeof shown), cli->config->file,
                    training->open == 1 ? "it" : "them");
        cli->exit_code = EVQ_EXIT_JOB_FAILED;
    }
    json_decref(view);
    return stuck;
}

/* Whether waiting for the open jobs makes sense. */
static enum evq_status workers_left(const struct training *training, struct evq_error *err)
{
    const enum evq_status status = evq_process_manager_workers_left(training->manager, err);

    return status == EVQ_OK
               ? status
               : evq_error_prefix(err,
                                  "%" PRId64 " %s still open, and no worker is left for it; the "
                                  "next `evalq up` goes on",
                                  training->open, training->open == 1 ? "job is" : "jobs are");
}

/* Waits until the command and its jobs have ended. Also ends if no worker is left, after a stop,
 * and wait_ms after the command's end. */
static enum evq_status follow(struct training *training, int64_t wait_ms, struct evq_error *err)
{
    struct evq_process_manager *manager = training->manager;
    enum evq_status status = EVQ_OK;
    int64_t next_look = 0;
    int64_t deadline = INT64_MAX;

    while (status == EVQ_OK && manager->stop_count == 0) {
        bool readable = false;
        bool ended = manager->command.ended && training->output_fd < 0;
        if (ended && deadline == INT64_MAX) {
            deadline = evq_clock_mono_ms() + wait_ms;
            next_look = 0;
            training->next_why_ms = 0;
        }
        if (evq_clock_mono_ms() >= next_look) {
            status = look(training, err);
            const bool stuck = status == EVQ_OK && is_stuck(training, ended);
            if (status == EVQ_OK && ended && (stuck || training->open == 0)) {
                return look(training, err); // Results may have arrived between its two calls.
            }
            if (status == EVQ_OK && ended && evq_clock_mono_ms() >= deadline) {
                return evq_error_set(err, EVQ_E_TIMEOUT,
                                     "%" PRId64 " %s still open %" PRId64
                                     " s after the command ended; the next `evalq up` goes on",
                                     training->open, training->open == 1 ? "job was" : "jobs were",
                                     wait_ms / 1000);
            }
            if (status == EVQ_OK && ended && training->open > 0) {
                status = workers_left(training, err);
            }
            next_look = evq_clock_mono_ms() + POLL_MS;
        }
        if (status == EVQ_OK) {
            status =
                evq_process_manager_step(manager, training->output_fd, POLL_MS / 3, &readable, err);
        }
        if (readable) {
            pass_output(training);
        }
    }
    return status;
}

/* Reads and prints the command's output. Returns whether there was any. */
static bool step(struct training *training, int timeout_ms)
{
    bool readable = false;
    enum evq_status ignored = evq_process_manager_step(training->manager, training->output_fd,
                                                       timeout_ms, &readable, NULL);

    (void)ignored; // The result does not matter; the command gets its time.
    if (readable) {
        pass_output(training);
    }
    return readable;
}

/* Asks the command to end, once, and waits as long as it needs: it may save its last checkpoint.
 * Only another stop kills it. */
static void end_command(struct training *training)
{
    struct evq_process_manager *manager = training->manager;
    const int asked = manager->stop_count;
    int64_t say_at_ms = evq_clock_mono_ms() + PATIENT_MS;

    evq_service_signal(&manager->command, manager->stop_signal == SIGINT ? SIGINT : SIGTERM);
    while (manager->command.pid != 0) {
        if (manager->stop_count > asked) {
            evq_service_signal(&manager->command, SIGKILL);
        }
        if (evq_clock_mono_ms() > say_at_ms) {
            say_at_ms = INT64_MAX;
            evq_cli_say(manager->cli,
                        "evalq: the command was told to end and has not yet; a second "
                        "Ctrl-C kills it");
        }
        (void)step(training, POLL_MS);
    }
    const int64_t deadline = evq_clock_mono_ms() + LAST_WORDS_MS;
    while (step(training, 0) && evq_clock_mono_ms() < deadline) {
    }
}

static void print_summary(struct training *training)
{
    struct evq_result_table *results = training->results;
    struct evq_cli *cli = training->manager->cli;
    const struct evq_terminal *terminal = &cli->terminal;
    size_t by_state[EVQ_JOB_STATE_COUNT] = {0};
    char took[EVQ_TERMINAL_SPAN_BYTES];

    evq_result_table_sort(results);
    for (size_t i = 0; i < results->row_count; i++) {
        by_state[results->rows[i].ended ? results->rows[i].state : EVQ_JOB_RUNNING]++;
    }
    const char *what = results->shape.suite || results->shape.variant ? "evaluation" : "checkpoint";
    (void)printf("\n%sSummary%s  %zu %s%s %s in %s", evq_terminal_colour(terminal, EVQ_COLOUR_BOLD),
                 evq_terminal_colour(terminal, EVQ_COLOUR_NONE), by_state[EVQ_JOB_DONE], what,
                 by_state[EVQ_JOB_DONE] == 1 ? "" : "s", what[0] == 'e' ? "done" : "evaluated",
                 evq_terminal_took(1000 * (evq_clock_mono_ms() - training->begin_ms), took));
    for (size_t state = EVQ_JOB_DEAD; state < EVQ_JOB_STATE_COUNT; state++) {
        if (by_state[state] > 0) {
            (void)printf(", %zu %s", by_state[state],
                         evq_job_state_name((enum evq_job_state)state));
        }
    }
    if (training->open > 0) {
        (void)printf(", %" PRId64 " still open", training->open);
    }
    (void)fputc('\n', stdout);
    for (size_t m = 0; m < results->metric_count; m++) {
        char title[320];
        char shown[640];
        char step[EVQ_RESULT_TABLE_STEP_BYTES];
        if (results->metrics[m].best == SIZE_MAX) {
            continue;
        }
        const struct evq_result_table_row *row = &results->rows[results->metrics[m].best];
        evq_result_table_title(results, m, title, sizeof title);
        evq_result_table_step_text(row->job, row->step, step);
        (void)printf("  best %-24s %.8g at step %s%s\n",
                     evq_error_escape(title, strlen(title), shown, sizeof shown), row->values[m],
                     step, results->metrics[m].direction ? "" : " (lower is better)");
    }
    char directory[EVQ_SERVER_PATH_MAX];
    const char *path = training->manager->results;
    evq_error_escape(path, strlen(path), directory, sizeof directory);
    // Quoted for a shell, so that the user can copy the line.
    const char *quote = strpbrk(directory, " \t\"$&()*;<>?[]`{|}~#!") != NULL ? "'" : "";
    (void)printf("Results in %s; look with `tensorboard --logdir %s%s%s`.\n", directory, quote,
                 directory, quote);
    (void)printf("The queue stays in %s: `evalq up`, then `evalq results` or `evalq status` show "
                 "it again.\n",
                 training->manager->directory);
}

static void judge(struct training *training)
{
    struct evq_cli *cli = training->manager->cli;
    const struct evq_service *command = &training->manager->command;
    for (size_t i = 0; i < training->results->row_count; i++) {
        const struct evq_result_table_row *row = &training->results->rows[i];
        if (row->ended && row->state == EVQ_JOB_DEAD) {
            cli->exit_code = EVQ_EXIT_JOB_FAILED;
        }
    }
    if (command->ended &&
        (!WIFEXITED(command->wait_status) || WEXITSTATUS(command->wait_status) != 0)) {
        char text[64];
        evq_service_end_text(command->wait_status, text, sizeof text);
        evq_cli_say(cli, "evalq: the command %s", text);
        cli->exit_code = EVQ_EXIT_ERROR;
    }
}

enum evq_status evq_training_run(struct evq_process_manager *manager, char *const *argv,
                                 int64_t wait_ms, struct evq_error *err)
{
    struct training training = {
        .manager = manager, .output_fd = -1, .begin_ms = evq_clock_mono_ms()};
    evq_command_output_init(&training.output);
    training.feed = evq_feed_new(manager->cli->queue, NULL);
    training.results = evq_result_table_new();
    training.said = json_object();
    enum evq_status status = EVQ_OK;
    if (training.feed == NULL || training.results == NULL || training.said == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the live table");
        goto out;
    }
    evq_live_init(&training.live, &manager->cli->terminal, training.results);
    status = evq_feed_poll(training.feed, NULL, NULL,
                           err); // Skips results from before this command.
    if (status == EVQ_OK) {
        status = start_command(&training, argv, err);
    }
    if (status == EVQ_OK) {
        status = follow(&training, wait_ms, err);
        evq_live_footer_clear(&training.live);
        end_command(&training);
        evq_command_output_end(&training.output);
        show_output(&training);
        evq_live_erase(&training.live);
    }
    int64_t deadline = evq_clock_mono_ms() + SINKS_MS;
    while (status == EVQ_OK && manager->stop_count == 0 && sinks_lag(&training, false) &&
           evq_clock_mono_ms() < deadline) {
        status = evq_process_manager_step(manager, -1, 50, NULL, err);
    }
    if (training.results->row_count > 0) {
        print_summary(&training);
        (void)sinks_lag(&training, true);
    }
    if (status == EVQ_OK) {
        judge(&training);
    }
out:
    evq_file_close(&training.output_fd);
    evq_command_output_free(&training.output);
    json_decref(training.said);
    evq_result_table_free(training.results);
    evq_feed_free(training.feed);
    return status;
}
