/*
 * Before a device's numbers count: small seeded plans, one with every operation on tokens and two
 * of samples, run there and on the CPU backend, and compared. Any thread.
 */
#ifndef EVQ_WORKER_SELFCHECK_H
#define EVQ_WORKER_SELFCHECK_H

#include "kernels/backend.h"

/*
 * EVQ_E_DEVICE, with one sentence, when the device gives other numbers than the CPU (a NaN among
 * them) or fails on the way. A plan that its prepare() refuses as EVQ_E_UNSUPPORTED is passed over:
 * it cannot give a wrong number. A device that does not open is EVQ_OK here: whoever opens it next
 * says so. EVQ_E_NOMEM: no memory on the host.
 */
enum evq_status evq_selfcheck(const struct evq_backend_ops *ops, int32_t device,
                              struct evq_error *err) EVQ_CHECK_RESULT;

#endif
