/*
 * Handles fork(): the child closes the parent's ring files and sockets, and can see that its copy
 * of a client belongs to the parent. Any thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_FORK_H
#define EVQ_PRODUCER_CLIENT_FORK_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/error.h"

/* Makes forked children close the descriptor. Otherwise a child would keep a lock or connection
 * after the parent's death. EVQ_E_LIMIT: too many descriptors are watched. */
enum evq_status evq_fork_watch(int fd, struct evq_error *err) EVQ_CHECK_RESULT;
/* Call it before closing the descriptor. Waits for a running fork(). Does nothing for a descriptor
 * that is not watched. */
void evq_fork_forget(int fd);

/* Grows by one in each forked child. A client that was opened at another value is the parent's. */
uint32_t evq_fork_depth(void);

#endif
