/*
 * evalq watch: the metrics of a run as they arrive.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/inspect/feed.h"
#include "producer/cli/inspect/live.h"
#include "producer/cli/poll_delay.h"
#include "producer/cli/submit/waiting.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/buffer.h"
#include "shared/base/clock.h"

struct watched {
    struct evq_cli *cli;
    struct evq_result_table *results;
    struct evq_live live;
    bool json; // A line each, and nothing else.
    bool follow;
    int64_t timeout_s; // -1: none.
};

static void print_line(const struct evq_result *result)
{
    struct evq_buffer line;

    evq_buffer_init(&line, 0);
    evq_result_json(result, &line);
    const char *text = evq_buffer_string(&line);
    (void)puts(text != NULL ? text : ""); // Out of memory: it is in the results.
    (void)fflush(stdout);
    evq_buffer_free(&line);
}

static void on_result(void *context, const struct evq_result *result)
{
    struct watched *to = context;
    if (to->json) {
        print_line(result);
        return;
    }
    struct evq_result_table_row *row = evq_result_table_add(to->results, result);
    if (row != NULL && row->ended && result->task[0] == '\0') {
        char cause[EVQ_VIEW_CAUSE_BYTES];
        evq_live_row(&to->live, row,
                     evq_view_cause_of(to->cli, row->job, row->reason, cause, sizeof cause));
    }
}

static void watch_footer(struct evq_live *live, const struct evq_run_counts *counts)
{
    evq_live_footer_clear(live);
    evq_live_footer_line(live, "running %" PRId64 ", waiting %" PRId64 ", evaluated %" PRId64,
                         counts->by_state[EVQ_JOB_RUNNING],
                         counts->by_state[EVQ_JOB_QUEUED] + counts->by_state[EVQ_JOB_DELAYED],
                         counts->by_state[EVQ_JOB_DONE]);
    evq_live_redraw(live);
}

static void print_best(const struct evq_result_table *results, const struct evq_terminal *terminal)
{
    for (size_t m = 0; m < results->metric_count; m++) {
        char title[320];
        char shown[640];
        char step[EVQ_RESULT_TABLE_STEP_BYTES];
        if (results->metrics[m].best != SIZE_MAX && !terminal->plain) {
            const struct evq_result_table_row *row = &results->rows[results->metrics[m].best];
            evq_result_table_title(results, m, title, sizeof title);
            evq_result_table_step_text(row->job, row->step, step);
            (void)printf(
                "%sbest%s %s %.8g at step %s\n", evq_terminal_colour(terminal, EVQ_COLOUR_GREEN),
                evq_terminal_colour(terminal, EVQ_COLOUR_NONE),
                evq_error_escape(title, strlen(title), shown, sizeof shown), row->values[m], step);
        }
    }
}

/* Looks until no job of the run is open, or the time is over. Results are read before the counts,
 * so that the last are not missed: then once more. */
static enum evq_status watch_loop(struct evq_cli *cli, struct evq_feed *feed, struct watched *to,
                                  struct evq_run_counts *counts, struct evq_error *err)
{
    int64_t deadline = to->timeout_s >= 0 ? evq_clock_mono_ms() + 1000 * to->timeout_s : 0;
    bool last = false;
    for (uint32_t looks = 0;; looks++) {
        enum evq_status status = evq_feed_poll(feed, on_result, to, err);
        if (status == EVQ_OK && last) {
            return EVQ_OK;
        }
        if (status == EVQ_OK) {
            status = evq_feed_counts(feed, counts, err);
        }
        if (status != EVQ_OK && !evq_waiting_passes(status, looks)) {
            return status;
        }
        bool over = deadline > 0 && evq_clock_mono_ms() >= deadline;
        last = status == EVQ_OK && counts->open == 0 && (!to->follow || over);
        if (last) {
            continue;
        }
        if (!to->json) {
            watch_footer(&to->live, counts);
        }
        if (over) {
            return evq_error_set(err, EVQ_E_TIMEOUT,
                                 "%" PRId64 " %s still open after %" PRId64 " s", counts->open,
                                 counts->open == 1 ? "job was" : "jobs were", to->timeout_s);
        }
        uint32_t steady = 4; // A look every 320 ms.
        evq_poll_delay(&steady, deadline);
        evq_terminal_resize(&cli->terminal);
    }
}

static enum evq_status watch_run(struct evq_cli *cli, struct evq_error *err)
{
    const char *run = evq_cli_arg(cli, 0);
    struct evq_run_counts counts = {0};
    struct watched to = {.cli = cli,
                         .json = cli->terminal.json,
                         .follow = evq_option_flag(&cli->options, "follow"),
                         .timeout_s = evq_option_integer(&cli->options, "timeout", -1)};
    struct evq_feed *feed = NULL;

    enum evq_status status = evq_waiting_open(cli, &to.timeout_s, err);
    if (status != EVQ_OK) {
        return status;
    }
    feed = evq_feed_new(cli->queue, run);
    to.results = evq_result_table_new();
    if (feed == NULL || to.results == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the results");
        goto out;
    }
    evq_live_init(&to.live, &cli->terminal, to.results);
    status = watch_loop(cli, feed, &to, &counts, err);
    if (!to.json) {
        evq_live_erase(&to.live);
    }
    if (status == EVQ_OK) {
        status = evq_cli_check_run(cli, run, &counts, err);
        if (!to.json) {
            print_best(to.results, &cli->terminal);
        }
        cli->exit_code = counts.by_state[EVQ_JOB_DEAD] > 0 ? EVQ_EXIT_JOB_FAILED : 0;
    }
out:
    evq_result_table_free(to.results);
    evq_feed_free(feed);
    return status;
}

static const struct evq_option watch_options[] = {
    {"follow", 'f', EVQ_OPTION_FLAG, NULL,
     "do not end when no job is open, for example between two checkpoints; also wait for a run "
     "that has no job yet",
     0, 0},
    {"timeout", 't', EVQ_OPTION_INTEGER, "SECONDS", "watch at most so long; default: no limit", 0,
     1000000000},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_watch = {
    .name = "watch",
    .arguments = "RUN [--follow] [--timeout SECONDS]",
    .summary = "Show the metrics of a run as they arrive",
    .description =
        "Prints a row per finished checkpoint and a column per metric. The best value so far "
        "is starred. On a terminal, the last line shows the running and the waiting "
        "jobs.\n\nWatch ends when no job of the run is open. With --follow it ends at the "
        "timeout or at Ctrl-C. --json prints one line per result as it arrives, and one line "
        "with the task \"\" when a job ends.\n\nExit code 4: a job of the run is dead. 124: "
        "the timeout passed with open jobs. 3: there is no such run.\n\nExample: `evalq "
        "watch my-run --follow`",
    .options = watch_options,
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_RUN,
    .run = watch_run,
};
