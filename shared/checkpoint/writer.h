/*
 * Writes safetensors: to a temporary name, fsync, rename, so that a reader never sees half a file.
 * Any thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_WRITER_H
#define EVQ_SHARED_CHECKPOINT_WRITER_H

#include "shared/checkpoint/checkpoint.h"

struct evq_writer_tensor {
    const char *name;
    enum evq_dtype dtype;
    int32_t rank;
    int64_t shape[EVQ_TENSOR_RANK_MAX];
    const void *data; // C-contiguous, little-endian.
};

/* metadata: text pairs for __metadata__, may be NULL. fsync_file false skips the fsync (tmpfs). */
enum evq_status evq_safetensors_write(const char *path, const struct evq_writer_tensor *tensors,
                                      size_t tensor_count, const char *const *metadata,
                                      size_t metadata_pairs, bool fsync_file,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
