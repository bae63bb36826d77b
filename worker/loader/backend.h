/*
 * Chooses the backend: finds and loads the CUDA module, and takes the CPU's kernels if there is no
 * module or no GPU. One thread for each backend.
 */
#ifndef EVQ_WORKER_LOADER_BACKEND_H
#define EVQ_WORKER_LOADER_BACKEND_H

#include "kernels/backend.h"

struct evq_backend {
    const struct evq_backend_ops *ops;
    const char *name; // The name in results: "cpu" or "cuda".
    int32_t gpus;     // GPUs 0 to gpus - 1 of this process; 0: the CPU.
    void *module;     // NULL: the CPU backend, which is linked in.
};

/*
 * device -1 selects the CPU backend. Otherwise libevalq_cuda.so is searched beside the program, in
 * ../lib and on the library path. If the library, a driver or the device is missing, the CPU
 * backend is selected, and note says why ("" otherwise). The device was not tested; for correct
 * numbers use evq_backend_load().
 */
void evq_backend_find(int32_t device, struct evq_backend *ret_backend, char *note,
                      size_t note_bytes);

/* The same for so many GPUs of this process, from 0 on (0: the CPU), followed by evq_selfcheck() of
 * each. EVQ_E_DEVICE, EVQ_E_NOMEM: one cannot be trusted; *ret_backend is then the CPU backend. */
enum evq_status evq_backend_load(int32_t gpus, struct evq_backend *ret_backend, char *note,
                                 size_t note_bytes, struct evq_error *err) EVQ_CHECK_RESULT;

/* Opens the devices of the backend as one state, which splits a model's layers over them. threads:
 * CPU threads; 0: all cores. */
enum evq_status evq_backend_open(const struct evq_backend *backend, int32_t threads,
                                 void **ret_state, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_backend_unload(struct evq_backend *backend);

#endif
