#include "producer/cli/samples/paired_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/json.h"
#include "producer/cli/samples/pairing.h"
#include "producer/cli/table.h"
#include "shared/statistics/holm.h"

#define ROWS_MAX   4096
#define CONFIDENCE 0.95

struct row {
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    char task[EVQ_JOB_NAME_BYTES_MAX + 1];
    char score[136];
    struct evq_paired paired;
    double corrected; // p by Holm's method.
    size_t only_a;
    size_t only_b;
    char first_only_a[EVQ_SAMPLE_ID_BYTES_MAX + 1];
    char first_only_b[EVQ_SAMPLE_ID_BYTES_MAX + 1];
};

struct rows {
    struct row *rows;
    size_t count;
};

bool evq_paired_table_is_place(const char *text)
{
    return strchr(text, '@') != NULL;
}

static enum evq_status add_row(struct evq_cli *cli, const struct evq_pairing *pairing,
                               const struct evq_sample_file *file, const char *score,
                               struct rows *to, struct evq_error *err)
{
    const bool bootstrap = evq_option_flag(&cli->options, "bootstrap");
    const struct evq_paired_options options = {.method = bootstrap ? EVQ_PAIRED_BOOTSTRAP
                                                                   : EVQ_PAIRED_AUTO,
                                               .confidence = CONFIDENCE,
                                               .seed = EVQ_PAIRING_SEED};
    struct evq_pairing_items arrays;
    struct row *row = &to->rows[to->count];

    *row = (struct row){.only_a = pairing->pairs.only_a, .only_b = pairing->pairs.only_b};
    enum evq_status status = evq_pairing_items(pairing, score, &arrays, err);
    if (status == EVQ_OK) {
        status = evq_paired_compare(&arrays.items, &options, &row->paired, err);
    }
    evq_pairing_items_free(&arrays);
    if (status != EVQ_OK) {
        return evq_error_prefix(err, "%s/%s", file->task, score);
    }
    (void)snprintf(row->suite, sizeof row->suite, "%s", file->suite);
    (void)snprintf(row->task, sizeof row->task, "%s", file->task);
    (void)snprintf(row->score, sizeof row->score, "%s", score);
    const char *a = pairing->pairs.first_only_a;
    const char *b = pairing->pairs.first_only_b;
    (void)snprintf(row->first_only_a, sizeof row->first_only_a, "%s", a != NULL ? a : "");
    (void)snprintf(row->first_only_b, sizeof row->first_only_b, "%s", b != NULL ? b : "");
    row->corrected = row->paired.p;
    to->count++;
    return EVQ_OK;
}

static enum evq_status add_task(struct evq_cli *cli, const struct evq_sample_file *a,
                                const struct evq_sample_file *b, struct rows *to,
                                struct evq_error *err)
{
    const char *wanted = evq_option_text(&cli->options, "metric", NULL);
    struct evq_pairing pairing;
    enum evq_status status = evq_pairing_open(a, b, false, &pairing, err);

    if (status == EVQ_OK && wanted != NULL) {
        status = evq_pairing_score(&pairing, wanted, &wanted, err);
    }
    for (size_t i = 0; status == EVQ_OK && i < pairing.a->name_count; i++) {
        const char *name = pairing.a->names[i];
        if (evq_samples_set_name(pairing.b, name) == SIZE_MAX ||
            (wanted != NULL && strcmp(wanted, name) != 0)) {
            continue;
        }
        status = to->count < ROWS_MAX
                     ? add_row(cli, &pairing, a, name, to, err)
                     : evq_error_set(err, EVQ_E_LIMIT, "more than %d scores", ROWS_MAX);
    }
    evq_pairing_close(&pairing);
    return status;
}

static enum evq_status add_tasks(struct evq_cli *cli, const struct evq_sample_files *a,
                                 const struct evq_sample_files *b, struct rows *to,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; status == EVQ_OK && i < a->count; i++) {
        for (size_t k = 0; status == EVQ_OK && k < b->count; k++) {
            if (strcmp(a->files[i].suite, b->files[k].suite) == 0 &&
                strcmp(a->files[i].task, b->files[k].task) == 0) {
                status = add_task(cli, &a->files[i], &b->files[k], to, err);
            }
        }
    }
    if (status == EVQ_OK && to->count == 0) {
        status = evq_error_set(err, EVQ_E_NOT_FOUND,
                               "'%s' and '%s' have no samples of the same suite and task",
                               evq_cli_arg(cli, 0), evq_cli_arg(cli, 1));
    }
    return status;
}

