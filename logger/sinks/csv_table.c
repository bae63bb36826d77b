#include "logger/sinks/csv_table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIELD_BYTES_MAX 1024

/* A quiet NaN that no computation gives stands for "no number". */
static const uint64_t empty_bits = UINT64_C(0x7ff8e0a1c0ffee00);

static double empty_value(void)
{
    double value;

    memcpy(&value, &empty_bits, sizeof(value));
    return value;
}

static bool is_empty(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits == empty_bits;
}

void evq_csv_table_free(struct evq_csv_table *table)
{
    for (size_t i = 0; i < table->column_count; i++) {
        free(table->names[i]);
    }
    for (size_t i = 0; i < table->row_count; i++) {
        free(table->rows[i].cells);
    }
    free(table->names);
    free(table->rows);
    *table = (struct evq_csv_table){0};
}

/* Returns items, grown if needed to hold count + 1 elements of `size` bytes. NULL: no memory; items
 * is unchanged. */
static void *room_made(void *items, size_t count, size_t *room, size_t size)
{
    if (count < *room) {
        return items;
    }
    const size_t more = *room == 0 ? 16 : 2 * *room;
    void *grown = reallocarray(items, more, size);
    if (grown != NULL) {
        *room = more;
    }
    return grown;
}

static enum evq_status column_of(struct evq_csv_table *table, const char *name, size_t *ret_column,
                                 struct evq_error *err)
{
    for (size_t i = 0; i < table->column_count; i++) {
        if (strcmp(table->names[i], name) == 0) {
            *ret_column = i;
            return EVQ_OK;
        }
    }
    if (table->column_count == EVQ_CSV_TABLE_COLUMNS_MAX ||
        (table->column_count + 1) * (table->row_count + 1) > EVQ_CSV_TABLE_CELLS_MAX) {
        return evq_error_set(
            err, EVQ_E_LIMIT,
            "column '%.80s' is one too many: the file has %zu columns, the most that are allowed",
            name, table->column_count);
    }
    char *copy = strdup(name);
    char **names =
        room_made(table->names, table->column_count, &table->column_room, sizeof(*table->names));
    if (names == NULL || copy == NULL) {
        table->names = names != NULL ? names : table->names;
        free(copy);
        return evq_error_set(err, EVQ_E_NOMEM, "a column '%.80s'", name);
    }
    table->names = names;
    *ret_column = table->column_count;
    table->names[table->column_count++] = copy;
    return EVQ_OK;
}

static enum evq_status row_of(struct evq_csv_table *table, int64_t step,
                              struct evq_csv_table_row **ret_row, struct evq_error *err)
{
    size_t low = 0;
    size_t high = table->row_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (table->rows[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == table->row_count || table->rows[low].step != step) {
        if ((table->row_count + 1) * table->column_count > EVQ_CSV_TABLE_CELLS_MAX) {
            return evq_error_set(err, EVQ_E_LIMIT,
                                 "step %" PRId64 " is a row too many: there are %zu", step,
                                 table->row_count);
        }
        struct evq_csv_table_row *rows =
            room_made(table->rows, table->row_count, &table->row_room, sizeof(*table->rows));
        if (rows == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "a row of step %" PRId64, step);
        }
        table->rows = rows;
        memmove(&table->rows[low + 1], &table->rows[low],
                (table->row_count - low) * sizeof(*table->rows));
        table->rows[low] = (struct evq_csv_table_row){.step = step};
        table->row_count++;
    }
    *ret_row = &table->rows[low];
    return EVQ_OK;
}

