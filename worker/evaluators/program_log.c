#include "worker/evaluators/program_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"

#define READ_BYTES 16384
// A program that writes without end must not keep us from checking the time.
#define READS_PER_CALL 16
#define CUT_NOTE       "\n[evalq: the log reached its limit; the rest was dropped]\n"

void evq_program_log_switch(struct evq_program_log *log, const char *path)
{
    evq_file_close(&log->file_fd);
    log->bytes = 0;
    log->tail_bytes = log->tail_at = 0;
    log->file_due = path != NULL;
    (void)snprintf(log->path, sizeof(log->path), "%s", path != NULL ? path : "");
    if (path != NULL) {
        (void)unlink(path); // A file of an earlier attempt may have this name.
    }
}

enum evq_status evq_program_log_open(const char *path, int64_t bytes_max,
                                     struct evq_program_log *ret_log, struct evq_error *err)
{
    int fds[2];

    memset(ret_log, 0, sizeof(*ret_log));
    ret_log->read_fd = ret_log->write_fd = ret_log->file_fd = -1;
    ret_log->bytes_max = bytes_max;
    evq_program_log_switch(ret_log, path);
    if (pipe2(fds, O_CLOEXEC) != 0) {
        const int pipe_errno = errno;
        evq_program_log_close(ret_log);
        return evq_error_set(err, EVQ_E_IO, "pipe for the log: %s", strerror(pipe_errno));
    }
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    ret_log->read_fd = fds[0];
    ret_log->write_fd = fds[1];
    return EVQ_OK;
}

void evq_program_log_close(struct evq_program_log *log)
{
    evq_file_close(&log->read_fd);
    evq_file_close(&log->write_fd);
    evq_file_close(&log->file_fd);
}

void evq_program_log_started(struct evq_program_log *log)
{
    evq_file_close(&log->write_fd);
}

static void file_write(struct evq_program_log *log, const uint8_t *data, size_t bytes)
{
    if (log->file_due) {
        log->file_due = false;
        log->file_fd = open(log->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    }
    // If the disk is full, the log is lost but the evaluation goes on.
    if (log->file_fd >= 0 && evq_file_write(log->file_fd, data, bytes, "log", NULL) != EVQ_OK) {
        evq_file_close(&log->file_fd);
    }
}

static void output_take(struct evq_program_log *log, const uint8_t *data, size_t bytes)
{
    const int64_t room = log->bytes_max - log->bytes;

    if (room > 0 && (int64_t)bytes < room) {
        file_write(log, data, bytes);
    } else if (room > 0) {
        file_write(log, data, (size_t)room);
        file_write(log, (const uint8_t *)CUT_NOTE, sizeof(CUT_NOTE) - 1);
    }
    log->bytes += (int64_t)bytes;
    for (size_t i = bytes > EVQ_PROGRAM_LOG_TAIL_BYTES ? bytes - EVQ_PROGRAM_LOG_TAIL_BYTES : 0;
         i < bytes; i++) {
        log->tail[log->tail_at] = data[i];
        log->tail_at = (log->tail_at + 1) % EVQ_PROGRAM_LOG_TAIL_BYTES;
        if (log->tail_bytes < EVQ_PROGRAM_LOG_TAIL_BYTES) {
            log->tail_bytes++;
        }
    }
}

const char *evq_program_log_where(const struct evq_program_log *log)
{
    return log->file_fd >= 0 && log->path[0] != '\0' ? log->path : "none";
}

void evq_program_log_note(struct evq_program_log *log, const char *text)
{
    output_take(log, (const uint8_t *)text, strlen(text));
}

bool evq_program_log_read(struct evq_program_log *log)
{
    uint8_t chunk[READ_BYTES];

    for (int i = 0; i < READS_PER_CALL && log->read_fd >= 0; i++) {
        const ssize_t got = read(log->read_fd, chunk, sizeof(chunk));
        if (got > 0) {
            output_take(log, chunk, (size_t)got);
            log->changes++;
        } else if (got == 0) {
            evq_file_close(&log->read_fd);
        } else if (errno != EINTR) {
            break; // EAGAIN: everything was read.
        }
    }
    return log->read_fd >= 0;
}

static size_t tail_copy(const struct evq_program_log *log, char *out)
{
    const size_t first =
        (log->tail_at + EVQ_PROGRAM_LOG_TAIL_BYTES - log->tail_bytes) % EVQ_PROGRAM_LOG_TAIL_BYTES;
    for (size_t i = 0; i < log->tail_bytes; i++) {
        out[i] = (char)log->tail[(first + i) % EVQ_PROGRAM_LOG_TAIL_BYTES];
    }
    return log->tail_bytes;
}

/* Escapes control bytes line by line and keeps the newlines. */
static size_t text_escape(const char *text, size_t bytes, char *out, size_t out_bytes)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t at = 0; at < bytes && used + 1 < out_bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t line = end != NULL ? (size_t)(end - text) - at : bytes - at;
        (void)evq_error_escape(text + at, line, out + used, out_bytes - used);
        used += strlen(out + used);
        at += line;
        if (end != NULL) {
            at++;
            if (used + 1 < out_bytes) {
                out[used++] = '\n';
                out[used] = '\0';
            }
        }
    }
    return used;
}

void evq_program_log_tail(const struct evq_program_log *log, char *out, size_t out_bytes)
{
    char text[EVQ_PROGRAM_LOG_TAIL_BYTES];
    const size_t bytes = tail_copy(log, text);
    const size_t keep = out_bytes - 1 < bytes ? out_bytes - 1 : bytes;

    (void)text_escape(text + (bytes - keep), keep, out, out_bytes);
}

void evq_program_log_line(const struct evq_program_log *log, char *out, size_t out_bytes)
{
    char text[EVQ_PROGRAM_LOG_TAIL_BYTES];
    size_t end = tail_copy(log, text);

    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r' || text[end - 1] == ' ')) {
        end--;
    }
    size_t start = end;
    // A progress bar separates its states by carriage returns; the last state is shown.
    while (start > 0 && text[start - 1] != '\n' && text[start - 1] != '\r') {
        start--;
    }
    (void)evq_error_escape(text + start, end - start, out, out_bytes);
}
