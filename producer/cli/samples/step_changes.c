#include "producer/cli/samples/step_changes.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/samples/sample_files.h"
#include "producer/cli/table.h"
#include "shared/samples/pairing.h"
#include "shared/statistics/holm.h"

#define STEPS_MAX 4096
#define ROWS_MAX  4096
#define ALPHA     (1.0 - EVQ_PAIRING_CONFIDENCE)

struct task { // The newest samples of one task. The rows of its scores follow each other.
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    char name[EVQ_JOB_NAME_BYTES_MAX + 1];
    struct evq_samples_set *last;
    size_t row;
    size_t row_count;
};

struct reading {
    struct evq_cli *cli;
    const char *metric;
    struct evq_step_changes *to;
    struct task *tasks;
    size_t task_count;
};

/* Whether the key names the score: as the samples do, or with its task at the end. */
static bool is_wanted(const char *metric, const char *task, const char *score)
{
    char tail[EVQ_JOB_NAME_BYTES_MAX + 160];

    if (metric == NULL || strcmp(metric, score) == 0) {
        return true;
    }
    (void)snprintf(tail, sizeof tail, "/%s/%s", task, score);
    const size_t bytes = strlen(metric);
    const size_t tail_bytes = strlen(tail);
    return bytes >= tail_bytes ? strcmp(metric + bytes - tail_bytes, tail) == 0
                               : strcmp(metric, tail + 1) == 0;
}

static enum evq_status add_point(struct evq_step_change *row, const struct evq_step_point *point,
                                 struct evq_error *err)
{
    if ((row->count & (row->count - 1)) == 0) { // It is full: 0, 1, 2, 4, ...
        const size_t room = row->count == 0 ? 1 : 2 * row->count;
        struct evq_step_point *points = reallocarray(row->points, room, sizeof *points);
        if (points == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory for the steps");
        }
        row->points = points;
    }
    row->points[row->count++] = *point;
    return EVQ_OK;
}

/* Compares one score of a step with the last step. A score that one of them lacks has no point. */
static enum evq_status compare_score(const struct evq_pairing *pairing, int64_t step,
                                     struct evq_step_change *row, struct evq_error *err)
{
    const struct evq_paired_options options = {.confidence = EVQ_PAIRING_CONFIDENCE,
                                               .seed = EVQ_PAIRING_SEED};
    struct evq_pairing_items arrays;
    struct evq_paired paired = {.p = (double)NAN};
    struct evq_step_point point = {.step = step, .p = (double)NAN};

    if (evq_samples_set_name(pairing->a, row->score) == SIZE_MAX) {
        return EVQ_OK;
    }
    enum evq_status status = evq_pairing_items(pairing, row->score, &arrays, err);
    if (status == EVQ_OK) {
        point.mean = evq_pairing_mean(&arrays, arrays.baseline);
        point.difference = evq_pairing_mean(&arrays, arrays.candidate) - point.mean;
    }
    if (status == EVQ_OK && pairing->a != pairing->b) {
        status = evq_paired_compare(&arrays.items, &options, &paired, err);
        status = status == EVQ_E_INVALID ? EVQ_OK : status; // Such as a task of one document.
        point.p = paired.p;
    }
    evq_pairing_items_free(&arrays);
    return status == EVQ_OK ? add_point(row, &point, err) : status;
}

/* Begins the rows of a task with its newest samples. */
static enum evq_status add_task(struct reading *reading, const struct evq_sample_file *file,
                                struct evq_samples_set *set, struct evq_error *err)
{
    struct evq_step_changes *to = reading->to;
    struct task *tasks =
        reallocarray(reading->tasks, reading->task_count + 1, sizeof *reading->tasks);

    if (tasks != NULL) {
        reading->tasks = tasks;
    }
    struct evq_step_change *rows =
        reallocarray(to->rows, to->count + set->name_count, sizeof *to->rows);
    if (rows != NULL) {
        to->rows = rows;
    }
    if (tasks == NULL || rows == NULL || to->count + set->name_count > ROWS_MAX) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the scores of run '%s'", file->job);
    }
    struct task *task = &tasks[reading->task_count];
    *task = (struct task){.last = set, .row = to->count};
    (void)snprintf(task->suite, sizeof task->suite, "%s", file->suite);
    (void)snprintf(task->name, sizeof task->name, "%s", file->task);
    for (size_t i = 0; i < set->name_count; i++) {
        if (is_wanted(reading->metric, file->task, set->names[i])) {
            struct evq_step_change *row = &to->rows[to->count++];
            *row = (struct evq_step_change){.count = 0};
            (void)snprintf(row->suite, sizeof row->suite, "%s", file->suite);
            (void)snprintf(row->task, sizeof row->task, "%s", file->task);
            (void)snprintf(row->score, sizeof row->score, "%s", set->names[i]);
        }
    }
    task->row_count = to->count - task->row;
    reading->task_count++;
    return EVQ_OK;
}

