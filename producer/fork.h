/*
 * What fork() does to clients: the child lets go of the parent's ring locks, and its calls are told
 * so. Any thread.
 */
#ifndef EVQ_PRODUCER_FORK_H
#define EVQ_PRODUCER_FORK_H

#include <stdbool.h>
#include <stdint.h>

#include "producer/ring.h"

/* Registers the ring; EVQ_E_LIMIT when too many clients are open. */
enum evq_status evq_fork_watch(struct evq_ring *ring, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_fork_forget(const struct evq_ring *ring);

/* Rises in each child: a client that remembers another one is the parent's. */
uint32_t evq_fork_generation(void);

#endif
