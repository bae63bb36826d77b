/* Reads the elements of a tensor from its files, in one range or in pieces, without merging an
 * adapter. For the readers in this folder. Any thread. */
#ifndef EVQ_SHARED_CHECKPOINT_TENSOR_READ_H
#define EVQ_SHARED_CHECKPOINT_TENSOR_READ_H

#include "shared/checkpoint/checkpoint_builder.h"

/* Reads all elements, each of size bytes, in C order into out. out_bytes is their total size.
 * Messages do not name the tensor. */
enum evq_status evq_tensor_read_elements(const struct evq_checkpoint *checkpoint,
                                         const struct evq_tensor *tensor, void *out,
                                         size_t out_bytes, size_t size,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads all elements as floats. Errors: EVQ_E_INVALID (another number of elements),
 * EVQ_E_UNSUPPORTED (a type that does not convert to float), and those of reading. */
enum evq_status evq_tensor_read_f32(const struct evq_checkpoint *checkpoint,
                                    const struct evq_tensor *tensor, float *out, size_t elements,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Returns EVQ_E_INVALID if the tensor has not this many elements. */
enum evq_status evq_tensor_check_elements(const struct evq_tensor *tensor, size_t elements,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* Puts "tensor 'NAME'" before the message of err if status is an error. Returns status. */
enum evq_status evq_tensor_error_prefix(const struct evq_tensor *tensor, enum evq_status status,
                                        struct evq_error *err);

#endif
