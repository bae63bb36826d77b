/*
 * A backend over several devices of one kind: each holds the whole model, a batch is cut between
 * its sequences (or its rows, where these are samples), the parts run at the same time, and the
 * results stand in the batch's order. One thread calls; every device but the first has a thread of
 * its own for exec().
 */
#ifndef EVQ_WORKER_LOADER_MULTI_DEVICE_H
#define EVQ_WORKER_LOADER_MULTI_DEVICE_H

#include "kernels/backend.h"

#define EVQ_SEVERAL_MAX 64

/* Its states come from evq_multi_device_open() alone: probe and open are NULL. Memory of alloc() is
 * the first device's, pinned for all. */
extern const struct evq_backend_ops evq_backend_several;

/* Opens one state of ops for each of count configs, 1 to EVQ_SEVERAL_MAX. What ops->open() says,
 * EVQ_E_NOMEM. */
enum evq_status evq_multi_device_open(const struct evq_backend_ops *ops,
                                      const struct evq_backend_config *configs, size_t count,
                                      void **ret_state, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