enum evq_status evq_csv_table_put(struct evq_csv_table *table, int64_t step, const char *name,
                                  double value, bool *ret_changed, struct evq_error *err)
{
    struct evq_csv_table_row *row = NULL;
    size_t column = 0;

    enum evq_status status = column_of(table, name, &column, err);
    if (status == EVQ_OK) {
        status = row_of(table, step, &row, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (column >= row->cell_count) {
        double *cells = reallocarray(row->cells, table->column_count, sizeof(*cells));
        if (cells == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "a row of step %" PRId64, step);
        }
        for (size_t i = row->cell_count; i < table->column_count; i++) {
            cells[i] = empty_value();
        }
        row->cells = cells;
        row->cell_count = table->column_count;
    }
    *ret_changed = memcmp(&row->cells[column], &value, sizeof(value)) != 0;
    row->cells[column] = value;
    return EVQ_OK;
}

/* Quoted where RFC 4180 asks for it. */
static void field_text(struct evq_buffer *out, const char *text)
{
    if (text[strcspn(text, ",\"\r\n")] == '\0') {
        evq_buffer_text(out, text);
        return;
    }
    evq_buffer_text(out, "\"");
    for (const char *at = text; *at != '\0'; at++) {
        evq_buffer_append(out, "\"", *at == '"' ? 1 : 0);
        evq_buffer_append(out, at, 1);
    }
    evq_buffer_text(out, "\"");
}

void evq_csv_table_csv(const struct evq_csv_table *table, struct evq_buffer *out)
{
    evq_buffer_text(out, "step");
    for (size_t i = 0; i < table->column_count; i++) {
        evq_buffer_text(out, ",");
        field_text(out, table->names[i]);
    }
    evq_buffer_text(out, "\r\n");
    for (size_t r = 0; r < table->row_count; r++) {
        const struct evq_csv_table_row *row = &table->rows[r];
        evq_buffer_printf(out, "%" PRId64, row->step);
        for (size_t i = 0; i < table->column_count; i++) {
            evq_buffer_text(out, ",");
            if (i < row->cell_count && !is_empty(row->cells[i])) {
                evq_buffer_printf(out, "%.17g",
                                  isnan(row->cells[i]) ? fabs(row->cells[i]) : row->cells[i]);
            }
        }
        evq_buffer_text(out, "\r\n");
    }
}

struct reader {
    const char *at;
    const char *end;
    size_t line;
    char field[FIELD_BYTES_MAX];
    bool line_ended; // The field was the last of its line.
};

/* Takes one field and what ends it; false: it is malformed or too long. */
static bool field_take(struct reader *reader)
{
    const bool quoted = reader->at < reader->end && *reader->at == '"';
    size_t bytes = 0;

    reader->at += quoted ? 1 : 0;
    for (;; reader->at++) {
        if (reader->at == reader->end) {
            return false; // Lines end with a newline.
        }
        const char byte = *reader->at;
        if (quoted && byte == '"') {
            reader->at++;
            if (reader->at == reader->end || *reader->at != '"') {
                break;
            }
        } else if (!quoted && (byte == ',' || byte == '\r' || byte == '\n')) {
            break;
        }
        if (bytes + 1 == sizeof(reader->field) || byte == '\0') {
            return false;
        }
        reader->field[bytes++] = byte;
    }
    reader->field[bytes] = '\0';
    if (reader->at == reader->end) {
        return false;
    }
    reader->line_ended = *reader->at != ',';
    if (*reader->at == '\r') {
        reader->at++;
    }
    if (reader->at == reader->end ||
        (reader->line_ended ? *reader->at != '\n' : *reader->at != ',')) {
        return false;
    }
    reader->at++;
    return true;
}

static enum evq_status corrupt(const struct reader *reader, const char *what, struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_CORRUPT, "line %zu: %s", reader->line, what);
}

static enum evq_status header_read(struct evq_csv_table *table, struct reader *reader,
                                   struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    size_t column = 0;

    if (!field_take(reader) || strcmp(reader->field, "step") != 0) {
        return corrupt(reader, "expected a header that begins with \"step\"", err);
    }
    for (size_t i = 0; !reader->line_ended && status == EVQ_OK; i++) {
        if (!field_take(reader)) {
            return corrupt(reader, "a malformed name of a column", err);
        }
        status = column_of(table, reader->field, &column, err);
        if (status == EVQ_OK && column != i) {
            return corrupt(reader, "a column that comes twice", err);
        }
    }
    return status;
}

static enum evq_status line_read(struct evq_csv_table *table, struct reader *reader,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    char *end = NULL;
    bool changed;

    errno = 0;
    if (!field_take(reader)) {
        return corrupt(reader, "expected a step", err);
    }
    const long long step = strtoll(reader->field, &end, 10);
    if (errno != 0 || end == reader->field || *end != '\0') {
        return corrupt(reader, "expected a step", err);
    }
    for (size_t i = 0; !reader->line_ended && status == EVQ_OK; i++) {
        if (!field_take(reader) || i >= table->column_count) {
            return corrupt(reader, "a malformed number, or one too many", err);
        }
        if (reader->field[0] == '\0') {
            continue;
        }
        const double value = strtod(reader->field, &end);
        if (*end != '\0') {
            return corrupt(reader, "expected a number", err);
        }
        status = evq_csv_table_put(table, step, table->names[i], value, &changed, err);
    }
    return status;
}

enum evq_status evq_csv_table_read(struct evq_csv_table *table, const char *text, size_t bytes,
                                   struct evq_error *err)
{
    struct reader reader = {.at = text, .end = text + bytes, .line = 1};
    enum evq_status status = header_read(table, &reader, err);

    for (reader.line = 2; reader.at < reader.end && status == EVQ_OK; reader.line++) {
        status = line_read(table, &reader, err);
    }
    if (status != EVQ_OK) {
        evq_csv_table_free(table);
    }
    return status;
}
