/*
 * Reading a tensor's elements, for the readers in this folder. Any thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_READ_H
#define EVQ_SHARED_CHECKPOINT_READ_H

#include "shared/checkpoint/directory.h"

/* As evq_checkpoint_read_raw() for elements of size bytes, out_bytes being right; messages do not
 * name the tensor. */
enum evq_status evq_read_elements(const struct evq_checkpoint *checkpoint,
                                  const struct evq_tensor *tensor, void *out, size_t out_bytes,
                                  size_t size, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
