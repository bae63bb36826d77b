/*
 * Moves the tensors of a checkpoint into a backend's weights. One thread for each backend.
 */
#ifndef EVQ_WORKER_LOADER_LOADER_H
#define EVQ_WORKER_LOADER_LOADER_H

#include "kernels/backend.h"
#include "worker/models/model.h"
#include "worker/progress.h"

/* Memory and threads that move weights into one backend. They are kept between checkpoints. One
 * thread. */
struct evq_loader;

/* threads: CPU threads of the backend; 0: all cores. EVQ_E_NOMEM. Free it before the backend is
 * closed. */
enum evq_status evq_loader_new(const struct evq_backend_ops *backend, void *state, int32_t threads,
                               struct evq_loader **ret_loader,
                               struct evq_error *err) EVQ_CHECK_RESULT;
void evq_loader_free(struct evq_loader *loader); // Accepts NULL.

struct evq_loaded {
    char digest[33];  // evq_checkpoint_digest() of the whole checkpoint.
    int64_t bytes;    // Bytes that were read from its files.
    bool past_cache;  // Most of it was not in the page cache, and was read without it.
    bool tied_differ; // The unused tensor of a tied model differs from the one that is used.
};

/* Reports progress to `progress` every few megabytes while filling; borrowed. NULL: nobody listens.
 */
void evq_loader_watch(struct evq_loader *loader, const struct evq_progress *progress);

/*
 * Fills every weight of the model's plan, which the backend has prepared, and then checks that no
 * file changed meanwhile. Several threads read ahead of the backend, and each byte is read once. If
 * memory is short, one buffer is used. EVQ_E_CHANGED, EVQ_E_CORRUPT, EVQ_E_IO, EVQ_E_NOMEM,
 * EVQ_E_DEVICE; EVQ_E_STOPPED: the listener said so.
 */
enum evq_status evq_loader_fill(struct evq_loader *loader, const struct evq_checkpoint *checkpoint,
                                const struct evq_model *model, struct evq_loaded *ret_loaded,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Returns the loader's buffers to the backend. The next load takes new ones. */
void evq_loader_drop(struct evq_loader *loader);

#endif
