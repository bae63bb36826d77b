/* Reads a tensor that is in one range of one file, contiguous or with strides. For the readers in
 * this folder. Any thread. */
#ifndef EVQ_SHARED_CHECKPOINT_TENSOR_RANGE_H
#define EVQ_SHARED_CHECKPOINT_TENSOR_RANGE_H

#include "shared/checkpoint/checkpoint_builder.h"

/* Reads all elements, each of size bytes, in C order into out. out_bytes is their total size.
 * Messages do not name the tensor. */
enum evq_status evq_tensor_range_read(const struct evq_checkpoint *checkpoint,
                                      const struct evq_tensor *tensor, void *out, size_t out_bytes,
                                      size_t size, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
