/*
 * A program that the logger starts and talks to: results go to its standard input, and its answers,
 * if any, come as lines from its standard output. It has a process group of its own, which is
 * killed as a whole. One thread.
 */
#ifndef EVQ_LOGGER_SINKS_HELPER_PROGRAM_H
#define EVQ_LOGGER_SINKS_HELPER_PROGRAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/buffer.h"

/* The caller sets who and stop. Everything else begins as zeros. */
struct evq_helper {
    const char *who;         // "sink 'wandb'". Messages begin with it.
    const atomic_bool *stop; // Set: the logger stops, and waits end 3 s later. May be NULL.
    pid_t pid;               // 0: it does not run.
    int fd;
    struct evq_buffer text; // Received and not yet returned.
    int64_t grace_ms;       // When the 3 s after a stop end, monotonic. 0: there was no stop yet.
};

/* Starts argv, which ends with NULL, without a shell. answers: the helper's standard output is
 * read with evq_helper_line(); otherwise it goes to the log. EVQ_E_IO: it cannot be started. */
enum evq_status evq_helper_start(struct evq_helper *helper, const char *const *argv, bool answers,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Sends all bytes until the monotonic time deadline_ms. EVQ_E_IO: the helper ended or stopped
 * reading, or the logger stops. EVQ_E_TIMEOUT. */
enum evq_status evq_helper_send(struct evq_helper *helper, const void *data, size_t bytes,
                                int64_t deadline_ms, struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads a line, without its newline, valid until the next call. EVQ_E_IO: the helper ended, or the
 * logger stops. EVQ_E_TIMEOUT. EVQ_E_LIMIT: a line over 1 MiB. EVQ_E_CORRUPT: it is not text. */
enum evq_status evq_helper_line(struct evq_helper *helper, int64_t deadline_ms,
                                const char **ret_line, struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Closes the helper's input and waits until it ends; kills its group at the deadline, and does
 * nothing if it does not run. Returns the wait status, or -1 if nobody knows how it ended, because
 * SIGCHLD is ignored or somebody else waited for it.
 */
int evq_helper_end(struct evq_helper *helper, int64_t deadline_ms, bool *ret_killed);

#endif
