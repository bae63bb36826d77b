/*
 * evalq compare: the metrics of several runs beside each other, the steps of one run, or two
 * checkpoints item by item.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/inspect/feed.h"
#include "producer/cli/inspect/result_table.h"
#include "producer/cli/json.h"
#include "producer/cli/samples/paired_table.h"
#include "producer/cli/samples/sample_files.h"
#include "producer/cli/samples/step_changes.h"
#include "producer/cli/table.h"
#include "producer/cli/verbs.h"

#define RUNS_MAX    64
#define METRICS_MAX 4096

struct seen { // One metric of one run.
    size_t run;
    char key[320];
    int direction; // 1: higher is better, 0: lower, -1: neither.
    size_t count;
    bool has_best;
    double best;
    int64_t best_step;
    char best_job[EVQ_JOB_ID_BYTES_MAX]; // The job that has the best value.
    double last;
    int64_t last_step;
    char last_job[EVQ_JOB_ID_BYTES_MAX];
};

struct comparison {
    struct evq_cli *cli;
    size_t run; // The index of the run that is being read.
    const char *filter;
    struct seen *all;
    size_t count;
    size_t room;
    bool failed;
};

static struct seen *seen_of(struct comparison *to, const char *key, const struct evq_metric *metric)
{
    for (size_t i = to->count; i-- > 0 && to->all[i].run == to->run;) {
        if (strcmp(to->all[i].key, key) == 0) {
            return &to->all[i];
        }
    }
    if (to->count == to->room) {
        const size_t room = to->room == 0 ? 64 : 2 * to->room;
        struct seen *all =
            room <= RUNS_MAX * METRICS_MAX ? reallocarray(to->all, room, sizeof *all) : NULL;
        if (all == NULL) {
            to->failed = true;
            return NULL;
        }
        to->all = all;
        to->room = room;
    }
    struct seen *one = &to->all[to->count++];
    *one =
        (struct seen){.run = to->run, .direction = evq_metric_direction(metric), .last_step = -1};
    (void)snprintf(one->key, sizeof one->key, "%s", key);
    return one;
}

static void on_result(void *context, const struct evq_result *result)
{
    struct comparison *to = context;
    char key[320];

    for (size_t i = 0; i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        evq_result_metric_key(result, metric, key, sizeof key);
        struct seen *one =
            to->filter == NULL || strcmp(key, to->filter) == 0 ? seen_of(to, key, metric) : NULL;
        if (one == NULL) {
            continue;
        }
        one->count++;
        if (result->step >= one->last_step) {
            one->last = metric->value;
            one->last_step = result->step;
            (void)snprintf(one->last_job, sizeof one->last_job, "%s", result->job);
        }
        const bool better =
            one->direction == 0 ? metric->value < one->best : metric->value > one->best;
        if (isfinite(metric->value) && one->direction >= 0 &&
            (!one->has_best || better ||
             (metric->value == one->best && result->step < one->best_step))) {
            one->has_best = true;
            one->best = metric->value;
            one->best_step = result->step;
            (void)snprintf(one->best_job, sizeof one->best_job, "%s", result->job);
        }
    }
}

static int by_key(const void *a, const void *b)
{
    const struct seen *x = a;
    const struct seen *y = b;
    const int order = strcmp(x->key, y->key);

    return order != 0 ? order : (x->run > y->run) - (x->run < y->run);
}

/* Whether no other run has a better best. */
static bool is_best(const struct comparison *to, size_t at)
{
    const struct seen *one = &to->all[at];
    bool others = false;
    bool best = one->has_best;

    for (size_t i = 0; i < to->count && best; i++) {
        const struct seen *other = &to->all[i];
        if (i == at || !other->has_best || strcmp(other->key, one->key) != 0) {
            continue;
        }
        others = true;
        best = one->direction == 0 ? one->best <= other->best : one->best >= other->best;
    }
    return best && others;
}

static enum evq_status print_table(const struct comparison *to, struct evq_error *err)
{
    struct evq_table *table = evq_table_new();

