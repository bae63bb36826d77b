/*
 * A backend over several devices of one kind. Each device holds the whole model. A batch is divided
 * between its sequences (or rows, for samples), the parts run at the same time, and the results
 * keep the order of the batch. One thread calls; every device except the first has a thread of its
 * own for exec().
 */
#ifndef EVQ_WORKER_LOADER_MULTI_DEVICE_H
#define EVQ_WORKER_LOADER_MULTI_DEVICE_H

#include "kernels/backend.h"

#define EVQ_MULTI_DEVICE_MAX 64

/* Only evq_multi_device_open() makes its states, so probe and open are NULL. alloc() returns memory
 * of the first device that is pinned for all. */
extern const struct evq_backend_ops evq_multi_device_backend;

/* Opens one state of ops for each of `count` configs, 1 to EVQ_MULTI_DEVICE_MAX. Returns the errors
 * of ops->open(), and EVQ_E_NOMEM. */
enum evq_status evq_multi_device_open(const struct evq_backend_ops *ops,
                                      const struct evq_backend_config *configs, size_t count,
                                      void **ret_state, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
