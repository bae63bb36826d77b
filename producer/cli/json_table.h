/*
 * Tables whose rows are the objects of a JSON array, such as the jobs or workers of the queue. A
 * list of columns describes the table. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_JSON_TABLE_H
#define EVQ_PRODUCER_CLI_JSON_TABLE_H

#include <stdint.h>

#include "producer/cli/json.h"
#include "producer/cli/table.h"

enum evq_column_kind {
    EVQ_COLUMN_TEXT,
    EVQ_COLUMN_INTEGER, // Aligned right, as the two below. A missing or negative number is empty.
    EVQ_COLUMN_SINCE,   // A time in unix ms, shown as the span up to now_ms: "3 s".
    EVQ_COLUMN_AGE,     // A span in ms: "3 s".
};

struct evq_column {
    const char *title;
    const char *key; // The member of the row to show. NULL if `cell` is set.
    enum evq_column_kind kind;
    enum evq_colour colour;
    uint32_t bytes_max; // Cuts text. 0: shows all of it.
    bool right;         // Aligns text right, as numbers are.
    const char *suffix; // Follows a number or a span, such as "%" or " ago". NULL: none.
    bool optional;      // May be left out if the terminal is narrow.
    void (*cell)(struct evq_table *table, const json_t *row); // Adds the cell. NULL: by `kind`.
};

struct evq_json_table {
    const struct evq_column *columns;
    size_t column_count;
    const char *title; // With a title, rows are indented below it, and no rows print nothing.
    const char *kind;  // The first cell of each row in --plain output. NULL: none.
    int64_t now_ms;    // For EVQ_COLUMN_SINCE.
};

/* The members of struct evq_json_table that describe an array of columns. */
#define EVQ_COLUMNS(array) .columns = (array), .column_count = sizeof(array) / sizeof((array)[0])

enum evq_status evq_json_table_print(const struct evq_json_table *table, const json_t *rows,
                                     const struct evq_terminal *terminal,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

#endif
