#include "producer/cli/inspect/result_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX ((size_t)1 << 20)

struct evq_result_table *evq_result_table_new(void)
{
    return calloc(1, sizeof(struct evq_result_table));
}

void evq_result_table_free(struct evq_result_table *results)
{
    if (results != NULL) {
        free(results->rows);
        free(results->index);
        free(results);
    }
}

static void copy(char *out, size_t out_bytes, const char *text)
{
    size_t bytes = text != NULL ? strnlen(text, out_bytes - 1) : 0;
    if (bytes > 0) {
        memcpy(out, text, bytes);
    }
    out[bytes] = '\0';
}

/* Finds the place of a job in the index, or the free place for it. FNV-1a; at most half full. */
static size_t index_place(const struct evq_result_table *results, const char *job)
{
    uint32_t hash = 2166136261U;
    for (const char *at = job; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * 16777619U;
    }
    size_t places = 2 * results->row_capacity;
    size_t place = hash % places;
    while (results->index[place] != 0 &&
           strcmp(results->rows[results->index[place] - 1].job, job) != 0) {
        place = (place + 1) % places;
    }
    return place;
}

static void index_rebuild(struct evq_result_table *results)
{
    memset(results->index, 0, 2 * results->row_capacity * sizeof *results->index);
    for (size_t i = 0; i < results->row_count; i++) {
        results->index[index_place(results, results->rows[i].job)] = (uint32_t)i + 1;
    }
}

static bool grow(struct evq_result_table *results)
{
    size_t capacity = results->row_capacity == 0 ? 64 : 2 * results->row_capacity;
    if (capacity > ROWS_MAX) {
        return false;
    }
    struct evq_result_table_row *rows = realloc(results->rows, capacity * sizeof *rows);
    if (rows == NULL) {
        return false;
    }
    results->rows = rows;
    uint32_t *index = realloc(results->index, 2 * capacity * sizeof *index);
    if (index == NULL) {
        return false; // The rows keep their larger block; row_capacity still tells the index's
                      // size.
    }
    results->index = index;
    results->row_capacity = capacity;
    index_rebuild(results);
    return true;
}

static struct evq_result_table_row *row_of(struct evq_result_table *results,
                                           const struct evq_result *result)
{
    if (results->row_count > 0) {
        uint32_t found = results->index[index_place(results, result->job)];
        if (found != 0) {
            return &results->rows[found - 1];
        }
    }
    if (results->row_count == results->row_capacity && !grow(results)) {
        results->failed = true;
        return NULL;
    }
    struct evq_result_table_row *row = &results->rows[results->row_count];
    memset(row, 0, sizeof *row);
    copy(row->job, sizeof row->job, result->job);
    copy(row->run, sizeof row->run, result->run);
    copy(row->variant, sizeof row->variant, result->variant);
    copy(row->suite, sizeof row->suite, result->suite);
    row->step = result->step;
    row->timing.queued_ms = -1;
    results->shape.variant = results->shape.variant || strcmp(row->variant, "regular") != 0;
    results->shape.suite = results->shape.suite || strcmp(row->suite, results->rows[0].suite) != 0;
    results->row_count++;
    results->index[index_place(results, row->job)] = (uint32_t)results->row_count;
    return row;
}

/* Adds the column of a new metric. If its suite has another task already, marks the suite as having
 * several tasks. */
