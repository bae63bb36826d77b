#include "worker/evaluators/line_pipe.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"

void evq_line_pipe_init(struct evq_line_pipe *lines)
{
    lines->in_fd = lines->out_fd = -1;
    evq_buffer_init(&lines->said, (size_t)EVQ_LINE_PIPE_BYTES_MAX * 2);
}

void evq_line_pipe_close(struct evq_line_pipe *lines)
{
    evq_file_close(&lines->in_fd); // The program will not read the rest.
    evq_file_close(&lines->out_fd);
    lines->in_fd = lines->out_fd = -1;
    evq_buffer_clear(&lines->said);
}

void evq_line_pipe_free(struct evq_line_pipe *lines)
{
    evq_line_pipe_close(lines);
    evq_buffer_free(&lines->said);
}

enum evq_status evq_line_pipe_send(struct evq_line_pipe *lines, const void *data, size_t bytes,
                                   int64_t deadline_ms)
{
    const char *at = data;

    while (bytes > 0) {
        const ssize_t written = write(lines->in_fd, at, bytes);
        if (written > 0) {
            at += written;
            bytes -= (size_t)written;
        } else if (errno == EAGAIN) {
            struct pollfd item = {.fd = lines->in_fd, .events = POLLOUT};
            if (evq_clock_left_ms(deadline_ms) == 0) {
                return EVQ_E_TIMEOUT;
            }
            (void)poll(&item, 1, evq_clock_left_ms(deadline_ms));
        } else if (errno != EINTR) {
            return EVQ_E_IO;
        }
    }
    return EVQ_OK;
}

bool evq_line_pipe_fill(struct evq_line_pipe *lines)
{
    uint8_t chunk[65536];

    while (lines->said.bytes <= EVQ_LINE_PIPE_BYTES_MAX) {
        const ssize_t got = read(lines->out_fd, chunk, sizeof(chunk));
        if (got > 0) {
            evq_buffer_append(&lines->said, chunk, (size_t)got);
        } else if (got == 0) {
            return false;
        } else if (errno != EINTR) {
            break;
        }
    }
    return true;
}

const char *evq_line_pipe_first(const struct evq_line_pipe *lines, size_t *ret_bytes)
{
    const uint8_t *end =
        lines->said.bytes > 0 ? memchr(lines->said.data, '\n', lines->said.bytes) : NULL;

    if (end == NULL) {
        return NULL;
    }
    *ret_bytes = (size_t)(end - lines->said.data);
    return (const char *)lines->said.data;
}

void evq_line_pipe_drop(struct evq_line_pipe *lines, size_t bytes)
{
    evq_buffer_consume(&lines->said, bytes + 1);
}
