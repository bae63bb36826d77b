/*
 * The log of one attempt: what a program writes. The file is bounded, and the last bytes are kept
 * in memory. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PROGRAM_LOG_H
#define EVQ_WORKER_EVALUATORS_PROGRAM_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_PROGRAM_LOG_TAIL_BYTES 4096

struct evq_program_log {
    int read_fd;   // Poll it for reading; non-blocking. -1: the other side has closed it.
    int write_fd;  // Standard output and error of the program; evq_program_log_started() closes it.
    int file_fd;   // -1: there is no file, or it is not made yet.
    bool file_due; // The file is made with the first byte.
    int64_t bytes;
    int64_t bytes_max;
    uint8_t tail[EVQ_PROGRAM_LOG_TAIL_BYTES]; // A ring buffer.
    size_t tail_bytes;
    size_t tail_at;   // Where the next byte goes.
    uint64_t changes; // Increases with each read that returned data.
    char path[4096];
};

/* path NULL: no file. An existing file of that name is removed. The new one is made with the first
 * byte, because making a file costs up to a millisecond and most programs are silent. After
 * bytes_max bytes the rest is dropped, and the log says so. */
enum evq_status evq_program_log_open(const char *path, int64_t bytes_max,
                                     struct evq_program_log *ret_log,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_program_log_close(struct evq_program_log *log); // Also accepts a log that failed to open.
void evq_program_log_started(
    struct evq_program_log *log); // Call it when the program has its copy of write_fd.

/* Continues in another file (NULL: none), with count and tail reset. */
void evq_program_log_switch(struct evq_program_log *log, const char *path);

/* Reads what is there, without waiting. False: the other side has closed it. */
bool evq_program_log_read(struct evq_program_log *log);

/* The path of the log file; "none": nothing was written, or the file could not be made. */
const char *evq_program_log_where(const struct evq_program_log *log);

/* Adds a line of our own, with its newline. */
void evq_program_log_note(struct evq_program_log *log, const char *text);

/* Writes as much of the tail as fits, as text. Control bytes are escaped, except newlines. */
void evq_program_log_tail(const struct evq_program_log *log, char *out, size_t out_bytes);
/* Writes the last line that is not empty, escaped. */
void evq_program_log_line(const struct evq_program_log *log, char *out, size_t out_bytes);

#endif