static void note_shape(struct evq_result_table *results,
                       const struct evq_result_table_metric *added)
{
    struct evq_result_table_shape *shape = &results->shape;
    bool known = false;
    for (size_t n = 0; n < shape->name_count; n++) {
        known = known || strcmp(results->metrics[shape->names[n]].name, added->name) == 0;
    }
    if (!known) {
        shape->names[shape->name_count++] = results->metric_count;
    }
    for (size_t m = 0; m < results->metric_count; m++) {
        shape->task = shape->task || (strcmp(results->metrics[m].suite, added->suite) == 0 &&
                                      strcmp(results->metrics[m].task, added->task) != 0);
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t bytes = strlen(text);
    size_t end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

/* Frameworks report how long an evaluation took among its metrics. It says nothing about a model,
 * and TOOK says it already. */
static bool is_time_or_rate(const char *name)
{
    return strcmp(name, "runtime") == 0 || ends_with(name, "_runtime") ||
           ends_with(name, "_per_second") || ends_with(name, "_preparation_time");
}

static size_t metric_of(struct evq_result_table *results, const struct evq_result *result,
                        const struct evq_metric *metric)
{
    if (is_time_or_rate(metric->name)) {
        return SIZE_MAX;
    }
    char key[sizeof results->metrics[0].key];
    evq_result_metric_key(result, metric, key, sizeof key);
    for (size_t i = 0; i < results->metric_count; i++) {
        if (strcmp(results->metrics[i].key, key) == 0) {
            return i;
        }
    }
    if (results->metric_count == EVQ_RESULT_TABLE_METRICS_MAX) {
        results->metrics_left_out++;
        return SIZE_MAX;
    }
    struct evq_result_table_metric *added = &results->metrics[results->metric_count];
    memcpy(added->key, key, sizeof key);
    copy(added->task, sizeof added->task, result->task);
    copy(added->name, sizeof added->name, metric->name);
    copy(added->suite, sizeof added->suite, result->suite);
    note_shape(results, added);
    added->direction = evq_metric_direction(metric);
    added->best = SIZE_MAX;
    return results->metric_count++;
}

/* Ties go to the lower step; NaN never wins. */
static void note_best(struct evq_result_table *results, size_t row, size_t metric)
{
    struct evq_result_table_metric *column = &results->metrics[metric];
    double value = results->rows[row].values[metric];
    if (isnan(value) || column->direction < 0) {
        return;
    }
    if (column->best == SIZE_MAX) {
        column->best = row;
        return;
    }
    double best = results->rows[column->best].values[metric];
    bool better = column->direction ? value > best : value < best;
    if (better || (value == best && results->rows[row].step < results->rows[column->best].step)) {
        column->best = row;
    }
}

size_t evq_result_table_tasks(const struct evq_result_table *results,
                              const struct evq_result_table_row *row,
                              const char *tasks[EVQ_RESULT_TABLE_METRICS_MAX])
{
    size_t count = 0;
    for (size_t m = 0; m < results->metric_count; m++) {
        bool known = !row->has[m];
        for (size_t t = 0; t < count; t++) {
            known = known || strcmp(tasks[t], results->metrics[m].task) == 0;
        }
        if (!known) {
            tasks[count++] = results->metrics[m].task;
        }
    }
    return count;
}

size_t evq_result_table_metric(const struct evq_result_table *results,
                               const struct evq_result_table_row *row, const char *task,
                               const char *name)
{
    for (size_t m = 0; m < results->metric_count; m++) {
        if (row->has[m] && strcmp(results->metrics[m].task, task) == 0 &&
            strcmp(results->metrics[m].name, name) == 0) {
            return m;
        }
    }
    return SIZE_MAX;
}

size_t evq_result_table_worker_name_bytes(const char *worker)
{
    const char *dash = strrchr(worker, '-');
    size_t digits = dash != NULL ? strspn(dash + 1, "0123456789abcdef") : 0;
    return digits == 16 && dash[17] == '\0' ? (size_t)(dash - worker) + 5 : strlen(worker);
}

static void add_task(struct evq_result_table *results, struct evq_result_table_row *row,
                     const struct evq_result *result)
{
    const struct evq_timing *timing = &result->timing;
    if (row->timing.queued_ms < 0) {
        row->timing.queued_ms = timing->queued_ms;
    }
    row->timing.load_us += timing->load_us;
    row->timing.compute_us += timing->compute_us;
    row->timing.bytes += timing->bytes;
    row->timing.samples += timing->samples;
    row->timing.tokens += timing->tokens;
    const char *worker = result->worker != NULL ? result->worker : "";
    const char *backend = result->backend != NULL ? result->backend : "";
    size_t bytes = evq_result_table_worker_name_bytes(worker);
    (void)snprintf(row->where, sizeof row->where, "%.*s%s%.44s", bytes < 48 ? (int)bytes : 48,
                   worker, worker[0] != '\0' && backend[0] != '\0' ? " " : "", backend);
    if (result->checkpoint != NULL && result->checkpoint[0] != '\0') {
        copy(row->checkpoint, sizeof row->checkpoint, result->checkpoint);
    }
    for (size_t i = 0; i < result->metric_count; i++) {
        size_t metric = metric_of(results, result, &result->metrics[i]);
        if (metric != SIZE_MAX) {
            row->has[metric] = true;
            row->values[metric] = result->metrics[i].value;
            note_best(results, (size_t)(row - results->rows), metric);
        }
    }
    if (!results->shape.task) {
        const char *tasks[EVQ_RESULT_TABLE_METRICS_MAX];
        results->shape.task = evq_result_table_tasks(results, row, tasks) > 1;
    }
}

struct evq_result_table_row *evq_result_table_add(struct evq_result_table *results,
                                                  const struct evq_result *result)
{
    struct evq_result_table_row *row = row_of(results, result);
    if (row == NULL) {
        return NULL;
    }
    if (result->task != NULL && result->task[0] != '\0') {
        add_task(results, row, result);
    } else {
        row->ended = true;
        row->state = result->state;
        copy(row->reason, sizeof row->reason, result->reason);
    }
    return row;
}

static int compare(const void *a, const void *b)
{
    const struct evq_result_table_row *x = a;
    const struct evq_result_table_row *y = b;
    int order = strcmp(x->run, y->run);
    if (order == 0 && x->step != y->step) {
        order = x->step < y->step ? -1 : 1;
    }
    if (order == 0) {
        order = strcmp(x->variant, y->variant);
    }
    if (order == 0) {
        order = strcmp(x->suite, y->suite);
    }
    if (order == 0) { // Only the generations differ. The longer text is the later one.
        order = (strlen(x->job) > strlen(y->job)) - (strlen(x->job) < strlen(y->job));
    }
    return order != 0 ? order : strcmp(x->job, y->job);
}

void evq_result_table_sort(struct evq_result_table *results)
{
    if (results->row_count == 0) {
        return;
    }
    qsort(results->rows, results->row_count, sizeof *results->rows, compare);
    index_rebuild(results);
    for (size_t m = 0; m < results->metric_count; m++) {
        results->metrics[m].best = SIZE_MAX;
        for (size_t r = 0; r < results->row_count; r++) {
            if (results->rows[r].has[m]) {
                note_best(results, r, m);
            }
        }
    }
}

void evq_result_table_step_text(const char *job, int64_t step,
                                char out[EVQ_RESULT_TABLE_STEP_BYTES])
{
    const char *generation = strchr(job, '~'); // No name in an id has one.
    const size_t digits = generation != NULL ? strspn(generation + 1, "0123456789") : 0;
    const int shown =
        digits > 0 && digits < 11 ? (int)digits + 1 : 0; // Otherwise it is not a generation.
    (void)snprintf(out, EVQ_RESULT_TABLE_STEP_BYTES, "%" PRId64 "%.*s", step, shown,
                   shown > 0 ? generation : "");
}

void evq_result_table_title(const struct evq_result_table *results, size_t metric, char *out,
                            size_t out_bytes)
{
    const struct evq_result_table_metric *column = &results->metrics[metric];
    bool alone = true;
    for (size_t i = 0; i < results->metric_count; i++) {
        alone = alone && strcmp(results->metrics[i].task, column->task) == 0;
    }
    // If there are several variants, two columns would have the title of task and name.
    for (size_t i = 0; i < results->metric_count; i++) {
        if (i != metric && strcmp(results->metrics[i].task, column->task) == 0 &&
            strcmp(results->metrics[i].name, column->name) == 0) {
            copy(out, out_bytes, column->key);
            return;
        }
    }
    if (alone) {
        copy(out, out_bytes, column->name);
    } else {
        (void)snprintf(out, out_bytes, "%s/%s", column->task, column->name);
    }
}

/* One line: a task of a row, or, with task NULL, a row that has no results. */
static void print_row(const struct evq_result_table *results, size_t at, const char *task,
                      struct evq_table *table, bool show_run)
{
    const struct evq_result_table_shape *shape = &results->shape;
    const struct evq_result_table_row *row = &results->rows[at];
    char wait[EVQ_TERMINAL_SPAN_BYTES];
    char took[EVQ_TERMINAL_SPAN_BYTES];
    char step[EVQ_RESULT_TABLE_STEP_BYTES];
    evq_table_row(table);
    if (show_run) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", row->run);
    }
    evq_result_table_step_text(row->job, row->step, step);
    evq_table_cell(table, EVQ_COLOUR_NONE, "%s", step);
    if (shape->variant) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", row->variant);
    }
    if (shape->suite) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", row->suite);
    }
    if (shape->task) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", task != NULL ? task : "");
    }
    for (size_t n = 0; n < shape->name_count; n++) {
        size_t m = task != NULL ? evq_result_table_metric(results, row, task,
                                                          results->metrics[shape->names[n]].name)
                                : SIZE_MAX;
        if (m == SIZE_MAX) {
            evq_table_cell(table, EVQ_COLOUR_DIM, "- ");
            continue;
        }
        char number[EVQ_TERMINAL_NUMBER_BYTES];
        bool best = results->metrics[m].best == at;
        evq_table_cell(table, best ? EVQ_COLOUR_GREEN : EVQ_COLOUR_NONE, "%s%s",
                       evq_terminal_number(row->values[m], number), best ? "*" : " ");
    }
    evq_table_cell(table, EVQ_COLOUR_DIM, "%s", evq_terminal_span(row->timing.queued_ms, wait));
    const int64_t took_us = row->timing.load_us + row->timing.compute_us;
    evq_table_cell(table, EVQ_COLOUR_DIM, "%s", // Empty if it was not evaluated.
                   took_us > 0 ? evq_terminal_took(took_us, took) : "");
    const char *state = !row->ended ? "running" : evq_job_state_name(row->state);
    bool good = !row->ended || row->state == EVQ_JOB_DONE;
    evq_table_cell(table, good ? EVQ_COLOUR_NONE : EVQ_COLOUR_RED, "%s%s%s", state,
                   row->reason[0] != '\0' ? ": " : "", row->reason);
}