static struct task *task_of(struct reading *reading, const struct evq_sample_file *file)
{
    for (size_t i = 0; i < reading->task_count; i++) {
        struct task *task = &reading->tasks[i];
        if (strcmp(task->suite, file->suite) == 0 && strcmp(task->name, file->task) == 0) {
            return task;
        }
    }
    return NULL;
}

static enum evq_status read_file(struct reading *reading, const struct evq_sample_file *file,
                                 int64_t step, struct evq_error *err)
{
    struct evq_samples_set *set = NULL;
    struct evq_pairing pairing = {.a = NULL};
    struct task *task = task_of(reading, file);
    enum evq_status status = evq_pairing_read(file, false, NULL, &set, err);

    const bool is_last = status == EVQ_OK && task == NULL;
    if (is_last) {
        status = add_task(reading, file, set, err);
        task = status == EVQ_OK ? &reading->tasks[reading->task_count - 1] : NULL;
    }
    if (status == EVQ_OK) {
        status = evq_pairing_make(set, task->last, &pairing, err);
        if (status == EVQ_E_CONFLICT || status == EVQ_E_INVALID) {
            reading->to->others++; // No item is the same as one of the last step.
            status = EVQ_OK;
        } else {
            for (size_t i = 0; status == EVQ_OK && i < task->row_count; i++) {
                status = compare_score(&pairing, step, &reading->to->rows[task->row + i], err);
            }
        }
    }
    evq_pairing_close(&pairing);
    if (!is_last || task == NULL) {
        evq_samples_set_free(set);
    }
    return status;
}

/* Reads the last step first, so that only its files and one other are in memory. */
static enum evq_status read_steps(struct reading *reading, const char *run, int64_t *steps,
                                  struct evq_error *err)
{
    const char *directory = reading->cli->config->samples.directory;
    enum evq_status status = EVQ_OK;

    for (size_t i = evq_samples_find_steps(directory, run, steps, STEPS_MAX);
         status == EVQ_OK && i-- > 0;) {
        struct evq_sample_place place = {.step = steps[i]};
        struct evq_sample_files files = {.count = 0};
        (void)snprintf(place.run, sizeof place.run, "%s", run);
        status = evq_sample_files_find(reading->cli, &place, &files, err);
        if (status == EVQ_E_NOT_FOUND) {
            status = EVQ_OK; // It has samples of another task, suite or variant.
        }
        for (size_t k = 0; status == EVQ_OK && k < files.count; k++) {
            status = read_file(reading, &files.files[k], steps[i], err);
        }
        free(files.files);
    }
    return status;
}

/* Corrects the p-values of all scores together, and finds what is printed. */
static enum evq_status decide(struct evq_step_changes *to, struct evq_error *err)
{
    size_t count = 0;
    size_t at = 0;

    for (size_t i = 0; i < to->count; i++) {
        count += to->rows[i].count;
    }
    double *p = calloc(count + 1, sizeof *p);
    if (p == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu p-values", count);
    }
    for (size_t i = 0; i < to->count; i++) {
        for (size_t k = 0; k < to->rows[i].count; k++) {
            to->compared += !isnan(to->rows[i].points[k].p);
            p[at++] = to->rows[i].points[k].p;
        }
    }
    const enum evq_status status = evq_holm_correct(p, count, err);
    at = 0;
    for (size_t i = 0; status == EVQ_OK && i < to->count; i++) {
        struct evq_step_change *row = &to->rows[i];
        const bool higher = evq_pairing_higher(row->score);
        for (size_t k = 0; k < row->count; k++) {
            const double best = row->points[row->best].mean;
            row->points[k].p = p[at++];
            const double mean = row->points[k].mean;
            row->best = mean == best || (higher ? mean > best : mean < best) ? k : row->best;
            row->changed = row->changed == 0 && row->points[k].p < ALPHA ? k : row->changed;
        }
    }
    free(p);
    return status;
}

enum evq_status evq_step_changes_make(struct evq_cli *cli, const char *run, const char *metric,
                                      struct evq_step_changes *ret, struct evq_error *err)
{
    *ret = (struct evq_step_changes){.rows = NULL};
    struct reading reading = {.cli = cli, .metric = metric, .to = ret};
    int64_t *steps = calloc(STEPS_MAX, sizeof *steps);
    enum evq_status status = steps != NULL
                                 ? read_steps(&reading, run, steps, err)
                                 : evq_error_set(err, EVQ_E_NOMEM, "no memory for the steps");

