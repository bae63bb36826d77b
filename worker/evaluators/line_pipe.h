/*
 * Lines to and from a program over two pipes of ours, none of which may hold us up. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_LINE_PIPE_H
#define EVQ_WORKER_EVALUATORS_LINE_PIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/buffer.h"

#define EVQ_LINES_BYTES_MAX (1U << 20) // Of one line.

struct evq_line_pipe {
    int in_fd;              // The program's standard input; -1: closed. Non-blocking, as the other.
    int out_fd;             // Its standard output.
    struct evq_buffer said; // What it wrote and nobody has taken yet.
};

void evq_line_pipe_init(struct evq_line_pipe *lines);
void evq_line_pipe_close(struct evq_line_pipe *lines); // Forgets what was said. May be used again.
void evq_line_pipe_free(struct evq_line_pipe *lines);

/* Bounded by time (monotonic ms), since a program that hangs does not read. EVQ_E_TIMEOUT,
 * EVQ_E_IO. */
enum evq_status evq_line_pipe_send(struct evq_line_pipe *lines, const void *data, size_t bytes,
                                   int64_t deadline_ms) EVQ_CHECK_RESULT;
/* Takes what the program wrote, without waiting; false when it has closed its standard output. */
bool evq_line_pipe_fill(struct evq_line_pipe *lines);
/* The first whole line without its end; NULL: there is none. Valid until it is dropped. */
const char *evq_line_pipe_first(const struct evq_line_pipe *lines, size_t *ret_bytes);
void evq_line_pipe_drop(struct evq_line_pipe *lines,
                        size_t bytes); // The first line, of so many bytes.

#endif