    evq_table_column(table, "METRIC", false);
    evq_table_column(table, "RUN", false);
    evq_table_column(table, "BEST ", true);
    evq_table_column(table, "AT STEP", true);
    evq_table_column(table, "LAST", true);
    evq_table_column(table, "AT STEP", true);
    evq_table_column(table, "RESULTS", true);
    evq_table_optional(table);
    for (size_t i = 0; i < to->count; i++) {
        const struct seen *one = &to->all[i];
        char number[EVQ_TERMINAL_NUMBER_BYTES];
        char step[EVQ_RESULT_TABLE_STEP_BYTES];
        const bool best = is_best(to, i);
        evq_table_row(table);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", one->key);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_cli_arg(to->cli, (int)one->run));
        if (one->has_best) {
            evq_table_cell(table, best ? EVQ_COLOUR_GREEN : EVQ_COLOUR_NONE, "%s%s",
                           evq_terminal_number(one->best, number), best ? "*" : " ");
            evq_result_table_step_text(one->best_job, one->best_step, step);
            evq_table_cell(table, EVQ_COLOUR_NONE, "%s", step);
        } else {
            evq_table_cell(table, EVQ_COLOUR_DIM, "- ");
            evq_table_cell(table, EVQ_COLOUR_DIM, "-");
        }
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_terminal_number(one->last, number));
        evq_result_table_step_text(one->last_job, one->last_step, step);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", step);
        evq_table_cell(table, EVQ_COLOUR_DIM, "%zu", one->count);
    }
    return evq_table_print_free(table, &to->cli->terminal, 0, stdout, err);
}

static json_t *number_json(double value)
{
    return isfinite(value) ? json_real(value)
                           : json_string(isnan(value) ? "NaN"
                                         : value > 0  ? "Infinity"
                                                      : "-Infinity");
}

static enum evq_status print_json(const struct comparison *to,
                                  const struct evq_step_changes *changes, struct evq_error *err)
{
    json_t *list = json_array();

    for (size_t i = 0; i < to->count; i++) {
        const struct seen *one = &to->all[i];
        json_t *row = json_pack("{s:s, s:s, s:o, s:I, s:s, s:I}", "metric", one->key, "run",
                                evq_cli_arg(to->cli, (int)one->run), "last", number_json(one->last),
                                "last_step", (json_int_t)one->last_step, "last_job", one->last_job,
                                "results", (json_int_t)one->count);
        if (one->has_best) {
            (void)json_object_set_new(row, "best", number_json(one->best));
            (void)json_object_set_new(row, "best_step", json_integer(one->best_step));
            (void)json_object_set_new(row, "best_job", json_string(one->best_job));
            (void)json_object_set_new(row, "higher_is_better", json_boolean(one->direction > 0));
        }
        (void)json_array_append_new(list, row);
    }
    if (to->cli->options.arg_count > 1) {
        return evq_json_print(json_pack("{s:o}", "metrics", list), err);
    }
    return evq_json_print(json_pack("{s:o, s:o, s:I, s:I, s:s}", "metrics", list, "steps",
                                    evq_step_changes_json(changes), "compared",
                                    (json_int_t)changes->compared, "left_out",
                                    (json_int_t)changes->others, "correction", "holm"),
                          err);
}

static enum evq_status print(const struct comparison *to, const struct evq_step_changes *changes,
                             struct evq_error *err)
{
    if (to->cli->terminal.json) {
        return print_json(to, changes, err);
    }
    const enum evq_status status = to->count > 0 ? print_table(to, err) : EVQ_OK;

    if (status == EVQ_OK && to->count > 0 && changes->count > 0) {
        (void)printf("\n");
    }
    return status == EVQ_OK ? evq_step_changes_print(to->cli, changes, err) : status;
}

