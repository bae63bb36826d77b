/* Writes tensors of a checkpoint as one safetensors file. One thread. */
#ifndef EVQ_WORKER_CONVERT_SAFETENSORS_WRITE_H
#define EVQ_WORKER_CONVERT_SAFETENSORS_WRITE_H

#include "shared/checkpoint/checkpoint.h"

struct evq_named_tensor {
    const char *name; // In the new file.
    const struct evq_tensor *tensor;
};

/*
 * Creates the file `path`, which must not exist yet, and writes the tensors in their stored types.
 * Sorts `tensors`. EVQ_E_UNSUPPORTED names a tensor of a type that safetensors does
 * not have. EVQ_E_IO, EVQ_E_NOMEM, and the errors of reading.
 */
enum evq_status evq_safetensors_write(const struct evq_checkpoint *checkpoint,
                                      struct evq_named_tensor *tensors, size_t count,
                                      const char *path, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
