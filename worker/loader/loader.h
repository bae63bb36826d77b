/*
 * Moves the tensors of a checkpoint into a backend's weights, and loads backends themselves.
 */
#ifndef EVQ_WORKER_LOADER_H
#define EVQ_WORKER_LOADER_H

#include "kernels/backend.h"
#include "worker/child/progress.h"
#include "worker/models/model.h"

/* Memory and threads that move weights into one backend; kept between checkpoints. One thread. */
struct evq_loader;

/* threads: of the backend; 0: all cores. EVQ_E_NOMEM. Free it before the backend closes. */
enum evq_status evq_loader_new(const struct evq_backend_ops *backend, void *state, int32_t threads,
                               struct evq_loader **ret_loader,
                               struct evq_error *err) EVQ_CHECK_RESULT;
void evq_loader_free(struct evq_loader *loader); // Accepts NULL.

struct evq_loaded {
    char digest[33];  // evq_checkpoint_digest() of the whole checkpoint.
    int64_t bytes;    // Read from its files.
    bool past_cache;  // Most of it was not in the page cache and was read past it.
    bool tied_differ; // The model's unused tensor does not hold what the tied one does.
};

/* While filling, tells `progress` about every few megabytes; borrowed. NULL: nobody listens. */
void evq_loader_watch(struct evq_loader *loader, const struct evq_progress *progress);

/*
 * Fills every weight of the model's plan, which the backend has prepared; then checks that no file
 * changed meanwhile. Several threads read ahead of the backend; each byte is read once.
 * Reads with one buffer where there is no memory for more. EVQ_E_CHANGED, EVQ_E_CORRUPT, EVQ_E_IO,
 * EVQ_E_NOMEM, EVQ_E_DEVICE; EVQ_E_STOPPED: who watches says so.
 */
enum evq_status evq_loader_fill(struct evq_loader *loader, const struct evq_checkpoint *checkpoint,
                                const struct evq_model *model, struct evq_loaded *ret_loaded,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Gives the buffers that loading used back to the backend; the next load takes new ones. */
void evq_loader_drop(struct evq_loader *loader);

/* Buffers taken from the backend so far: the same after a second checkpoint of the same shapes. */
uint64_t evq_loader_allocations(const struct evq_loader *loader);

struct evq_backend {
    const struct evq_backend_ops *ops;
    const char *name;       // As results tell it: "cpu", "cuda".
    int32_t first, devices; // Their ordinals: first, first + 1, ...; devices 0: the CPU.
    void *module;           // NULL: linked in.
};

/*
 * devices 0: the CPU's. Else libevalq_cuda.so, looked for beside the program, in ../lib and on the
 * library path; where it, a driver or one of the devices is missing, the CPU's, with one sentence
 * in note saying why ("" otherwise). Nothing was computed on the devices: whoever wants numbers of
 * them takes evq_backend_load().
 */
void evq_backend_find(int32_t first, int32_t devices, struct evq_backend *ret_backend, char *note,
                      size_t note_bytes);

/* The same, and evq_selfcheck() of each. EVQ_E_DEVICE, EVQ_E_NOMEM: it does not trust a device that
 * is there; *ret_backend is the CPU's then. */
enum evq_status evq_backend_load(int32_t first, int32_t devices, struct evq_backend *ret_backend,
                                 char *note, size_t note_bytes,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* One state of all its devices; backend->ops becomes evq_backend_several where these are several,
 * which share the batches out. threads: of the CPU; 0: all cores. */
enum evq_status evq_backend_open(struct evq_backend *backend, int32_t threads, void **ret_state,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
void evq_backend_unload(struct evq_backend *backend);

#endif