static enum evq_status read_runs(struct comparison *to, struct evq_error *none,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (int i = 0; status == EVQ_OK && i < to->cli->options.arg_count; i++) {
        const size_t before = to->count;
        struct evq_feed *feed = evq_feed_new(to->cli->queue, evq_cli_arg(to->cli, i));
        to->run = (size_t)i;
        status = feed != NULL ? evq_feed_poll(feed, on_result, to, err)
                              : evq_error_set(err, EVQ_E_NOMEM, "no memory for the results");
        evq_feed_free(feed);
        if (to->count == before && none->status == EVQ_OK) {
            (void)evq_error_set(none, EVQ_E_NOT_FOUND, "run '%s' has no result%s%s",
                                evq_cli_arg(to->cli, i), to->filter != NULL ? " of " : "",
                                to->filter != NULL ? to->filter : "");
        }
    }
    return status == EVQ_OK && to->failed
               ? evq_error_set(err, EVQ_E_NOMEM, "no memory for the results")
               : status;
}

static enum evq_status compare_run(struct evq_cli *cli, struct evq_error *err)
{
    struct comparison to = {.cli = cli, .filter = evq_option_text(&cli->options, "metric", NULL)};
    struct evq_step_changes changes = {.count = 0};
    struct evq_error none = {.status =
                                 EVQ_OK}; // A run without a result; reported after the others.
    enum evq_status status = EVQ_OK;

    if (evq_paired_table_is_place(evq_cli_arg(cli, 0))) {
        return evq_paired_table_run(cli, err);
    }
    for (int i = 0; i < cli->options.arg_count && status == EVQ_OK; i++) {
        status = evq_cli_check_name(cli, "run", evq_cli_arg(cli, i), err);
    }
    if (status == EVQ_OK) {
        status = evq_cli_open(cli, err);
    }
    if (status == EVQ_OK) {
        status = read_runs(&to, &none, err);
    }
    enum evq_status refused = EVQ_OK; // Samples that cannot be read do not hide the results.
    if (status == EVQ_OK && cli->options.arg_count == 1) {
        refused = evq_step_changes_make(cli, evq_cli_arg(cli, 0), to.filter, &changes, err);
    }
    if (status == EVQ_OK && to.count > 0) {
        qsort(to.all, to.count, sizeof *to.all, by_key);
    }
    if (status == EVQ_OK && to.count + changes.count > 0) {
        status = print(&to, &changes, err);
    }
    status = status == EVQ_OK ? refused : status;
    if (status == EVQ_OK && none.status != EVQ_OK && changes.count == 0) {
        *err = none;
        status = none.status;
    }
    evq_step_changes_free(&changes);
    free(to.all);
    return status;
}

static const struct evq_option options[] = {
    {"metric", 'm', EVQ_OPTION_TEXT, "KEY",
     "compare only this metric, such as eval/digits/accuracy; for samples a score, such as "
     "accuracy",
     0, 0},
    {"bootstrap", 0, EVQ_OPTION_FLAG, NULL,
     "for two checkpoints: bootstrap intervals for all scores", 0, 0},
    EVQ_SAMPLE_FILES_OPTIONS,
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_compare = {
    .name = "compare",
    .arguments = "RUN... or RUN@STEP RUN@STEP [--metric KEY] [--task TASK]",
    .summary = "Print the metrics of runs, or of two checkpoints, beside each other",
    .description =
        "Prints, for each metric, one line per run: the best value, the last value, and their "
        "steps. The best run is starred.\n\nWith one run, a second table follows for the scores "
        "that have samples. It compares each earlier step with the last one, item by item, and "
        "says whether the best step differs significantly from the last. The last significant "
        "change is that since the latest step which differs from the last one.\n\nWith two "
        "checkpoints, compares their samples item by "
        "item and prints for each score both means, their difference with its 95 % interval, and "
        "a p-value that is corrected for the number of comparisons. docs/statistics.md defines "
        "the numbers.\n\nExit code 3: a run has no result, or a checkpoint has no samples. The "
        "other runs are printed.\n\nExample: `evalq compare lr1e-3 lr3e-4 --metric "
        "eval/digits/accuracy`\n\nExample: `evalq compare lr1e-3@500 lr1e-3@1000 --task digits`",
    .options = options,
    .arg_min = 1,
    .arg_max = RUNS_MAX,
    .takes = EVQ_TAKES_ANY, // It checks them itself, because a checkpoint is no name.
    .run = compare_run,
};
