/*
 * Splits the output of a command into complete lines and the lines at the bottom that it still
 * rewrites, such as progress bars. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_UP_COMMAND_OUTPUT_H
#define EVQ_PRODUCER_CLI_UP_COMMAND_OUTPUT_H

#include "shared/base/buffer.h"

#define EVQ_COMMAND_ROWS_MAX 6 // Lines that a command can rewrite. The first of more is complete.

struct evq_command_row {
    struct evq_buffer text; // The last state of the line, with colours.
    bool is_bar;            // It was overwritten at least once.
    bool returned;          // The cursor is at its beginning: the next text replaces it.
    bool settled;           // The cursor was below it at the last tick.
};

struct evq_command_output {
    struct evq_buffer lines; // Complete lines, each with its newline: print them, then clear.
    struct evq_command_row rows[EVQ_COMMAND_ROWS_MAX];
    size_t row_count;
    size_t cursor;   // The row that is written now.
    char escape[32]; // An escape sequence that has begun.
    size_t escape_bytes;
};

void evq_command_output_init(struct evq_command_output *output);
void evq_command_output_free(struct evq_command_output *output);
/* Takes bytes as they were read. A line is complete at its newline. A progress bar is complete if
 * the command does not return to it before the second tick, because nested bars are written with
 * newlines. */
void evq_command_output_take(struct evq_command_output *output, const char *bytes, size_t count);
void evq_command_output_tick(struct evq_command_output *output);
/* The command has ended: completes all lines that are left. */
void evq_command_output_end(struct evq_command_output *output);
/* The text of a row without its colours, cut to fit. Returns out. */
char *evq_command_output_plain(const struct evq_command_row *row, char *out, size_t out_bytes);

#endif
