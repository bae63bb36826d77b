#include "producer/cli/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/arena.h"

#define CELL_BYTES_MAX    1024
#define CAUSE_COLUMNS_MIN 40 // Optional columns are hidden until this much of the last one fits.

struct cell {
    const char *text;
    size_t columns; // Its width on a screen.
    enum evq_colour colour;
};

struct row {
    struct row *next;
    size_t cell_count;
    struct cell cells[]; // One per column of the table.
};

struct evq_table {
    struct evq_arena *arena;
    struct cell titles[EVQ_TABLE_COLUMNS_MAX];
    bool right[EVQ_TABLE_COLUMNS_MAX];
    bool optional[EVQ_TABLE_COLUMNS_MAX];
    bool hidden[EVQ_TABLE_COLUMNS_MAX]; // Optional columns that did not fit when last printed.
    size_t widths[EVQ_TABLE_COLUMNS_MAX];
    size_t column_count;
    struct row *first;
    struct row *last;
    size_t row_count;
    bool failed;
};

struct evq_table *evq_table_new(void)
{
    struct evq_table *table = calloc(1, sizeof *table);
    if (table == NULL) {
        return NULL;
    }
    table->arena = evq_arena_new((size_t)1 << 30);
    if (table->arena == NULL) {
        free(table);
        return NULL;
    }
    return table;
}

void evq_table_free(struct evq_table *table)
{
    if (table != NULL) {
        evq_arena_free(table->arena);
        free(table);
    }
}

void evq_table_column(struct evq_table *table, const char *title, bool right)
{
    if (table == NULL || table->column_count == EVQ_TABLE_COLUMNS_MAX) {
        return;
    }
    size_t at = table->column_count++;
    char shown[CELL_BYTES_MAX];
    evq_error_escape(title, strlen(title), shown, sizeof shown);
    table->titles[at].text = evq_arena_strdup(table->arena, shown);
    table->titles[at].columns = evq_terminal_columns(shown, strlen(shown));
    table->failed = table->failed || table->titles[at].text == NULL;
    table->right[at] = right;
    table->widths[at] = table->titles[at].columns;
}

void evq_table_optional(struct evq_table *table)
{
    if (table != NULL && table->column_count > 0) {
        table->optional[table->column_count - 1] = true;
    }
}

void evq_table_row(struct evq_table *table)
{
    struct row *row = NULL;
    if (table == NULL) {
        return;
    }
    row = evq_arena_alloc(table->arena, sizeof *row + table->column_count * sizeof row->cells[0]);
    if (row == NULL) {
        table->failed = true;
        return;
    }
    if (table->last == NULL) {
        table->first = row;
    } else {
        table->last->next = row;
    }
    table->last = row;
    table->row_count++;
}

void evq_table_cell(struct evq_table *table, enum evq_colour colour, const char *format, ...)
{
    struct row *row = table != NULL ? table->last : NULL;
    if (row == NULL || table->failed || row->cell_count >= table->column_count) {
        return;
    }
    char raw[CELL_BYTES_MAX];
    char shown[CELL_BYTES_MAX];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    if (bytes < 0) {
        table->failed = true;
        return;
    }
    evq_error_escape(raw, strlen(raw), shown, sizeof shown);
    size_t at = row->cell_count++;
    struct cell *cell = &row->cells[at];
    cell->text = evq_arena_strdup(table->arena, shown);
    cell->columns = evq_terminal_columns(shown, strlen(shown));
    cell->colour = colour;
    table->failed = table->failed || cell->text == NULL;
    if (cell->columns > table->widths[at]) {
        table->widths[at] = cell->columns;
    }
}

/* How many bytes of the text take at most `columns` columns of a screen. */
static size_t bytes_for_columns(const char *text, size_t columns)
{
    size_t bytes = 0;
    while (text[bytes] != '\0') {
        size_t next = bytes + 1;
        while (((unsigned char)text[next] & 0xC0) == 0x80) {
            next++;
        }
        if (columns-- == 0) {
            break;
        }
        bytes = next;
    }
    return bytes;
}

