/*
 * The results of runs as a table: a row for each checkpoint and suite, a column for each metric. It
 * grows result by result. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_INSPECT_RESULT_TABLE_H
#define EVQ_PRODUCER_CLI_INSPECT_RESULT_TABLE_H

#include "producer/cli/table.h"
#include "shared/queue/result.h"

// Tables leave out further metrics and metrics of time and rate. --json and --csv have all of them.
#define EVQ_RESULT_TABLE_METRICS_MAX 32

struct evq_result_table_metric {
    char key[320]; // "eval/<task>/<metric>"
    char task[EVQ_JOB_NAME_BYTES_MAX + 1];
    char name[136];
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1]; // The suite that had it first.
    int direction;                          // 1: higher is better; 0: lower; -1: neither.
    size_t best; // Index of the best row. SIZE_MAX: there is none, or the metric has no better
                 // direction.
};

struct evq_result_table_row {
    char job[EVQ_JOB_ID_BYTES_MAX]; // The id with its generation.
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    char variant[EVQ_JOB_NAME_BYTES_MAX + 1];
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    int64_t step;
    bool ended;
    enum evq_job_state state; // How, once ended.
    char reason[256];
    char where[96];           // Worker and backend, as far as known.
    char checkpoint[512];     // "root:path"
    struct evq_timing timing; // Sums over tasks; queued_ms of the first.
    bool has[EVQ_RESULT_TABLE_METRICS_MAX];
    double values[EVQ_RESULT_TABLE_METRICS_MAX];
};

/* Which columns are needed to tell lines apart. A line is one task of one row. Columns are only
 * added. */
struct evq_result_table_shape {
    bool variant;
    bool suite;
    bool task; // Some suite has several.
    // The metrics that have a column: for each name, the first metric with it.
    size_t names[EVQ_RESULT_TABLE_METRICS_MAX];
    size_t name_count;
};

struct evq_result_table {
    struct evq_result_table_shape shape;
    struct evq_result_table_metric metrics[EVQ_RESULT_TABLE_METRICS_MAX];
    size_t metric_count;
    size_t metrics_left_out;
    struct evq_result_table_row *rows;
    size_t row_count;
    size_t row_capacity;
    uint32_t *index; // Open addressing over the jobs' ids: row + 1, 0 free; twice row_capacity.
    bool failed;     // Out of memory: rows are missing.
};

struct evq_result_table *evq_result_table_new(void);          // NULL when out of memory.
void evq_result_table_free(struct evq_result_table *results); // Accepts NULL.

/* Adds one result and returns its row, which is valid until the next call. NULL: memory ran out. */
struct evq_result_table_row *evq_result_table_add(struct evq_result_table *results,
                                                  const struct evq_result *result);

/* Sorts by run, step, variant, suite and generation, and updates `best` of the metrics. */
void evq_result_table_sort(struct evq_result_table *results);

/* The tasks of a row that have results. Returns how many. The names are borrowed from the table. */
size_t evq_result_table_tasks(const struct evq_result_table *results,
                              const struct evq_result_table_row *row,
                              const char *tasks[EVQ_RESULT_TABLE_METRICS_MAX]);

/* The index of the row's metric of that task and name. SIZE_MAX: the row has none. */
size_t evq_result_table_metric(const struct evq_result_table *results,
                               const struct evq_result_table_row *row, const char *task,
                               const char *name);

/* How many bytes of a worker's name are enough to tell workers apart. The name is its host and a
 * random number. */
size_t evq_result_table_worker_name_bytes(const char *worker);

/* Writes "50", or "50~2" for a later generation, so that two rows of one step differ. */
#define EVQ_RESULT_TABLE_STEP_BYTES 32
void evq_result_table_step_text(const char *job, int64_t step,
                                char out[EVQ_RESULT_TABLE_STEP_BYTES]);

/* "accuracy", or "task/accuracy" if there are several tasks. */
void evq_result_table_title(const struct evq_result_table *results, size_t metric, char *out,
                            size_t out_bytes);

/* Prints a line per task of each row. The best value of each metric is green and starred. show_run:
 * adds a column for the run. */
enum evq_status evq_result_table_print(const struct evq_result_table *results,
                                       const struct evq_terminal *terminal, bool show_run,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
