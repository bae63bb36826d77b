/*
 * Tensors that are stored in boxes, as distributed checkpoints do. For the readers in this folder;
 * any thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_TENSOR_PIECES_H
#define EVQ_SHARED_CHECKPOINT_TENSOR_PIECES_H

#include "shared/checkpoint/checkpoint_builder.h"

#define EVQ_TENSOR_PIECES_MAX 4096 // Of one tensor: as many as a checkpoint may have files.

/* The pieces of tensor lie inside it, do not overlap and leave nothing out. EVQ_E_CORRUPT names the
 * place. */
enum evq_status evq_tensor_pieces_check(const struct evq_tensor *tensor,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* All elements in C order into out; size is an element's. At most one piece is held in memory
 * besides. */
enum evq_status evq_tensor_pieces_read(const struct evq_checkpoint *checkpoint,
                                       const struct evq_tensor *tensor, void *out, size_t size,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
