/*
 * evalq dead: lists the jobs that failed for good, with their reasons.
 */
#include "producer/cli/json_table.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/clock.h"

static const struct evq_column job_columns[] = {
    {"JOB", .key = "id"},
    {"ENDED", "ended", .kind = EVQ_COLUMN_SINCE, .suffix = " ago"},
    {"ATTEMPTS", "attempts", .kind = EVQ_COLUMN_INTEGER, .optional = true},
    {"WORKER", "worker", .colour = EVQ_COLOUR_DIM, .optional = true},
    {"REASON", "reason", .colour = EVQ_COLOUR_RED},
};

static const struct evq_column bad_record_columns[] = {
    {"ENTRY", .key = "entry"},
    {"AGE", "at_ms", .kind = EVQ_COLUMN_SINCE},
    {"SUBJECT", .key = "id"},
    {"REASON", "reason", .colour = EVQ_COLOUR_RED},
};

static enum evq_status dead_run(struct evq_cli *cli, struct evq_error *err)
{
    json_t *jobs = NULL;
    const char *run = evq_cli_arg(cli, 0);
    bool bad = evq_option_flag(&cli->options, "bad");
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK) {
        status = evq_view_jobs(cli, bad ? "bad" : "dead", run != NULL ? run : "",
                               (size_t)evq_option_integer(&cli->options, "limit", 100), &jobs, err);
    }
    if (status == EVQ_OK && json_array_size(jobs) == 0 && run != NULL && !bad) {
        status = evq_cli_find_run(cli, run, err);
    }
    if (status == EVQ_OK && cli->terminal.json) {
        status = evq_json_print(json_pack("{s:O}", "jobs", jobs), err);
    } else if (status == EVQ_OK && json_array_size(jobs) == 0) {
        evq_cli_say(cli,
                    bad ? "evalq: no malformed record was set aside" : "evalq: no job is dead");
    } else if (status == EVQ_OK && bad) {
        const struct evq_json_table table = {EVQ_COLUMNS(bad_record_columns),
                                             .now_ms = evq_clock_unix_ms()};
        status = evq_json_table_print(&table, jobs, &cli->terminal, err);
    } else if (status == EVQ_OK) {
        evq_view_causes(cli, jobs);
        const struct evq_json_table table = {EVQ_COLUMNS(job_columns),
                                             .now_ms = evq_clock_unix_ms()};
        status = evq_json_table_print(&table, jobs, &cli->terminal, err);
        evq_cli_say(cli, "evalq: `evalq logs JOB` shows the end of a job's log, and "
                         "`evalq retry JOB` queues the job again");
    }
    json_decref(jobs);
    return status;
}

static const struct evq_option options[] = {
    {"limit", 'n', EVQ_OPTION_INTEGER, "N", "list at most N; default 100", 1, 1000000},
    {"bad", 0, EVQ_OPTION_FLAG, NULL, "list malformed records that were set aside instead", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_dead = {
    .name = "dead",
    .arguments = "[RUN] [--limit N] | --bad",
    .summary = "List the jobs that failed for good, with their reasons",
    .description = "A job is dead if it cannot succeed or has used up its attempts. The newest "
                   "comes first.\n\nExample: `evalq dead my-run`",
    .options = options,
    .arg_min = 0,
    .arg_max = 1,
    .takes = EVQ_TAKES_RUN,
    .run = dead_run,
};
