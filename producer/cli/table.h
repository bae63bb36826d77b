/*
 * Rows of text in aligned columns. Cells are copied and made harmless (no control bytes reach a
 * terminal). One thread. An allocation failure is remembered and reported when printing.
 */
#ifndef EVQ_CLI_TABLE_H
#define EVQ_CLI_TABLE_H

#include <stdio.h>

#include "producer/cli/terminal.h"
#include "shared/base/error.h"

#define EVQ_TABLE_COLUMNS_MAX 64

struct evq_table;

struct evq_table *evq_table_new(void);        // NULL when out of memory.
void evq_table_free(struct evq_table *table); // Accepts NULL.

/* Columns come before rows; right: numbers. Past EVQ_TABLE_COLUMNS_MAX they are left out. */
void evq_table_column(struct evq_table *table, const char *title, bool right);
/* The column added last may be left out where a row does not fit the terminal, the last one first.
 */
void evq_table_optional(struct evq_table *table);
/* Begins a row; cells follow in column order, missing ones are empty. */
void evq_table_row(struct evq_table *table);
void evq_table_cell(struct evq_table *table, enum evq_colour colour, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
size_t evq_table_rows(const struct evq_table *table);

/* Plain terminals get tabs and no header; others aligned columns, the last one cut to the width,
 * with the cause of a failure before its paths. indent: spaces before each line. */
enum evq_status evq_table_print(struct evq_table *table, const struct evq_terminal *terminal,
                                int indent, FILE *out, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
