/*
 * How to print on this terminal: colour, width, spans and numbers. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_TERMINAL_H
#define EVQ_PRODUCER_CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct evq_terminal {
    bool is_tty; // Whether standard output is a terminal.
    bool colour;
    bool json;
    bool plain;
    bool quiet;
    int width;  // Columns. 0: it is no terminal, so nothing is cut.
    int height; // Rows. 0: it is no terminal.
};

/* colour_when: "auto", "always", "never". */
void evq_terminal_probe(struct evq_terminal *terminal, const char *colour_when);
void evq_terminal_resize(struct evq_terminal *terminal);

enum evq_colour {
    EVQ_COLOUR_NONE,
    EVQ_COLOUR_BOLD,
    EVQ_COLOUR_DIM,
    EVQ_COLOUR_RED,
    EVQ_COLOUR_GREEN,
    EVQ_COLOUR_YELLOW,
    EVQ_COLOUR_COUNT
};
/* The escape sequence of a colour, or "" without colours. EVQ_COLOUR_NONE resets. */
const char *evq_terminal_colour(const struct evq_terminal *terminal, enum evq_colour colour);

/* "850 ms", "12 s", "3 min", "5 h", "2 d" for a duration; "" for a negative one. Returns out. */
#define EVQ_TERMINAL_SPAN_BYTES 24
char *evq_terminal_span(int64_t span_ms, char out[EVQ_TERMINAL_SPAN_BYTES]);
/* A duration of work with three digits: "3.21 ms", "1.05 s", "2 min 5 s". */
char *evq_terminal_took(int64_t span_us, char out[EVQ_TERMINAL_SPAN_BYTES]);
/* "512 B", "1.2 GiB". */
char *evq_terminal_bytes(int64_t bytes, char out[EVQ_TERMINAL_SPAN_BYTES]);

/* A metric with six digits. Whole numbers that a double holds exactly are written in full. */
#define EVQ_TERMINAL_NUMBER_BYTES 32
char *evq_terminal_number(double value, char out[EVQ_TERMINAL_NUMBER_BYTES]);

/* How many columns UTF-8 text takes. Each code point counts as one. */
size_t evq_terminal_columns(const char *text, size_t bytes);

/* The last state of a line that was overwritten with carriage returns, such as a progress bar.
 * Returns a part of the line. *bytes: the length of the line, then of that part. */
const char *evq_terminal_last_state(const char *line, size_t *bytes);

#endif
