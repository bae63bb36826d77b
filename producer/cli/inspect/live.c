#include "producer/cli/inspect/live.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define STEP_COLUMNS      8
#define NAME_COLUMNS      10 // A variant, suite or task.
#define METRIC_COLUMNS    13
#define TIMES_COLUMNS     27
#define WHERE_COLUMNS     95 // A terminal of this width truncates nothing.
#define WHERE_COLUMNS_MIN 5

void evq_live_init(struct evq_live *live, const struct evq_terminal *terminal,
                   struct evq_result_table *results)
{
    memset(live, 0, sizeof *live);
    live->terminal = terminal;
    live->results = results;
}

void evq_live_erase(struct evq_live *live)
{
    if (live->footer_lines > 0) {
        // Up over the footer, then clear from there to the end of the screen.
        (void)printf("\033[%zuA\r\033[J", live->footer_lines);
        (void)fflush(stdout); // The next text goes to standard error and must follow this.
        live->footer_lines = 0;
    }
}

/* Returns how many bytes of text fill at most width columns. A wrapped line would make the footer's
 * count of lines wrong. */
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

/* A text on the right of width columns, cut at its end. */
static void print_right(const char *text, size_t width)
{
    char shown[512];
    evq_error_escape(text, strlen(text), shown, sizeof shown);
    size_t bytes = cut(shown, width);
    (void)printf("%*s%.*s", (int)(width - evq_terminal_columns(shown, bytes)), "", (int)bytes,
                 shown);
}

/* A text padded or cut to width. */
static void print_left(const char *text, size_t width)
{
    char shown[512];
    evq_error_escape(text, strlen(text), shown, sizeof shown);
    size_t bytes = cut(shown, width);
    (void)printf("%.*s%*s ", (int)bytes, shown, (int)(width - evq_terminal_columns(shown, bytes)),
                 "");
}

/* The columns on the right that fit behind the others; all where nothing is cut. */
struct room {
    bool times;
    size_t where; // Columns for it; 0: left out.
};

static struct room room_of(const struct evq_live *live)
{
    const struct evq_result_table_shape *shape = &live->shape;
    struct room room = {.times = true, .where = WHERE_COLUMNS};
    size_t used = STEP_COLUMNS +
                  (size_t)(shape->variant + shape->suite + shape->task) * (NAME_COLUMNS + 1) +
                  shape->name_count * (METRIC_COLUMNS + 2);
    if (live->terminal->width > 0) {
        size_t width = (size_t)live->terminal->width;
        room.times = used + TIMES_COLUMNS <= width;
        used += TIMES_COLUMNS + 2;
        room.where = width > used + WHERE_COLUMNS_MIN ? width - used : 0;
    }
    return room;
}

/* Columns of names begin one space after the step. */
static void print_names(const struct evq_live *live, const char *variant, const char *suite,
                        const char *task)
{
    const struct evq_result_table_shape *shape = &live->shape;
    if (shape->variant || shape->suite || shape->task) {
        (void)putchar(' ');
    }
    if (shape->variant) {
        print_left(variant, NAME_COLUMNS);
    }
    if (shape->suite) {
        print_left(suite, NAME_COLUMNS);
    }
    if (shape->task) {
        print_left(task, NAME_COLUMNS);
    }
}

static void print_header(struct evq_live *live)
{
    struct room room = room_of(live);
    (void)fputs(evq_terminal_colour(live->terminal, EVQ_COLOUR_BOLD), stdout);
    (void)printf("%*s", STEP_COLUMNS, "STEP");
    print_names(live, "VARIANT", "SUITE", "TASK");
    for (size_t n = 0; n < live->shape.name_count; n++) {
        (void)putchar(' ');
        print_right(live->results->metrics[live->shape.names[n]].name, METRIC_COLUMNS);
        (void)putchar(' '); // The place of the star of the best.
    }
    if (room.times) {
        (void)printf(" %8s %8s %8s", "WAIT", "LOAD", "COMPUTE");
    }
    (void)printf("%s%s\n", room.where > 0 ? "  WHERE" : "",
                 evq_terminal_colour(live->terminal, EVQ_COLOUR_NONE));
    live->header_done = true;
}

static void print_values(const struct evq_live *live, const struct evq_result_table_row *row,
                         const char *task)
{
    const struct evq_result_table *results = live->results;
    for (size_t n = 0; n < live->shape.name_count; n++) {
        const char *name = results->metrics[live->shape.names[n]].name;
        size_t m = evq_result_table_metric(results, row, task, name);
        if (m == SIZE_MAX) {
            (void)printf(" %*s ", METRIC_COLUMNS, "-");
            continue;
        }
        bool best = results->metrics[m].best == (size_t)(row - results->rows);
        char number[EVQ_TERMINAL_NUMBER_BYTES];
        (void)printf("%s %*s%s%s",
                     best ? evq_terminal_colour(live->terminal, EVQ_COLOUR_GREEN) : "",
                     METRIC_COLUMNS, evq_terminal_number(row->values[m], number), best ? "*" : " ",
                     best ? evq_terminal_colour(live->terminal, EVQ_COLOUR_NONE) : "");
    }
}

