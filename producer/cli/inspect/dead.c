/*
 * evalq dead: the jobs that were given up, with their reasons.
 */
#include <inttypes.h>
#include <string.h>

#include "producer/cli/table.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/clock.h"

static enum evq_status print_table(const struct evq_cli *cli, const json_t *jobs,
                                   struct evq_error *err)
{
    size_t index = 0;
    const json_t *job = NULL;
    int64_t now = evq_clock_unix_ms();
    struct evq_table *table = evq_table_new();
    if (table == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    evq_table_column(table, "JOB", false);
    evq_table_column(table, "ENDED", true);
    evq_table_column(table, "ATTEMPTS", true);
    evq_table_optional(table);
    evq_table_column(table, "WORKER", false);
    evq_table_optional(table);
    evq_table_column(table, "REASON", false);
    json_array_foreach(jobs, index, job)
    {
        char span[EVQ_TERMINAL_SPAN_BYTES];
        int64_t ended = evq_json_integer(job, "ended", 0);
        evq_table_row(table);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(job, "id", "?"));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s%s",
                       evq_terminal_span(ended > 0 && now > ended ? now - ended : 0, span), " ago");
        evq_table_cell(table, EVQ_COLOUR_NONE, "%" PRId64, evq_json_integer(job, "attempts", 0));
        evq_table_cell(table, EVQ_COLOUR_DIM, "%s", evq_json_text(job, "worker", ""));
        evq_table_cell(table, EVQ_COLOUR_RED, "%s", evq_json_text(job, "reason", ""));
    }
    enum evq_status status = evq_table_print(table, &cli->terminal, 0, stdout, err);
    evq_table_free(table);
    return status;
}

/* What was no record, or no job any more. */
static enum evq_status print_bad(const struct evq_cli *cli, const json_t *entries,
                                 struct evq_error *err)
{
    size_t index = 0;
    const json_t *entry = NULL;
    int64_t now = evq_clock_unix_ms();
    struct evq_table *table = evq_table_new();
    if (table == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    evq_table_column(table, "ENTRY", false);
    evq_table_column(table, "AGE", true);
    evq_table_column(table, "SUBJECT", false);
    evq_table_column(table, "REASON", false);
    json_array_foreach(entries, index, entry)
    {
        char span[EVQ_TERMINAL_SPAN_BYTES];
        evq_table_row(table);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(entry, "entry", "?"));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s",
                       evq_terminal_span(now - evq_json_integer(entry, "at_ms", now), span));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(entry, "id", ""));
        evq_table_cell(table, EVQ_COLOUR_RED, "%s", evq_json_text(entry, "reason", ""));
    }
    enum evq_status status = evq_table_print(table, &cli->terminal, 0, stdout, err);
    evq_table_free(table);
    return status;
}

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
        json_t *doc = json_pack("{s:O}", "jobs", jobs);
        status = evq_json_print(doc, err);
        json_decref(doc);
    } else if (status == EVQ_OK && json_array_size(jobs) == 0) {
        evq_cli_say(cli, bad ? "evalq: nothing was set aside" : "evalq: no job is dead");
    } else if (status == EVQ_OK && bad) {
        status = print_bad(cli, jobs, err);
    } else if (status == EVQ_OK) {
        status = print_table(cli, jobs, err);
        evq_cli_say(
            cli,
            "evalq: `evalq logs JOB` shows the end of its log, `evalq retry JOB` queues it again");
    }
    json_decref(jobs);
    return status;
}

static const struct evq_option options[] = {
    {"limit", 'n', EVQ_OPTION_INTEGER, "N", "at most so many; default 100", 1, 1000000},
    {"bad", 0, EVQ_OPTION_FLAG, NULL, "records that were set aside as malformed, instead", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_dead = {
    .name = "dead",
    .arguments = "[RUN] [--limit N] | --bad",
    .summary = "List the jobs that were given up, with their reasons",
    .description =
        "A job is dead when it cannot succeed or has used up its attempts. Newest first.",
    .options = options,
    .arg_min = 0,
    .arg_max = 1,
    .takes = EVQ_TAKES_RUN,
    .run = dead_run,
};
