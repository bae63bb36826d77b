#include "producer/cli/json_table.h"

#include <inttypes.h>
#include <limits.h>

static void add_cell(struct evq_table *out, const struct evq_column *column, int64_t now_ms,
                     const json_t *row)
{
    char span[EVQ_TERMINAL_SPAN_BYTES];
    const char *suffix = column->suffix != NULL ? column->suffix : "";
    int64_t number = evq_json_integer(row, column->key, -1);

    if (column->kind == EVQ_COLUMN_TEXT) {
        evq_table_cell(out, column->colour, "%.*s",
                       column->bytes_max > 0 ? (int)column->bytes_max : INT_MAX,
                       evq_json_text(row, column->key, ""));
        return;
    }
    if (column->kind == EVQ_COLUMN_SINCE && number > 0) {
        number = now_ms > number ? now_ms - number : 0;
    }
    if (number < 0) {
        evq_table_cell(out, column->colour, "%s", "");
    } else if (column->kind == EVQ_COLUMN_INTEGER) {
        evq_table_cell(out, column->colour, "%" PRId64 "%s", number, suffix);
    } else {
        evq_table_cell(out, column->colour, "%s%s", evq_terminal_span(number, span), suffix);
    }
}

enum evq_status evq_json_table_print(const struct evq_json_table *table, const json_t *rows,
                                     const struct evq_terminal *terminal, struct evq_error *err)
{
    const bool has_kind = table->kind != NULL && terminal->plain;
    const bool has_title = table->title != NULL && !terminal->plain;
    size_t index = 0;
    const json_t *row = NULL;

    if (table->title != NULL && json_array_size(rows) == 0) {
        return EVQ_OK;
    }
    struct evq_table *out = evq_table_new();
    if (has_kind) {
        evq_table_column(out, "KIND", false);
    }
    for (size_t i = 0; i < table->column_count; i++) {
        const struct evq_column *column = &table->columns[i];
        evq_table_column(out, column->title, column->right || column->kind != EVQ_COLUMN_TEXT);
        if (column->optional) {
            evq_table_optional(out);
        }
    }
    json_array_foreach(rows, index, row)
    {
        evq_table_row(out);
        if (has_kind) {
            evq_table_cell(out, EVQ_COLOUR_NONE, "%s", table->kind);
        }
        for (size_t i = 0; i < table->column_count; i++) {
            const struct evq_column *column = &table->columns[i];
            if (column->cell != NULL) {
                column->cell(out, row);
            } else {
                add_cell(out, column, table->now_ms, row);
            }
        }
    }
    if (has_title) {
        (void)printf("\n%s\n", table->title);
    }
    return evq_table_print_free(out, terminal, has_title ? 2 : 0, stdout, err);
}
