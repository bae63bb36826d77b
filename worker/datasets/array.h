/*
 * An array in memory, and what the readers of IDX and NumPy files need to make one. Not for sharing
 * between threads while it is filled.
 */
#ifndef EVQ_WORKER_DATASETS_ARRAY_H
#define EVQ_WORKER_DATASETS_ARRAY_H

#include <sys/stat.h>

#include "shared/checkpoint/checkpoint.h"

#define EVQ_ARRAY_BYTES_MAX ((size_t)16 << 30) // Largest size of one file, decompressed.

struct evq_array {        // C order and native byte order. data comes from malloc().
    enum evq_dtype dtype; // U8, I8, U16, I16, U32, I32, I64, F32, F64.
    int32_t rank;         // At least 1.
    int64_t shape[EVQ_TENSOR_RANK_MAX];
    void *data;
    size_t bytes;
};

struct evq_array_source {
    const char *path; // Absolute or relative to the working directory.
    size_t bytes_max; // Largest size, decompressed.
};

/* Value i of an array of integers. */
int64_t evq_array_integer(const struct evq_array *array, int64_t i);

/* Allocates data for an array whose dtype and shape are set. EVQ_E_CORRUPT,
 * EVQ_E_LIMIT or EVQ_E_NOMEM. */
enum evq_status evq_array_alloc(struct evq_array *array, const struct evq_array_source *source,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Opens a regular file for reading; the caller
 * closes *ret_fd. EVQ_E_NOT_FOUND, EVQ_E_INVALID, EVQ_E_IO. */
enum evq_status evq_array_open_file(const char *path, int *ret_fd, struct stat *ret_info,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

#endif
