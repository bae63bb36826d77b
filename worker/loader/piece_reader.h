/*
 * One piece from the files of a checkpoint into memory: from the page cache where it lies there,
 * else past it (O_DIRECT, which several readers at once make fast). Opened for one load; reading is
 * for any thread.
 */
#ifndef EVQ_WORKER_LOADER_PIECE_READER_H
#define EVQ_WORKER_LOADER_PIECE_READER_H

#include "shared/checkpoint/digest.h"
#include "worker/loader/small_tensors.h"

#define EVQ_LOAD_ALIGNMENT ((size_t)4096) // Of the memory that pieces are read into.
#define EVQ_LOAD_SLACK     ((size_t)8192) // More than a piece's room: both ends rounded outward.

struct evq_piece_reader {
    const struct evq_checkpoint *checkpoint;
    struct evq_digest *digest; // What is read is added.
    struct evq_small_tensors *small;
    int *direct; // One descriptor a file, -1: none. NULL: all is read buffered.
};

/* Looks at a sample of the pieces to see where they lie. EVQ_E_NOMEM. */
enum evq_status evq_piece_reader_open(const struct evq_checkpoint *checkpoint,
                                      const struct evq_load_list *list,
                                      struct evq_piece_reader *reader,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_piece_reader_close(struct evq_piece_reader *reader);

/* memory: aligned, with room and slack for the piece. *ret_values lies in it. EVQ_E_CHANGED,
 * EVQ_E_IO, EVQ_E_NOMEM. */
enum evq_status evq_piece_reader_read(const struct evq_piece_reader *reader,
                                      const struct evq_load_piece *piece, void *memory,
                                      const void **ret_values,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
