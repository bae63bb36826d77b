/*
 * A program in a process group of its own, fed through a socket. Any thread.
 */
#ifndef EVQ_LOGGER_GROUP_H
#define EVQ_LOGGER_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/error.h"

/* Starts argv (ended by NULL; no shell); *ret_fd is our end of its standard input, with `answers`
 * of its standard output too. who begins messages. EVQ_E_IO. */
enum evq_status evq_group_start(const char *who, const char *const *argv, bool answers,
                                pid_t *ret_pid, int *ret_fd,
                                struct evq_error *err) EVQ_CHECK_RESULT;
struct evq_group_limit {
    int64_t deadline_ms;     // Monotonic; 3 s after a stop was seen, if that is earlier.
    const atomic_bool *stop; // Set: the program is to end. NULL: that is no matter.
};
/* What is left of it, 0 and more. */
int evq_group_left_ms(struct evq_group_limit *limit);
/* Waits for its end until the limit, then kills the group. Returns the wait status; -1: nobody
 * knows how it ended, for SIGCHLD is ignored here or somebody else waited for it. */
int evq_group_reap(pid_t pid, struct evq_group_limit *limit, bool *ret_killed);

#endif
