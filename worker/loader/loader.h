/*
 * Moves the tensors of a checkpoint into a backend's weights, and loads backends themselves.
 */
#ifndef EVQ_WORKER_LOADER_H
#define EVQ_WORKER_LOADER_H

#include "kernels/backend.h"
#include "worker/models/model.h"

/*
 * Fills every weight of the model's plan, which the backend has prepared; then checks that no file
 * changed meanwhile. ret_digest: XXH3-128 of the whole checkpoint (evq_checkpoint_digest);
 * ret_bytes: read from its files. EVQ_E_CHANGED, EVQ_E_CORRUPT, EVQ_E_IO, EVQ_E_NOMEM,
 * EVQ_E_DEVICE.
 */
enum evq_status evq_loader_fill(const struct evq_backend_ops *backend, void *state,
                                const struct evq_checkpoint *checkpoint,
                                const struct evq_model *model, char ret_digest[33],
                                int64_t *ret_bytes, struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_backend {
    const struct evq_backend_ops *ops;
    void *module; // NULL: linked in.
};

/*
 * device -1: the CPU's. Else libevalq_cuda.so, looked for beside the program, in ../lib and on the
 * library path; where it, a driver or the device is missing, the CPU's, with one sentence in note
 * saying why ("" otherwise). Never fails.
 */
void evq_backend_load(int32_t device, struct evq_backend *ret_backend, char *note,
                      size_t note_bytes);
void evq_backend_unload(struct evq_backend *backend);

#endif
