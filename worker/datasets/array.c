#include "worker/datasets/array.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum evq_status evq_array_open_file(const char *path, int *ret_fd, struct stat *ret_info,
                                    struct evq_error *err)
{
    // Without O_NONBLOCK, a named pipe would hang the slot.
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0) {
        return evq_error_set(err, errno == ENOENT ? EVQ_E_NOT_FOUND : EVQ_E_IO,
                             "open data set '%s': %s", path, strerror(errno));
    }
    if (fstat(fd, ret_info) != 0 || !S_ISREG(ret_info->st_mode)) {
        (void)close(fd); // It was opened for reading, so a failed close loses nothing.
        return evq_error_set(err, EVQ_E_INVALID, "data set '%s' is not a regular file", path);
    }
    *ret_fd = fd;
    return EVQ_OK;
}

enum evq_status evq_array_alloc(struct evq_array *array, const struct evq_array_source *source,
                                struct evq_error *err)
{
    size_t bytes = evq_dtype_bytes(array->dtype);

    for (int32_t i = 0; i < array->rank; i++) {
        if (array->shape[i] < 1) {
            return evq_error_set(err, EVQ_E_INVALID, "data set '%s' is empty: dimension %d is %lld",
                                 source->path, (int)i, (long long)array->shape[i]);
        }
        if (!evq_size_mul(bytes, (size_t)array->shape[i], &bytes)) {
            return evq_error_set(err, EVQ_E_CORRUPT, "data set '%s': its shape overflows",
                                 source->path);
        }
    }
    if (bytes > source->bytes_max) {
        return evq_error_set(err, EVQ_E_LIMIT, "data set '%s' unpacks to %zu bytes, allowed %zu",
                             source->path, bytes, source->bytes_max);
    }
    array->data = malloc(bytes);
    if (array->data == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes for data set '%s'", bytes, source->path);
    }
    array->bytes = bytes;
    return EVQ_OK;
}

int64_t evq_array_integer(const struct evq_array *array, int64_t i)
{
    switch (array->dtype) {
    case EVQ_DTYPE_U8:
        return ((const uint8_t *)array->data)[i];
    case EVQ_DTYPE_I8:
        return ((const int8_t *)array->data)[i];
    case EVQ_DTYPE_U16:
        return ((const uint16_t *)array->data)[i];
    case EVQ_DTYPE_I16:
        return ((const int16_t *)array->data)[i];
    case EVQ_DTYPE_U32:
        return ((const uint32_t *)array->data)[i];
    case EVQ_DTYPE_I32:
        return ((const int32_t *)array->data)[i];
    default:
        return ((const int64_t *)array->data)[i];
    }
}