static void add_columns(const struct evq_result_table *results, struct evq_table *table,
                        bool show_run)
{
    const struct evq_result_table_shape *shape = &results->shape;
    if (show_run) {
        evq_table_column(table, "RUN", false);
    }
    evq_table_column(table, "STEP", true);
    if (shape->variant) {
        evq_table_column(table, "VARIANT", false);
    }
    if (shape->suite) {
        evq_table_column(table, "SUITE", false);
    }
    if (shape->task) {
        evq_table_column(table, "TASK", false);
    }
    for (size_t n = 0; n < shape->name_count; n++) {
        char title[160];
        (void)snprintf(title, sizeof title, "%s ",
                       results->metrics[shape->names[n]].name); // Leaves a place for the star.
        evq_table_column(table, title, true);
    }
    evq_table_column(table, "WAIT", true);
    evq_table_optional(table);
    evq_table_column(table, "TOOK", true);
    evq_table_optional(table);
    evq_table_column(table, "STATE", false);
}

enum evq_status evq_result_table_print(const struct evq_result_table *results,
                                       const struct evq_terminal *terminal, bool show_run,
                                       struct evq_error *err)
{
    struct evq_table *table = evq_table_new();
    add_columns(results, table, show_run);
    for (size_t i = 0; i < results->row_count; i++) {
        const char *tasks[EVQ_RESULT_TABLE_METRICS_MAX];
        size_t count = evq_result_table_tasks(results, &results->rows[i], tasks);
        for (size_t t = 0; t < count; t++) {
            print_row(results, i, tasks[t], table, show_run);
        }
        if (count == 0) {
            print_row(results, i, NULL, table, show_run);
        }
    }
    enum evq_status status = evq_table_print_free(table, terminal, 0, stdout, err);
    if (status == EVQ_OK && results->failed) {
        status =
            evq_error_set(err, EVQ_E_NOMEM, "no memory for more than %zu rows", results->row_count);
    }
    return status;
}
