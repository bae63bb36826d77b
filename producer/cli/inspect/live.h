/*
 * Prints results of a run as they arrive, a line per task of each finished job. On a terminal, a
 * footer below shows what runs and waits and is rewritten in place. Other output appears above the
 * footer. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_INSPECT_LIVE_H
#define EVQ_PRODUCER_CLI_INSPECT_LIVE_H

#include "producer/cli/inspect/result_table.h"

#define EVQ_LIVE_FOOTER_LINES_MAX 8
#define EVQ_LIVE_BARS_MAX         6
#define EVQ_LIVE_LINE_BYTES       1024

struct evq_live {
    const struct evq_terminal *terminal;
    struct evq_result_table *results;    // Borrowed.
    struct evq_result_table_shape shape; // The columns of the header that was printed last.
    bool header_done;
    size_t footer_lines; // Lines of the footer that are on the screen now.
    char bars[EVQ_LIVE_BARS_MAX]
             [EVQ_LIVE_LINE_BYTES]; // Lines of other output that are rewritten above the footer.
    size_t bar_count;
    char footer[EVQ_LIVE_FOOTER_LINES_MAX][EVQ_LIVE_LINE_BYTES];
    size_t footer_count;
    char drawn[EVQ_LIVE_BARS_MAX + EVQ_LIVE_FOOTER_LINES_MAX][EVQ_LIVE_LINE_BYTES]; // Shown now.
    size_t drawn_count;
};

void evq_live_init(struct evq_live *live, const struct evq_terminal *terminal,
                   struct evq_result_table *results);

/* Prints the row of a job that has ended. cause: why the job is not done, escaped. */
void evq_live_row(struct evq_live *live, const struct evq_result_table_row *row, const char *cause);
/* Sets the footer. evq_live_redraw() shows it. Lines past the limit are left out. */
void evq_live_footer_clear(struct evq_live *live);
void evq_live_footer_line(struct evq_live *live, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Sets the lines above the footer that are rewritten, such as progress bars. */
void evq_live_bars_clear(struct evq_live *live);
void evq_live_bar(struct evq_live *live, const char *text);
void evq_live_redraw(struct evq_live *live);
/* Removes the footer from the screen, before other output or at the end. */
void evq_live_erase(struct evq_live *live);

#endif
