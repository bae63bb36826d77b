#include "producer/cli/live.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define METRIC_COLUMNS 13

void evq_live_init(struct evq_live *live, const struct evq_terminal *terminal,
                   struct evq_board *board, bool show_run)
{
    memset(live, 0, sizeof *live);
    live->terminal = terminal;
    live->board = board;
    live->show_run = show_run;
}

void evq_live_erase(struct evq_live *live)
{
    if (live->footer_lines > 0) {
        // Up over the footer, then clear from there to the end of the screen.
        (void)printf("\033[%zuA\r\033[J", live->footer_lines);
        live->footer_lines = 0;
    }
}

/* A text cut to width, the rest shown by its end: the end of a metric's name tells it apart. */
static void print_right(const char *text, size_t width)
{
    char shown[512];
    evq_error_escape(text, strlen(text), shown, sizeof shown);
    size_t columns = evq_terminal_columns(shown, strlen(shown));
    const char *at = shown;
    while (columns > width) {
        at++;
        columns -= ((unsigned char)*at & 0xC0) != 0x80;
    }
    (void)printf("%*s%s", (int)(width - columns), "", at);
}

static void print_header(struct evq_live *live)
{
    const struct evq_board *board = live->board;
    (void)fputs(evq_terminal_colour(live->terminal, EVQ_COLOUR_BOLD), stdout);
    (void)printf("%s%8s", live->show_run ? "RUN               " : "", "STEP");
    for (size_t m = 0; m < board->metric_count; m++) {
        char title[320];
        evq_board_title(board, m, title, sizeof title);
        (void)putchar(' ');
        print_right(title, METRIC_COLUMNS);
        (void)putchar(' '); // Where the star of the best stands.
    }
    (void)printf(" %8s %8s %8s  %s", "WAIT", "LOAD", "COMPUTE", "WHERE");
    (void)printf("%s\n", evq_terminal_colour(live->terminal, EVQ_COLOUR_NONE));
    live->header_done = true;
    live->metrics_shown = board->metric_count;
}

static void print_values(const struct evq_live *live, const struct evq_board_row *row)
{
    const struct evq_board *board = live->board;
    for (size_t m = 0; m < board->metric_count; m++) {
        bool best = board->metrics[m].best == (size_t)(row - board->rows);
        if (!row->has[m]) {
            (void)printf(" %*s ", METRIC_COLUMNS, "-");
            continue;
        }
        (void)printf("%s %*.6g%s%s",
                     best ? evq_terminal_colour(live->terminal, EVQ_COLOUR_GREEN) : "",
                     METRIC_COLUMNS, row->values[m], best ? "*" : " ",
                     best ? evq_terminal_colour(live->terminal, EVQ_COLOUR_NONE) : "");
    }
}

void evq_live_row(struct evq_live *live, const struct evq_board_row *row)
{
    char wait[EVQ_TERMINAL_SPAN_BYTES];
    char load[EVQ_TERMINAL_SPAN_BYTES];
    char compute[EVQ_TERMINAL_SPAN_BYTES];
    char text[512];

    evq_live_erase(live);
    if (!live->header_done || live->metrics_shown != live->board->metric_count) {
        print_header(live);
    }
    if (live->show_run) {
        evq_error_escape(row->run, strlen(row->run), text, sizeof text);
        (void)printf("%-17.17s ", text);
    }
    (void)printf("%8" PRId64, row->step);
    if (row->state != EVQ_JOB_DONE) {
        evq_error_escape(row->reason, strlen(row->reason), text, sizeof text);
        (void)printf(" %s%s%s%s%s\n", evq_terminal_colour(live->terminal, EVQ_COLOUR_RED),
                     evq_job_state_name(row->state), text[0] != '\0' ? ": " : "", text,
                     evq_terminal_colour(live->terminal, EVQ_COLOUR_NONE));
        return;
    }
    print_values(live, row);
    evq_error_escape(row->where, strlen(row->where), text, sizeof text);
    (void)printf(" %8s %8s %8s  %s\n", evq_terminal_span(row->timing.queued_ms, wait),
                 evq_terminal_took(row->timing.load_us, load),
                 evq_terminal_took(row->timing.compute_us, compute), text);
    (void)fflush(stdout);
}

void evq_live_footer_clear(struct evq_live *live)
{
    live->footer_count = 0;
}

void evq_live_footer_line(struct evq_live *live, const char *format, ...)
{
    if (live->footer_count == EVQ_LIVE_FOOTER_LINES_MAX) {
        return;
    }
    char raw[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    evq_error_escape(raw, strlen(raw), live->footer[live->footer_count], sizeof live->footer[0]);
    live->footer_count++;
}

/* A wrapped line would break the count of lines to go back: cut to the width. */
static size_t cut(const char *text, size_t width)
{
    size_t bytes = 0;
    size_t columns = 0;
    while (text[bytes] != '\0') {
        bool starts = ((unsigned char)text[bytes] & 0xC0) != 0x80;
        if (starts && columns + 1 > width) {
            break;
        }
        columns += starts;
        bytes++;
    }
    return bytes;
}

void evq_live_redraw(struct evq_live *live)
{
    if (!live->terminal->is_tty || live->terminal->json) {
        (void)fflush(stdout);
        return;
    }
    bool same = live->footer_lines > 0 && live->footer_count == live->drawn_count;
    for (size_t i = 0; same && i < live->footer_count; i++) {
        same = strcmp(live->footer[i], live->drawn[i]) == 0;
    }
    if (same) {
        return; // Repeating it would only flicker.
    }
    memcpy(live->drawn, live->footer, sizeof live->drawn);
    live->drawn_count = live->footer_count;
    evq_live_erase(live);
    size_t width = live->terminal->width > 1 ? (size_t)live->terminal->width - 1 : 79;
    size_t room = live->terminal->height > 2 ? (size_t)live->terminal->height - 1 : 1;
    for (size_t i = 0; i < live->footer_count && i < room; i++) {
        (void)printf("%s%.*s%s\n", evq_terminal_colour(live->terminal, EVQ_COLOUR_DIM),
                     (int)cut(live->footer[i], width), live->footer[i],
                     evq_terminal_colour(live->terminal, EVQ_COLOUR_NONE));
        live->footer_lines++;
    }
    (void)fflush(stdout);
}
