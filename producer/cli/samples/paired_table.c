#include "producer/cli/samples/paired_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/json.h"
#include "producer/cli/samples/sample_files.h"
#include "producer/cli/table.h"
#include "shared/samples/comparison.h"

bool evq_paired_table_is_place(const char *text)
{
    return strchr(text, '@') != NULL;
}

/* Says which items only one side has, once for each task. */
static void say_missing(const struct evq_cli *cli, const struct evq_comparison *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        const struct evq_comparison_row *row = &rows->rows[i];
        if (i > 0 && strcmp(rows->rows[i - 1].task, row->task) == 0 &&
            strcmp(rows->rows[i - 1].suite, row->suite) == 0) {
            continue;
        }
        if (row->only_a > 0) {
            evq_cli_say(cli, "evalq: %s: %zu items are only in %s, such as '%s'", row->task,
                        row->only_a, evq_cli_arg(cli, 0), row->first_only_a);
        }
        if (row->only_b > 0) {
            evq_cli_say(cli, "evalq: %s: %zu items are only in %s, such as '%s'", row->task,
                        row->only_b, evq_cli_arg(cli, 1), row->first_only_b);
        }
    }
}

static void print_row(struct evq_table *table, const struct evq_comparison_row *row)
{
    const struct evq_paired *paired = &row->paired;
    const bool significant = row->corrected < 1.0 - EVQ_PAIRING_CONFIDENCE;
    const bool better = (paired->difference > 0.0) == evq_pairing_higher(row->score);
    const enum evq_colour colour = !significant ? EVQ_COLOUR_NONE
                                   : better     ? EVQ_COLOUR_GREEN
                                                : EVQ_COLOUR_RED;

    evq_table_row(table);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%s/%s", row->task, row->score);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%.6g", paired->baseline);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%.6g", paired->candidate);
    evq_table_cell(table, colour, "%+.6g", paired->difference);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%.3g", paired->standard_error);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%+.4g to %+.4g", paired->low, paired->high);
    evq_table_cell(table, colour, "%.3g%s", row->corrected, significant ? "*" : " ");
    evq_table_cell(table, EVQ_COLOUR_NONE, "%zu/%zu/%zu", paired->wins, paired->losses,
                   paired->ties);
    evq_table_cell(table, EVQ_COLOUR_DIM, "%s", evq_paired_method_name(paired->method));
}

static enum evq_status print_table(struct evq_cli *cli, const struct evq_comparison *rows,
                                   struct evq_error *err)
{
    struct evq_table *table = evq_table_new();

    evq_table_column(table, "METRIC", false);
    evq_table_column(table, evq_cli_arg(cli, 0), true);
    evq_table_column(table, evq_cli_arg(cli, 1), true);
    evq_table_column(table, "DIFFERENCE", true);
    evq_table_column(table, "ERROR", true);
    evq_table_optional(table);
    evq_table_column(table, "95 % INTERVAL", true);
    evq_table_column(table, "P ", true);
    evq_table_column(table, "BETTER/WORSE/SAME", true);
    evq_table_column(table, "METHOD", false);
    evq_table_optional(table);
    for (size_t i = 0; i < rows->count; i++) {
        print_row(table, &rows->rows[i]);
    }
    const enum evq_status status = evq_table_print_free(table, &cli->terminal, 0, stdout, err);
    if (rows->count > 1) {
        evq_cli_say(cli, "P is corrected by Holm's method for %zu comparisons. *: below 0.05.",
                    rows->count);
    }
    say_missing(cli, rows);
    return status;
}

enum evq_status evq_paired_table_run(struct evq_cli *cli, struct evq_error *err)
{
    struct evq_sample_place places[2];
    struct evq_sample_files files[2] = {{.count = 0}};
    struct evq_comparison rows = {.rows = NULL};
    const struct evq_comparison_options options = {
        .score = evq_option_text(&cli->options, "metric", NULL),
        .bootstrap = evq_option_flag(&cli->options, "bootstrap")};
    enum evq_status status =
        cli->options.arg_count == 2
            ? EVQ_OK
            : evq_cli_usage(cli, err, "compare: RUN@STEP needs a second RUN@STEP and no third");

    for (int i = 0; status == EVQ_OK && i < 2; i++) {
        status = evq_sample_place_parse(cli, evq_cli_arg(cli, i), &places[i], err);
    }
    if (status == EVQ_OK) {
        status = evq_cli_config(cli, err);
    }
    for (int i = 0; status == EVQ_OK && i < 2; i++) {
        status = evq_sample_files_find(cli, &places[i], &files[i], err);
    }
    if (status == EVQ_OK) {
        status = evq_comparison_make(&files[0], &files[1], &options, &rows, err);
    }
    if (status == EVQ_OK) {
        status = cli->terminal.json ? evq_json_print(evq_comparison_json(&rows, evq_cli_arg(cli, 0),
                                                                         evq_cli_arg(cli, 1)),
                                                     err)
                                    : print_table(cli, &rows, err);
    }
    free(rows.rows);
    free(files[0].files);
    free(files[1].files);
    return status;
}
