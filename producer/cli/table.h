/*
 * Rows of text in aligned columns. Cells are copied, and control bytes in them are escaped, so that
 * they cannot act on a terminal. One thread. If memory runs out, evq_table_print() reports it: the
 * other functions accept NULL and a table that lacks something.
 */
#ifndef EVQ_PRODUCER_CLI_TABLE_H
#define EVQ_PRODUCER_CLI_TABLE_H

#include <stdio.h>

#include "producer/cli/terminal.h"
#include "shared/base/error.h"

#define EVQ_TABLE_COLUMNS_MAX 64

struct evq_table;

struct evq_table *evq_table_new(void); // NULL: out of memory, which the functions below accept.
void evq_table_free(struct evq_table *table);

/* Columns come before rows. right: aligned right, as numbers are. Columns past
 * EVQ_TABLE_COLUMNS_MAX are left out. */
void evq_table_column(struct evq_table *table, const char *title, bool right);
/* Marks the column added last: it may be left out if a row does not fit the terminal. The last
 * marked column goes first. */
void evq_table_optional(struct evq_table *table);
/* Begins a row. Its cells follow in column order; missing cells are empty. */
void evq_table_row(struct evq_table *table);
void evq_table_cell(struct evq_table *table, enum evq_colour colour, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Plain terminals get tabs and no header. Others get aligned columns; the last one is cut to the
 * width, with the cause of a failure before its paths. indent: spaces before each line. */
enum evq_status evq_table_print(struct evq_table *table, const struct evq_terminal *terminal,
                                int indent, FILE *out, struct evq_error *err) EVQ_CHECK_RESULT;
/* Prints the table and frees it. */
enum evq_status evq_table_print_free(struct evq_table *table, const struct evq_terminal *terminal,
                                     int indent, FILE *out, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