static void print_line(const struct evq_table *table, const struct cell *cells, size_t cell_count,
                       const struct evq_terminal *terminal, int indent, enum evq_colour all,
                       FILE *out)
{
    size_t used = (size_t)indent;
    (void)fprintf(out, "%*s", indent, "");
    for (size_t i = 0; i < cell_count; i++) {
        const struct cell *cell = &cells[i];
        size_t pad = table->widths[i] - cell->columns;
        const char *text = cell->text;
        char reordered[CELL_BYTES_MAX];
        size_t bytes = strlen(text);
        size_t columns = cell->columns;
        bool last = i + 1 == table->column_count;
        if (table->hidden[i]) {
            continue;
        }
        if (terminal->width > 0 && used + columns > (size_t)terminal->width && !table->right[i]) {
            size_t room = (size_t)terminal->width > used ? (size_t)terminal->width - used : 0;
            if (last) {
                text = evq_error_cause_first(text, reordered, sizeof reordered);
            }
            bytes = bytes_for_columns(text, room);
            columns = room < columns ? room : columns;
        }
        enum evq_colour colour = all != EVQ_COLOUR_NONE ? all : cell->colour;
        if (table->right[i]) {
            (void)fprintf(out, "%*s", (int)pad, "");
        }
        if (colour != EVQ_COLOUR_NONE) {
            (void)fputs(evq_terminal_colour(terminal, colour), out);
        }
        (void)fwrite(text, 1, bytes, out);
        if (colour != EVQ_COLOUR_NONE) {
            (void)fputs(evq_terminal_colour(terminal, EVQ_COLOUR_NONE), out);
        }
        if (!last && i + 1 < cell_count) {
            (void)fprintf(out, "%*s", table->right[i] ? 2 : (int)pad + 2, "");
        }
        used += table->widths[i] + 2;
    }
    (void)fputc('\n', out);
}

/* Hides optional columns, the last one first, until a row fits. The last column, when it is text,
 * can be cut: only its first CAUSE_COLUMNS_MIN columns must fit. */
static void fit(struct evq_table *table, const struct evq_terminal *terminal, int indent)
{
    size_t total = (size_t)indent;
    for (size_t i = 0; i < table->column_count; i++) {
        bool last = i + 1 == table->column_count;
        bool cut = last && !table->right[i];
        table->hidden[i] = false;
        size_t wanted = table->widths[i];
        if (cut && wanted > CAUSE_COLUMNS_MIN) {
            wanted = CAUSE_COLUMNS_MIN;
        }
        total += wanted + (last ? 0 : 2);
    }
    for (size_t i = table->column_count; i > 0 && total > (size_t)terminal->width; i--) {
        if (table->optional[i - 1]) {
            table->hidden[i - 1] = true;
            total -= table->widths[i - 1] + 2;
        }
    }
}

static void print_plain(const struct row *row, FILE *out)
{
    for (size_t i = 0; i < row->cell_count; i++) {
        (void)fprintf(out, "%s%s", i > 0 ? "\t" : "", row->cells[i].text);
    }
    (void)fputc('\n', out);
}

enum evq_status evq_table_print(struct evq_table *table, const struct evq_terminal *terminal,
                                int indent, FILE *out, struct evq_error *err)
{
    if (table == NULL || table->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table of %zu rows",
                             table != NULL ? table->row_count : 0);
    }
    if (terminal->width > 0) {
        fit(table, terminal, indent);
    }
    if (!terminal->plain) {
        print_line(table, table->titles, table->column_count, terminal, indent, EVQ_COLOUR_BOLD,
                   out);
    }
    for (const struct row *row = table->first; row != NULL; row = row->next) {
        if (terminal->plain) {
            print_plain(row, out);
        } else {
            print_line(table, row->cells, row->cell_count, terminal, indent, EVQ_COLOUR_NONE, out);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_table_print_free(struct evq_table *table, const struct evq_terminal *terminal,
                                     int indent, FILE *out, struct evq_error *err)
{
    const enum evq_status status = evq_table_print(table, terminal, indent, out, err);

    evq_table_free(table);
    return status;
}
