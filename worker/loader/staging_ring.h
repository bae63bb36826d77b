/*
 * Memory of a backend that pieces are read into ahead of their use, by threads of its own. Kept
 * from one load to the next. One thread calls; not for sharing.
 */
#ifndef EVQ_WORKER_LOADER_STAGING_RING_H
#define EVQ_WORKER_LOADER_STAGING_RING_H

#include "worker/loader/piece_reader.h"

struct evq_staging_ring;

/* threads: of the slot; 0: all cores. EVQ_E_NOMEM. Free with evq_staging_ring_free(). */
enum evq_status evq_staging_ring_new(const struct evq_backend_ops *backend, void *state,
                                     int32_t threads, struct evq_staging_ring **ret_ring,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_staging_ring_free(
    struct evq_staging_ring *ring); // Accepts NULL; before the backend closes.

/* Takes the values of one piece, by one put(), but of a DIGEST, by none; they stay until
 * evq_backend_ops.catch_up() says that no put() reads them any more. */
typedef enum evq_status (*evq_load_take)(void *context, const struct evq_load_piece *piece,
                                         const void *values, struct evq_error *err);

/* Reads all pieces and hands them to take, in order, from this thread. The first failure ends it.
 */
enum evq_status evq_staging_ring_run(struct evq_staging_ring *ring,
                                     const struct evq_piece_reader *reader,
                                     const struct evq_load_list *list, evq_load_take take,
                                     void *context, struct evq_error *err) EVQ_CHECK_RESULT;

/* Gives all buffers back to the backend, for which something else has more use. */
void evq_staging_ring_drop(struct evq_staging_ring *ring);

/* Buffers that the backend gave since it was made: stays the same where loads repeat. */
uint64_t evq_staging_ring_allocations(const struct evq_staging_ring *ring);

#endif