    if (status == EVQ_OK) {
        status = decide(ret, err);
    }
    for (size_t i = 0; i < reading.task_count; i++) {
        evq_samples_set_free(reading.tasks[i].last);
    }
    if (status != EVQ_OK) {
        evq_step_changes_free(ret);
    }
    free(reading.tasks);
    free(steps);
    return status;
}

void evq_step_changes_free(struct evq_step_changes *changes)
{
    for (size_t i = 0; i < changes->count; i++) {
        free(changes->rows[i].points);
    }
    free(changes->rows);
    *changes = (struct evq_step_changes){.rows = NULL};
}

static void print_row(struct evq_table *table, const struct evq_step_change *row)
{
    const struct evq_step_point *last = &row->points[0];
    const struct evq_step_point *best = &row->points[row->best];
    const struct evq_step_point *changed = &row->points[row->changed];

    evq_table_row(table);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%s/%s", row->task, row->score);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%" PRId64, last->step);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%.6g", last->mean);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%" PRId64, best->step);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%.6g", best->mean);
    if (row->best == 0) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "it is the last");
    } else if (isnan(best->p)) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "too few items");
    } else {
        evq_table_cell(table, best->p < ALPHA ? EVQ_COLOUR_RED : EVQ_COLOUR_NONE, "%s (p %.3g)",
                       best->p < ALPHA ? "yes" : "no", best->p);
    }
    if (row->changed == 0) {
        evq_table_cell(table, EVQ_COLOUR_DIM, "none in %zu steps", row->count);
    } else {
        const bool better = (changed->difference > 0.0) == evq_pairing_higher(row->score);
        evq_table_cell(table, better ? EVQ_COLOUR_GREEN : EVQ_COLOUR_RED,
                       "%" PRId64 " to %" PRId64 ": %+.6g (p %.3g)", changed->step, last->step,
                       changed->difference, changed->p);
    }
}

enum evq_status evq_step_changes_print(struct evq_cli *cli, const struct evq_step_changes *changes,
                                       struct evq_error *err)
{
    if (changes->count == 0) {
        return EVQ_OK;
    }
    struct evq_table *table = evq_table_new();
    evq_table_column(table, "METRIC", false);
    evq_table_column(table, "LAST STEP", true);
    evq_table_column(table, "MEAN", true);
    evq_table_column(table, "BEST STEP", true);
    evq_table_column(table, "MEAN", true);
    evq_table_column(table, "DO THEY DIFFER", false);
    evq_table_column(table, "LAST SIGNIFICANT CHANGE", false);
    for (size_t i = 0; i < changes->count; i++) {
        print_row(table, &changes->rows[i]);
    }
    const enum evq_status status = evq_table_print_free(table, &cli->terminal, 0, stdout, err);
    if (changes->compared > 1) {
        evq_cli_say(cli,
                    "Each earlier step was compared with the last one. P is corrected by Holm's "
                    "method for %zu comparisons.",
                    changes->compared);
    }
    if (changes->others > 0) {
        evq_cli_say(cli,
                    "evalq: %zu samples files were left out: their suite or data were different, "
                    "so their items are not the same",
                    changes->others);
    }
    return status;
}

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *evq_step_changes_json(const struct evq_step_changes *changes)
{
    json_t *list = json_array();

    for (size_t i = 0; i < changes->count; i++) {
        const struct evq_step_change *row = &changes->rows[i];
        const struct evq_step_point *last = &row->points[0];
        const struct evq_step_point *best = &row->points[row->best];
        const struct evq_step_point *changed = &row->points[row->changed];
        json_t *one = json_pack(
            "{s:s, s:s, s:s, s:I, s:f, s:I, s:f, s:o, s:o}", "suite", row->suite, "task", row->task,
            "metric", row->score, "last_step", (json_int_t)last->step, "last", last->mean,
            "best_step", (json_int_t)best->step, "best", best->mean, "best_p_corrected",
            number_or_null(best->p), "best_differs",
            row->best != 0 && isnan(best->p) ? json_null() : json_boolean(best->p < ALPHA));
        json_t *change =
            row->changed == 0
                ? json_null()
                : json_pack("{s:I, s:I, s:f, s:f}", "from_step", (json_int_t)changed->step,
                            "to_step", (json_int_t)last->step, "difference", changed->difference,
                            "p_corrected", changed->p);
        (void)json_object_set_new(one, "last_significant_change", change);
        (void)json_array_append_new(list, one);
    }
    return list;
}
