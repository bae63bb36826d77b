/*
 * Tests devices before their numbers count: small seeded plans (a language model, an encoder, and
 * two over samples) run on the device and on the CPU backend, and the results are compared. Any
 * thread.
 */
#ifndef EVQ_WORKER_LOADER_SELFCHECK_H
#define EVQ_WORKER_LOADER_SELFCHECK_H

#include "kernels/backend.h"

/*
 * Checks each of the devices, and each with the one before it as one state, because what is copied
 * from one to the other may be wrong too. EVQ_E_DEVICE with a message: the device gives other
 * numbers than the CPU (a NaN among them), or fails. A plan that prepare() refuses with
 * EVQ_E_UNSUPPORTED is skipped, because it cannot give a wrong number. If the device cannot be
 * opened, the result is EVQ_OK, because the next one who opens it reports that. EVQ_E_NOMEM: no
 * host memory.
 */
enum evq_status evq_selfcheck(const struct evq_backend_ops *ops, const int32_t *devices,
                              int32_t count, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