static enum evq_status correct(struct rows *rows, struct evq_error *err)
{
    double *p = calloc(rows->count, sizeof *p);

    if (p == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu p-values", rows->count);
    }
    for (size_t i = 0; i < rows->count; i++) {
        p[i] = rows->rows[i].paired.p;
    }
    const enum evq_status status = evq_holm_correct(p, rows->count, err);
    for (size_t i = 0; status == EVQ_OK && i < rows->count; i++) {
        rows->rows[i].corrected = p[i];
    }
    free(p);
    return status;
}

/* Says which items only one side has, once for each task. */
static void say_missing(const struct evq_cli *cli, const struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->rows[i];
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

static void print_row(struct evq_table *table, const struct row *row)
{
    const struct evq_paired *paired = &row->paired;
    const bool significant = row->corrected < 1.0 - CONFIDENCE;
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

static enum evq_status print_table(struct evq_cli *cli, const struct rows *rows,
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
    const enum evq_status status = evq_table_finish(table, &cli->terminal, 0, stdout, err);
    if (rows->count > 1) {
        evq_cli_say(cli, "P is corrected by Holm's method for %zu comparisons. *: below 0.05.",
                    rows->count);
    }
    say_missing(cli, rows);
    return status;
}

static enum evq_status print_json(struct evq_cli *cli, const struct rows *rows,
                                  struct evq_error *err)
{
    json_t *list = json_array();

    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->rows[i];
        const struct evq_paired *paired = &row->paired;
        json_t *one = json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "suite",
                                row->suite, "task", row->task, "metric", row->score, "baseline",
                                paired->baseline, "candidate", paired->candidate, "difference",
                                paired->difference, "low", paired->low, "high", paired->high, "p",
                                paired->p, "p_corrected", row->corrected);
        // NaN is not JSON: with one item there is no standard error.
        (void)json_object_set_new(
            one, "standard_error",
            isfinite(paired->standard_error) ? json_real(paired->standard_error) : json_null());
        (void)json_object_set_new(one, "method",
                                  json_string(evq_paired_method_name(paired->method)));
        const struct {
            const char *key;
            size_t value;
        } counts[] = {{"items", paired->count},       {"groups", paired->groups},
                      {"wins", paired->wins},         {"losses", paired->losses},
                      {"ties", paired->ties},         {"only_baseline", row->only_a},
                      {"only_candidate", row->only_b}};
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            (void)json_object_set_new(one, counts[k].key,
                                      json_integer((json_int_t)counts[k].value));
        }
        (void)json_array_append_new(list, one);
    }
    return evq_json_print(json_pack("{s:s, s:s, s:f, s:s, s:o}", "baseline", evq_cli_arg(cli, 0),
                                    "candidate", evq_cli_arg(cli, 1), "confidence", CONFIDENCE,
                                    "correction", "holm", "metrics", list),
                          err);
}

enum evq_status evq_paired_table_run(struct evq_cli *cli, struct evq_error *err)
{
    struct evq_sample_place places[2];
    struct evq_sample_files files[2] = {{.count = 0}};
    struct rows rows = {.rows = NULL};
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
        rows.rows = calloc(ROWS_MAX, sizeof *rows.rows);
        status = rows.rows != NULL
                     ? add_tasks(cli, &files[0], &files[1], &rows, err)
                     : evq_error_set(err, EVQ_E_NOMEM, "no memory for the comparison");
    }
    if (status == EVQ_OK) {
        status = correct(&rows, err);
    }
    if (status == EVQ_OK) {
        status = cli->terminal.json ? print_json(cli, &rows, err) : print_table(cli, &rows, err);
    }
    free(rows.rows);
    free(files[0].files);
    free(files[1].files);
    return status;
}
