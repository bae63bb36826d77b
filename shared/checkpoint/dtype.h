/* The types of elements, and their conversion to float32. Any thread. */
#ifndef EVQ_SHARED_CHECKPOINT_DTYPE_H
#define EVQ_SHARED_CHECKPOINT_DTYPE_H

#include "shared/checkpoint/checkpoint.h"

/* Looks up a dtype by its safetensors name. EVQ_DTYPE_OTHER: it is only listed. False: unknown. */
bool evq_dtype_parse(const char *name, enum evq_dtype *ret_dtype, unsigned *ret_bits,
                     const char **ret_name);

/* Size of one element, also of a dtype that is only listed; 0: not a whole number of bytes. */
size_t evq_dtype_stored_bytes(const struct evq_tensor *tensor);

/* Converts count values of dtype at source (any alignment, little-endian) to float32. False: dtype
 * cannot be converted. */
bool evq_convert_f32(enum evq_dtype dtype, const void *source, size_t count, float *out);

#endif
