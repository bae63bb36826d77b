/*
 * Reads one piece of a checkpoint into memory: from the page cache if it is there, otherwise with
 * O_DIRECT, which is fast with several readers at once. Opened for one load; any thread may read.
 */
#ifndef EVQ_WORKER_LOADER_PIECE_READER_H
#define EVQ_WORKER_LOADER_PIECE_READER_H

#include "shared/checkpoint/digest.h"
#include "worker/loader/small_tensors.h"

#define EVQ_LOAD_ALIGNMENT ((size_t)4096) // Alignment of the memory that pieces are read into.
// Memory beyond a piece's room, because both ends are rounded outwards.
#define EVQ_LOAD_SLACK ((size_t)8192)

struct evq_piece_reader {
    const struct evq_checkpoint *checkpoint;
    struct evq_digest *digest; // Everything that is read is added to it.
    struct evq_small_tensors *small;
    int *direct; // One descriptor for each file; -1: none. NULL: all reads are buffered.
};

/* Samples some pieces to see whether they are in the page cache. EVQ_E_NOMEM. */
enum evq_status evq_piece_reader_open(const struct evq_checkpoint *checkpoint,
                                      const struct evq_load_list *list,
                                      struct evq_piece_reader *reader,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_piece_reader_close(struct evq_piece_reader *reader);

/* memory: aligned, with room and slack for the piece; *ret_values points into it. EVQ_E_CHANGED,
 * EVQ_E_IO, EVQ_E_NOMEM. */
enum evq_status evq_piece_reader_read(const struct evq_piece_reader *reader,
                                      const struct evq_load_piece *piece, void *memory,
                                      const void **ret_values,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
