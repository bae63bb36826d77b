#include "producer/cli/up/command_output.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/utf8.h"

#define ROW_BYTES_MAX   ((size_t)1 << 20) // A longer line is cut there.
#define LINES_BYTES_MAX ((size_t)64 << 20)

void evq_command_output_init(struct evq_command_output *output)
{
    memset(output, 0, sizeof *output);
    evq_buffer_init(&output->lines, LINES_BYTES_MAX);
    for (size_t i = 0; i < EVQ_COMMAND_ROWS_MAX; i++) {
        evq_buffer_init(&output->rows[i].text, ROW_BYTES_MAX);
    }
    output->row_count = 1;
}

void evq_command_output_free(struct evq_command_output *output)
{
    evq_buffer_free(&output->lines);
    for (size_t i = 0; i < EVQ_COMMAND_ROWS_MAX; i++) {
        evq_buffer_free(&output->rows[i].text);
    }
}

static void row_clear(struct evq_command_row *row)
{
    evq_buffer_clear(&row->text);
    row->is_bar = false;
    row->returned = false;
    row->settled = false;
}

static bool is_blank(const struct evq_command_row *row)
{
    for (size_t i = 0; i < row->text.bytes; i++) {
        if (row->text.data[i] != ' ') {
            return false;
        }
    }
    return true;
}

/* The first row becomes a complete line. */
static void row_complete(struct evq_command_output *output)
{
    const struct evq_command_row first = output->rows[0];

    if (!first.is_bar || !is_blank(&first)) { // A bar that was wiped leaves no line.
        evq_buffer_append(&output->lines, first.text.data, first.text.bytes);
        evq_buffer_append(&output->lines, "\n", 1);
    }
    memmove(&output->rows[0], &output->rows[1], (output->row_count - 1) * sizeof first);
    output->rows[output->row_count - 1] = first; // Its memory is used again.
    row_clear(&output->rows[output->row_count - 1]);
    output->row_count -= output->row_count > 1;
    output->cursor -= output->cursor > 0;
}

static void row_put(struct evq_command_row *row, const char *bytes, size_t count)
{
    if (row->returned) {
        evq_buffer_clear(&row->text);
        row->returned = false;
    }
    evq_buffer_append(&row->text, bytes, count);
}

static void new_line(struct evq_command_output *output)
{
    if (output->cursor + 1 == output->row_count) {
        if (output->row_count == EVQ_COMMAND_ROWS_MAX) {
            row_complete(output);
        }
        row_clear(&output->rows[output->row_count++]);
    }
    output->cursor++;
    output->rows[output->cursor].returned = output->rows[output->cursor].text.bytes > 0;
}

/* Acts on a whole sequence that begins with ESC [. It ignores sequences that move elsewhere. */
static void obey(struct evq_command_output *output)
{
    struct evq_command_row *row = &output->rows[output->cursor];
    const char final = output->escape[output->escape_bytes - 1];
    const long number = strtol(output->escape + 2, NULL, 10);
    const size_t steps = number > 0 && number < EVQ_COMMAND_ROWS_MAX ? (size_t)number : 1;

    if (final == 'm') {
        row_put(row, output->escape, output->escape_bytes);
    } else if (final == 'A') {
        output->cursor -= steps < output->cursor ? steps : output->cursor;
        for (size_t i = output->cursor; i < output->row_count; i++) {
            output->rows[i].settled = false;
            output->rows[i].is_bar = true;
        }
    } else if (final == 'B') {
        const size_t below = output->row_count - 1 - output->cursor;
        output->cursor += steps < below ? steps : below;
    } else if (final == 'K' && (row->returned || number == 2)) {
        evq_buffer_clear(&row->text);
    } else if (final == 'J' && row->returned) {
        evq_buffer_clear(&row->text);
        output->row_count = output->cursor + 1;
    } else if (final == 'G' && number <= 1) {
        row->returned = true;
    }
}

/* The next byte of an escape sequence. */
static void escape_take(struct evq_command_output *output, char byte)
{
    if (output->escape_bytes + 1 >= sizeof output->escape) {
        output->escape_bytes = 0; // None of those that matter is so long.
        return;
    }
    output->escape[output->escape_bytes++] = byte;
    output->escape[output->escape_bytes] = '\0';
    if (output->escape_bytes == 2 && byte != '[') {
        output->escape_bytes = 0;
    } else if (output->escape_bytes > 2 && byte >= 0x40 && byte <= 0x7e) {
        obey(output);
        output->escape_bytes = 0;
    }
}

/* Rows above the cursor that the command does not rewrite are complete. */
static void rows_complete(struct evq_command_output *output)
{
    while (output->cursor > 0 && (!output->rows[0].is_bar || output->rows[0].settled)) {
        row_complete(output);
    }
}

void evq_command_output_take(struct evq_command_output *output, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct evq_command_row *row = &output->rows[output->cursor];
        if (output->escape_bytes > 0) {
            escape_take(output, bytes[i]);
        } else if (bytes[i] == '\033') {
            output->escape[0] = bytes[i];
            output->escape_bytes = 1;
        } else if (bytes[i] == '\n') {
            new_line(output);
            rows_complete(output);
        } else if (bytes[i] == '\r' || bytes[i] == '\b') {
            row->returned = true;
        } else {
            row->is_bar = row->is_bar || row->returned;
            row_put(row, &bytes[i], 1);
        }
    }
}

void evq_command_output_tick(struct evq_command_output *output)
{
    rows_complete(output);
    for (size_t i = 0; i < output->cursor; i++) {
        output->rows[i].settled = true;
    }
}

void evq_command_output_end(struct evq_command_output *output)
{
    while (output->row_count > 1) {
        row_complete(output);
    }
    if (output->rows[0].text.bytes > 0) {
        row_complete(output);
    }
}

char *evq_command_output_plain(const struct evq_command_row *row, char *out, size_t out_bytes)
{
    const char *text = (const char *)row->text.data;
    size_t used = 0;

    for (size_t i = 0; i < row->text.bytes;) {
        if (text[i] == '\033') {
            while (i < row->text.bytes && text[i] != 'm') {
                i++;
            }
            i++;
            continue;
        }
        const size_t bytes = evq_utf8_sequence(text + i, row->text.bytes - i);
        const size_t step = bytes > 0 ? bytes : 1;
        if (used + step >= out_bytes) {
            break;
        }
        memcpy(out + used, text + i, step);
        used += step;
        i += step;
    }
    out[used] = '\0';
    return out;
}
