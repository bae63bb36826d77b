/*
 * A program beside the logger that speaks lines: ours on its standard input, its own on its
 * standard output. In a process group of its own, which ends with it. One thread.
 */
#ifndef EVQ_LOGGER_HELPER_H
#define EVQ_LOGGER_HELPER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/buffer.h"

struct evq_helper {
    pid_t pid; // 0: not running.
    int fd;
    struct evq_buffer text;  // Received and not taken yet.
    const char *who;         // "sink 'wandb'": messages begin with it.
    const atomic_bool *stop; // Set: waits end soon. May be NULL.
};

/* Starts argv (ended by NULL; no shell). helper's who and stop are set, the rest is zeros.
 * EVQ_E_IO: it cannot be started. */
enum evq_status evq_helper_start(struct evq_helper *helper, const char *const *argv,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* deadline_ms: monotonic. EVQ_E_IO: it ended or stopped reading; EVQ_E_TIMEOUT. */
enum evq_status evq_helper_send(struct evq_helper *helper, const void *data, size_t bytes,
                                int64_t deadline_ms, struct evq_error *err) EVQ_CHECK_RESULT;
/* *ret_line, without its newline, is valid until the next call. EVQ_E_IO: it ended, with its exit
 * status; EVQ_E_TIMEOUT; EVQ_E_LIMIT: a line over 1 MiB. */
enum evq_status evq_helper_line(struct evq_helper *helper, int64_t deadline_ms,
                                const char **ret_line, struct evq_error *err) EVQ_CHECK_RESULT;
/* Closes its input, waits for its end until the deadline, then kills its group. Does nothing when
 * it does not run. */
void evq_helper_end(struct evq_helper *helper, int64_t deadline_ms);

#endif
