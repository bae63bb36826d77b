/*
 * Exchanges lines with a program over two pipes, without ever blocking on the program. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_LINE_PIPE_H
#define EVQ_WORKER_EVALUATORS_LINE_PIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/buffer.h"

#define EVQ_LINE_PIPE_BYTES_MAX (1U << 20) // The longest line.

struct evq_line_pipe {
    int in_fd;  // The program's standard input; -1: closed. Both descriptors are non-blocking.
    int out_fd; // The program's standard output.
    struct evq_buffer said; // What the program wrote and nobody has taken yet.
};

void evq_line_pipe_init(struct evq_line_pipe *lines);
// Closes the pipes and drops unread lines. The object can be used again.
void evq_line_pipe_close(struct evq_line_pipe *lines);
void evq_line_pipe_free(struct evq_line_pipe *lines);

/* Sends the bytes before the deadline (monotonic ms), because a program that hangs does not read.
 * EVQ_E_TIMEOUT, EVQ_E_IO. */
enum evq_status evq_line_pipe_send(struct evq_line_pipe *lines, const void *data, size_t bytes,
                                   int64_t deadline_ms) EVQ_CHECK_RESULT;
/* Reads what the program wrote, without waiting. False: the program closed its standard output. */
bool evq_line_pipe_fill(struct evq_line_pipe *lines);
/* The first whole line without its newline; NULL: there is none. Valid until the line is dropped.
 */
const char *evq_line_pipe_first(const struct evq_line_pipe *lines, size_t *ret_bytes);
void evq_line_pipe_drop(struct evq_line_pipe *lines,
                        size_t bytes); // Drops the first line, which has so many bytes.

#endif
