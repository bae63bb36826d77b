#include "producer/cli/terminal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void evq_terminal_resize(struct evq_terminal *terminal)
{
    struct winsize size;
    terminal->width = 0;
    terminal->height = 0;
    if (terminal->is_tty && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
        terminal->width = size.ws_col > 0 ? size.ws_col : 80;
        terminal->height = size.ws_row > 0 ? size.ws_row : 24;
    }
}

void evq_terminal_probe(struct evq_terminal *terminal, const char *colour_when)
{
    const char *none = getenv("NO_COLOR");
    const char *term = getenv("TERM");

    terminal->is_tty = isatty(STDOUT_FILENO) == 1 && term != NULL && strcmp(term, "dumb") != 0;
    if (strcmp(colour_when, "auto") == 0) {
        terminal->colour = terminal->is_tty && (none == NULL || none[0] == '\0');
    } else {
        terminal->colour = strcmp(colour_when, "always") == 0;
    }
    evq_terminal_resize(terminal);
}

const char *evq_terminal_colour(const struct evq_terminal *terminal, enum evq_colour colour)
{
    static const char *const codes[EVQ_COLOUR_COUNT] = {"\033[0m",  "\033[1m",  "\033[2m",
                                                        "\033[31m", "\033[32m", "\033[33m"};
    return terminal->colour ? codes[colour] : "";
}

char *evq_terminal_span(int64_t span_ms, char out[EVQ_TERMINAL_SPAN_BYTES])
{
    int64_t s = span_ms / 1000;
    if (span_ms < 0) {
        out[0] = '\0';
    } else if (span_ms < 1000) {
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, "%d ms", (int)span_ms);
    } else if (s < 120) {
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, "%d s", (int)s);
    } else if (s < 7200) {
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, "%d min", (int)(s / 60));
    } else if (s < 172800) {
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, "%d h", (int)(s / 3600));
    } else {
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, "%" PRId64 " d", s / 86400);
    }
    return out;
}

char *evq_terminal_took(int64_t span_us, char out[EVQ_TERMINAL_SPAN_BYTES])
{
    double us = (double)span_us;
    if (span_us < 0) {
        out[0] = '\0';
    } else if (us < 999.5) {
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, "%d us", (int)span_us);
    } else if (us < 999.5e3) {
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, us < 9.995e3 ? "%.2f ms" : "%.0f ms",
                       us / 1e3);
    } else if (us < 120e6) {
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, us < 9.995e6 ? "%.2f s" : "%.0f s", us / 1e6);
    } else {
        int64_t s = span_us / 1000000;
        (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES, "%" PRId64 " min %d s", s / 60, (int)(s % 60));
    }
    return out;
}

char *evq_terminal_bytes(int64_t bytes, char out[EVQ_TERMINAL_SPAN_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(out, EVQ_TERMINAL_SPAN_BYTES,
                   unit == 0 || value >= 100.0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

char *evq_terminal_number(double value, char out[EVQ_TERMINAL_NUMBER_BYTES])
{
    bool whole = fabs(value) < 9007199254740992.0 && value == floor(value); // 2^53; NaN: neither.
    (void)snprintf(out, EVQ_TERMINAL_NUMBER_BYTES, whole ? "%.0f" : "%.6g", value);
    return out;
}

size_t evq_terminal_columns(const char *text, size_t bytes)
{
    size_t columns = 0;
    for (size_t i = 0; i < bytes; i++) {
        columns += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return columns;
}

const char *evq_terminal_last_state(const char *line, size_t *bytes)
{
    size_t end = *bytes;
    while (end > 0 && line[end - 1] == '\r') {
        end--; // A return at the end overwrites nothing.
    }
    size_t begin = end;
    while (begin > 0 && line[begin - 1] != '\r') {
        begin--;
    }
    *bytes = end - begin;
    return line + begin;
}
