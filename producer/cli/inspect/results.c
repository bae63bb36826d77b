/*
 * evalq results: the metrics of runs, as a table, CSV or JSON.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/inspect/feed.h"
#include "producer/cli/inspect/result_table.h"
#include "producer/cli/operate/replay.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/buffer.h"
#include "shared/base/clock.h"

struct output {                       // Collects the results of a feed.
    struct evq_result_table *results; // For a table; NULL: text.
    size_t count;
    bool failed;
};

static void on_table(void *context, const struct evq_result *result)
{
    struct output *to = context;
    (void)evq_result_table_add(to->results, result); // A failure is reported when printing.
    to->count++;
}

/* Replaces the reasons that the queue may have cut by the whole ones, as far as the rows have room.
 */
static void causes_complete(struct evq_cli *cli, struct evq_result_table *results)
{
    for (size_t i = 0; i < results->row_count; i++) {
        struct evq_result_table_row *row = &results->rows[i];
        char cause[EVQ_VIEW_CAUSE_BYTES];
        (void)evq_view_cause_of(cli, row->job, row->reason, cause, sizeof cause);
        (void)snprintf(row->reason, sizeof row->reason, "%.*s", (int)sizeof row->reason - 1, cause);
    }
}

static void on_json(void *context, const struct evq_result *result)
{
    struct output *to = context;
    struct evq_buffer line;
    evq_buffer_init(&line, 0);
    evq_buffer_text(&line, to->count++ > 0 ? ",\n    " : "\n    ");
    evq_result_json(result, &line);
    const char *text = evq_buffer_string(&line);
    to->failed = to->failed || text == NULL;
    (void)fputs(text != NULL ? text : "", stdout);
    evq_buffer_free(&line);
}

/* RFC 4180: quoted where needed. A leading =, +, - or @ would be a formula to a spreadsheet: quoted
 * with an apostrophe. */
static void csv_text(const char *text)
{
    bool quote = text[strcspn(text, ",\"\r\n")] != '\0' || strchr("=+-@", text[0]) != NULL;
    if (text[0] == '\0' || !quote) {
        (void)fputs(text, stdout);
        return;
    }
    (void)fputc('"', stdout);
    if (strchr("=+-@", text[0]) != NULL) {
        (void)fputc('\'', stdout);
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '"') {
            (void)fputc('"', stdout);
        }
        (void)fputc(*at, stdout);
    }
    (void)fputc('"', stdout);
}

static void on_csv(void *context, const struct evq_result *result)
{
    struct output *to = context;
    char iso[EVQ_CLOCK_ISO_BYTES];
    evq_clock_iso(result->finished_ms, iso);
    to->count++;
    for (size_t i = 0; i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        const char *const words[] = {result->variant, result->suite, result->task, metric->name};
        csv_text(result->run);
        (void)printf(",%" PRId64, result->step);
        for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
            (void)fputc(',', stdout);
            csv_text(words[w]);
        }
        (void)printf(",%.17g,", metric->value);
        if (!isnan(metric->std_error)) {
            (void)printf("%.17g", metric->std_error);
        }
        (void)fputc(',', stdout);
        if (result->n >= 0) {
            (void)printf("%" PRId64, result->n);
        }
        (void)printf(",%s,", iso);
        csv_text(result->job);
        (void)fputs("\r\n", stdout);
    }
}

static enum evq_status results_run(struct evq_cli *cli, struct evq_error *err)
{
    const char *run = evq_cli_arg(cli, 0);
    bool csv = evq_option_flag(&cli->options, "csv");
    const char *sink = evq_option_text(&cli->options, "replay", NULL);
    struct evq_feed *feed = NULL;
    struct output to = {.results = NULL};

    if (csv && cli->terminal.json) {
        return evq_cli_usage(cli, err, "results: --csv and --json exclude each other");
    }
    enum evq_status status = evq_cli_open(cli, err);
    if (status != EVQ_OK || sink != NULL) {
        return status == EVQ_OK ? evq_replay(cli, sink, err) : status;
    }
    feed = evq_feed_new(cli->queue, run);
    to.results = evq_result_table_new();
    if (feed == NULL || to.results == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the results");
        goto out;
    }
    if (csv) {
        (void)fputs("run,step,variant,suite,task,metric,value,std_error,n,finished,job\r\n",
                    stdout);
    } else if (cli->terminal.json) {
        (void)fputs("{\"results\": [", stdout);
    }
    status = evq_feed_poll(feed, csv ? on_csv : cli->terminal.json ? on_json : on_table, &to, err);
    if (cli->terminal.json) {
        // This is also written after an error, so that the results that were read are valid JSON.
        (void)fputs(to.count > 0 ? "\n]}\n" : "]}\n", stdout);
    }
    if (status == EVQ_OK && to.failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the results");
    }
    if (status == EVQ_OK && to.count == 0 && run != NULL) {
        status = evq_cli_find_run(cli, run, err);
    }
    if (status == EVQ_OK && !csv && !cli->terminal.json) {
        if (to.count == 0) {
            evq_cli_say(cli, "evalq: no results yet");
        } else {
            causes_complete(cli, to.results);
            evq_result_table_sort(to.results);
            status = evq_result_table_print(to.results, &cli->terminal, run == NULL, err);
        }
    }
out:
    evq_result_table_free(to.results);
    evq_feed_free(feed);
    return status;
}

static const struct evq_option results_options[] = {
    {"csv", 0, EVQ_OPTION_FLAG, NULL, "print CSV (RFC 4180): a header, then one line per metric", 0,
     0},
    {"replay", 0, EVQ_OPTION_TEXT, "SINK", "deliver all results that Redis holds to SINK again", 0,
     0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_results = {
    .name = "results",
    .arguments = "[RUN] [--csv|--json] [--replay SINK]",
    .summary = "Print the metrics of a run, or of all runs",
    .description =
        "Prints a row per checkpoint and suite, and a column per metric. The best value of "
        "each metric is starred. Without RUN, the newest 1,000 runs are printed. --json "
        "prints every field of every result. --csv prints all 17 digits of a "
        "value.\n\n--replay delivers all results that Redis holds to a sink again. The sink "
        "writes only the results that it does not have.\n\nExamples: `evalq results my-run`, "
        "`evalq results my-run --csv`",
    .options = results_options,
    .arg_min = 0,
    .arg_max = 1,
    .takes = EVQ_TAKES_RUN,
    .run = results_run,
};
