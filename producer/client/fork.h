/*
 * What fork() does to clients: the child lets go of the parent's ring locks and sockets, and its
 * calls are told so. Any thread.
 */
#ifndef EVQ_PRODUCER_FORK_H
#define EVQ_PRODUCER_FORK_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/error.h"

/* Has a forked child close the descriptor, whose lock or connection would else outlive the parent
 * there; EVQ_E_LIMIT when too many are watched. */
enum evq_status evq_fork_watch(int fd, struct evq_error *err) EVQ_CHECK_RESULT;
/* Before it is closed; waits for a fork that is going on. One that is not watched: nothing. */
void evq_fork_forget(int fd);

/* Rises in each child: a client that remembers another one is the parent's. */
uint32_t evq_fork_depth(void);

#endif
