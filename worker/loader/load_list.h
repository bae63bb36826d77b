/*
 * What is read of a checkpoint to fill a plan's weights, in the order in which it is put: pieces of
 * bounded size, each put by one call. No byte is read here. Any thread.
 */
#ifndef EVQ_WORKER_LOADER_LOAD_LIST_H
#define EVQ_WORKER_LOADER_LOAD_LIST_H

#include "worker/models/model.h"

#define EVQ_LOAD_PIECE_BYTES ((uint64_t)4 << 20) // At most, where a tensor can be cut.

enum evq_load_kind {
    EVQ_LOAD_BYTES,  // Bytes [at, at + bytes) of a contiguous tensor.
    EVQ_LOAD_VALUES, // A whole tensor that is gathered, or merged with an adapter.
    EVQ_LOAD_VECTOR, // All of a slot of one row, out of `count` sources.
    EVQ_LOAD_DIGEST  // BYTES that fill nothing and only count for the digest.
};

struct evq_load_piece {
    enum evq_load_kind kind;
    const struct evq_source *source; // DIGEST: NULL.
    size_t count;                    // Of sources.
    const struct evq_tensor *tensor; // VECTOR: NULL.
    uint64_t at, bytes;              // Of the tensor, as it is stored.
    int32_t first_row, rows;         // Of the slot; BYTES, VALUES.
    enum evq_weight_type type;       // As it is put.
    bool convert;                    // The stored values become fp32 of their own.
    size_t room;                     // Bytes that it needs in memory while it is read and put.
};

struct evq_load_list {
    struct evq_load_piece *pieces;
    size_t count, capacity;
    uint64_t bytes;  // Read for all of them.
    size_t room_max; // Of one.
};

/* Free with evq_load_list_free(), also on failure. EVQ_E_NOMEM. */
enum evq_status evq_load_list_make(const struct evq_checkpoint *checkpoint,
                                   const struct evq_model *model, struct evq_load_list *list,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_load_list_free(struct evq_load_list *list);

#endif