static void print_begin(const struct evq_live *live, const struct evq_result_table_row *row,
                        const char *task)
{
    char step[EVQ_RESULT_TABLE_STEP_BYTES];
    evq_result_table_step_text(row->job, row->step, step);
    (void)printf("%*s", STEP_COLUMNS, step);
    print_names(live, row->variant, row->suite, task);
}

static void print_task(const struct evq_live *live, const struct evq_result_table_row *row,
                       const char *task)
{
    char wait[EVQ_TERMINAL_SPAN_BYTES];
    char load[EVQ_TERMINAL_SPAN_BYTES];
    char compute[EVQ_TERMINAL_SPAN_BYTES];
    char text[512];
    struct room room = room_of(live);

    print_begin(live, row, task);
    print_values(live, row, task);
    if (room.times) {
        (void)printf(" %8s %8s %8s", evq_terminal_span(row->timing.queued_ms, wait),
                     evq_terminal_took(row->timing.load_us, load),
                     evq_terminal_took(row->timing.compute_us, compute));
    }
    if (room.where > 0) {
        evq_error_escape(row->where, strlen(row->where), text, sizeof text);
        (void)printf("  %.*s", (int)cut(text, room.where), text);
    }
    (void)putchar('\n');
}

static bool shape_changed(const struct evq_result_table_shape *a,
                          const struct evq_result_table_shape *b)
{
    return a->variant != b->variant || a->suite != b->suite || a->task != b->task ||
           a->name_count != b->name_count;
}

void evq_live_row(struct evq_live *live, const struct evq_result_table_row *row, const char *cause)
{
    const char *tasks[EVQ_RESULT_TABLE_METRICS_MAX];

    evq_live_erase(live);
    if (!live->header_done || shape_changed(&live->results->shape, &live->shape)) {
        live->shape = live->results->shape;
        print_header(live);
    }
    size_t count = evq_result_table_tasks(live->results, row, tasks);
    if (row->state != EVQ_JOB_DONE || count == 0) {
        print_begin(live, row, "");
        (void)printf(
            " %s%s%s%s%s\n",
            row->state != EVQ_JOB_DONE ? evq_terminal_colour(live->terminal, EVQ_COLOUR_RED) : "",
            evq_job_state_name(row->state), cause[0] != '\0' ? ": " : "", cause,
            evq_terminal_colour(live->terminal, EVQ_COLOUR_NONE));
        return;
    }
    for (size_t t = 0; t < count; t++) {
        print_task(live, row, tasks[t]);
    }
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
    char raw[EVQ_LIVE_LINE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    evq_error_escape(raw, strlen(raw), live->footer[live->footer_count], sizeof live->footer[0]);
    live->footer_count++;
}

void evq_live_bars_clear(struct evq_live *live)
{
    live->bar_count = 0;
}

void evq_live_bar(struct evq_live *live, const char *text)
{
    if (live->bar_count < EVQ_LIVE_BARS_MAX) {
        evq_error_escape(text, strlen(text), live->bars[live->bar_count], sizeof live->bars[0]);
        live->bar_count++;
    }
}

static const char *line_at(const struct evq_live *live, size_t at)
{
    return at < live->bar_count ? live->bars[at] : live->footer[at - live->bar_count];
}

void evq_live_redraw(struct evq_live *live)
{
    const size_t count = live->bar_count + live->footer_count;
    if (!live->terminal->is_tty || live->terminal->json) {
        (void)fflush(stdout);
        return;
    }
    bool same = live->footer_lines > 0 && count == live->drawn_count;
    for (size_t i = 0; same && i < count; i++) {
        same = strcmp(line_at(live, i), live->drawn[i]) == 0;
    }
    if (same) {
        return; // Repeating it would only flicker.
    }
    evq_live_erase(live);
    live->drawn_count = count;
    size_t width = live->terminal->width > 1 ? (size_t)live->terminal->width - 1 : 79;
    size_t room = live->terminal->height > 2 ? (size_t)live->terminal->height - 1 : 1;
    for (size_t i = 0; i < count; i++) {
        const char *line = line_at(live, i);
        const bool bar = i < live->bar_count;
        memcpy(live->drawn[i], line, strlen(line) + 1);
        if (i < room) {
            (void)printf("%s%.*s%s\n",
                         bar ? "" : evq_terminal_colour(live->terminal, EVQ_COLOUR_DIM),
                         (int)cut(line, width), line,
                         bar ? "" : evq_terminal_colour(live->terminal, EVQ_COLOUR_NONE));
            live->footer_lines++;
        }
    }
    (void)fflush(stdout);
}
