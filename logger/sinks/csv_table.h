/* A table of numbers by step and name, and its CSV form (RFC 4180): a header "step,NAME,...", then
 * one line for each step in ascending order. An empty field means no number. One thread.
 */
#ifndef EVQ_LOGGER_SINKS_CSV_TABLE_H
#define EVQ_LOGGER_SINKS_CSV_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/buffer.h"

#define EVQ_CSV_TABLE_COLUMNS_MAX 4096
#define EVQ_CSV_TABLE_CELLS_MAX   ((size_t)1 << 24)

struct evq_csv_table_row {
    int64_t step;
    double *cells; // cell_count of them; those past it are empty.
    size_t cell_count;
};

struct evq_csv_table {
    char **names; // Names of the columns, in the order of their first value.
    size_t column_count;
    size_t column_room;
    struct evq_csv_table_row *rows; // Ascending steps.
    size_t row_count;
    size_t row_room;
};

/* Sets a number. *ret_changed: the cell was empty or had another number. EVQ_E_NOMEM, EVQ_E_LIMIT.
 */
enum evq_status evq_csv_table_put(struct evq_csv_table *table, int64_t step, const char *name,
                                  double value, bool *ret_changed,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* Appends the table as CSV, doubles with 17 digits. out->failed: no memory. */
void evq_csv_table_csv(const struct evq_csv_table *table, struct evq_buffer *out);
/* Takes what evq_csv_table_csv() wrote into an empty table. EVQ_E_CORRUPT names line and fault. */
enum evq_status evq_csv_table_read(struct evq_csv_table *table, const char *text, size_t bytes,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_csv_table_free(struct evq_csv_table *table); // Leaves it empty.

#endif
