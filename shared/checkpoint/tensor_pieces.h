/* Tensors that are stored in boxes, as in distributed checkpoints. For the readers in this folder;
 * any thread. */
#ifndef EVQ_SHARED_CHECKPOINT_TENSOR_PIECES_H
#define EVQ_SHARED_CHECKPOINT_TENSOR_PIECES_H

#include "shared/checkpoint/checkpoint_builder.h"

#define EVQ_TENSOR_PIECES_MAX 4096 // Per tensor; as many as a checkpoint may have files.

/* Checks that the pieces of tensor are inside it, do not overlap and leave no gap. EVQ_E_CORRUPT
 * says where. */
enum evq_status evq_tensor_pieces_check(const struct evq_tensor *tensor,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads all elements in C order into out; size is the size of an element. Holds at most one piece
 * in memory besides. */
enum evq_status evq_tensor_pieces_read(const struct evq_checkpoint *checkpoint,
                                       const struct evq_tensor *tensor, void *out, size_t size,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
