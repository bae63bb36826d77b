/*
 * The log of one attempt: what a program writes, bounded on disk, with its last bytes at hand. One
 * thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PROGRAM_LOG_H
#define EVQ_WORKER_EVALUATORS_PROGRAM_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_PROGRAM_LOG_TAIL_BYTES 4096

struct evq_program_log {
    int read_fd;   // To poll; non-blocking. -1 once the other side has closed.
    int write_fd;  // For the program's stdout and stderr; closed by evq_program_log_started().
    int file_fd;   // -1: no log file, or none yet.
    bool file_due; // It is made with the first byte.
    int64_t bytes;
    int64_t bytes_max;
    uint8_t tail[EVQ_PROGRAM_LOG_TAIL_BYTES]; // A ring.
    size_t tail_bytes;
    size_t tail_at;   // Where the next byte goes.
    uint64_t changes; // Rises with each read that brought something.
    char path[4096];
};

/* path NULL: no file. One of that name is removed; the new one is made when there is something to
 * write: making a file costs up to a millisecond, and most programs are silent. Past bytes_max the
 * rest is read and dropped, which the log says. */
enum evq_status evq_program_log_open(const char *path, int64_t bytes_max,
                                     struct evq_program_log *ret_output,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_program_log_close(
    struct evq_program_log *output); // Accepts an output that failed to open.
void evq_program_log_started(
    struct evq_program_log *output); // The program has its copy of write_fd.

/* Goes on into another log file (NULL: none), with the count and the tail begun anew. */
void evq_program_log_switch(struct evq_program_log *output, const char *path);

/* Takes what is there, without waiting; false once the other side has closed. */
bool evq_program_log_read(struct evq_program_log *output);

/* The log file's path; "none": nothing was written, or it could not be. */
const char *evq_program_log_where(const struct evq_program_log *output);

/* Adds a line of ours, with its newline. */
void evq_program_log_note(struct evq_program_log *output, const char *text);

/* The tail as text, control bytes escaped (newlines kept), as much of its end as fits. */
void evq_program_log_tail(const struct evq_program_log *output, char *out, size_t out_bytes);
/* The last line that is not empty, escaped. */
void evq_program_log_line(const struct evq_program_log *output, char *out, size_t out_bytes);

#endif
