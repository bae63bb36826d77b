/*
 * The list of what must be read from a checkpoint to fill a plan's weights: pieces of bounded size,
 * in the order of the put() calls, one call for each piece. This file reads no bytes. Any thread.
 */
#ifndef EVQ_WORKER_LOADER_LOAD_LIST_H
#define EVQ_WORKER_LOADER_LOAD_LIST_H

#include "worker/models/model.h"

#define EVQ_LOAD_PIECE_BYTES ((uint64_t)4 << 20) // Largest piece of a tensor that can be divided.

enum evq_load_kind {
    EVQ_LOAD_BYTES,  // Bytes [at, at + bytes) of a contiguous tensor.
    EVQ_LOAD_VALUES, // A whole tensor that is gathered, or merged with an adapter.
    EVQ_LOAD_VECTOR, // All values of a slot of one row, from `count` sources.
    EVQ_LOAD_DIGEST  // Bytes that fill no weight and only count for the digest.
};

struct evq_load_piece {
    enum evq_load_kind kind;
    const struct evq_source *source; // DIGEST: NULL.
    size_t count;                    // Number of sources.
    const struct evq_tensor *tensor; // VECTOR: NULL.
    uint64_t at, bytes;              // Bytes of the tensor as it is stored.
    int32_t first_row, rows;         // Rows of the slot; for BYTES and VALUES.
    enum evq_weight_type type;       // The type that put() receives.
    bool convert;                    // The stored values are converted to fp32.
    bool unhashed;                   // The bytes are not whole blocks of the digest.
    size_t room; // Bytes of memory that the piece needs while it is read and put.
};

struct evq_load_list {
    struct evq_load_piece *pieces;
    size_t count, capacity;
    uint64_t bytes;  // Bytes that are read for all pieces.
    size_t room_max; // The largest room of one piece.
};

/* Call evq_load_list_free() in any case, also after a failure. EVQ_E_NOMEM. */
enum evq_status evq_load_list_make(const struct evq_checkpoint *checkpoint,
                                   const struct evq_model *model, struct evq_load_list *list,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_load_list_free(struct evq_load_list *list);

#endif
