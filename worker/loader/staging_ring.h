/*
 * Staging buffers of a backend, filled ahead of their use by threads of its own. They are kept from
 * one load to the next. One thread calls.
 */
#ifndef EVQ_WORKER_LOADER_STAGING_RING_H
#define EVQ_WORKER_LOADER_STAGING_RING_H

#include "worker/loader/piece_reader.h"

struct evq_staging_ring;

/* threads: CPU threads of the slot; 0: all cores. EVQ_E_NOMEM. Free it with
 * evq_staging_ring_free(). */
enum evq_status evq_staging_ring_new(const struct evq_backend_ops *backend, void *state,
                                     int32_t threads, struct evq_staging_ring **ret_ring,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_staging_ring_free(
    struct evq_staging_ring *ring); // Accepts NULL. Call it before the backend is closed.

/* Takes the values of one piece by one put(), or by none for a DIGEST piece. The values stay valid
 * until evq_backend_ops.catch_up() reports that no put() reads them any more. */
typedef enum evq_status (*evq_load_take)(void *context, const struct evq_load_piece *piece,
                                         const void *values, struct evq_error *err);

/* Reads all pieces and hands them to take, in order, on this thread. The first failure ends it. */
enum evq_status evq_staging_ring_run(struct evq_staging_ring *ring,
                                     const struct evq_piece_reader *reader,
                                     const struct evq_load_list *list, evq_load_take take,
                                     void *context, struct evq_error *err) EVQ_CHECK_RESULT;

/* Returns all buffers to the backend, because something else needs the memory. */
void evq_staging_ring_drop(struct evq_staging_ring *ring);

#endif
