/* Reads named arrays from one file of tensors: safetensors, or any other format that
 * shared/checkpoint reads. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/datasets/dataset.h"

static enum evq_status read_tensor(const struct evq_checkpoint *file,
                                   const struct evq_array_source *source, struct evq_array *array,
                                   struct evq_error *err)
{
    const struct evq_tensor *tensor = evq_checkpoint_find(file, source->tensor);

    if (tensor == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' holds no tensor '%s'", source->path,
                             source->tensor);
    }
    if (tensor->rank < 1) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "tensor '%s' of '%s' is a single number, expected samples",
                             tensor->name, source->path);
    }
    const bool widened = tensor->dtype == EVQ_DTYPE_F16 || tensor->dtype == EVQ_DTYPE_BF16;
    switch (tensor->dtype) {
    case EVQ_DTYPE_BOOL:
    case EVQ_DTYPE_U8:
        array->dtype = EVQ_DTYPE_U8;
        break;
    case EVQ_DTYPE_I8:
    case EVQ_DTYPE_I16:
    case EVQ_DTYPE_I32:
    case EVQ_DTYPE_I64:
    case EVQ_DTYPE_F32:
    case EVQ_DTYPE_F64:
        array->dtype = tensor->dtype;
        break;
    case EVQ_DTYPE_F16:
    case EVQ_DTYPE_BF16:
        array->dtype = EVQ_DTYPE_F32;
        break;
    default:
        return evq_error_set(
            err, EVQ_E_UNSUPPORTED,
            "tensor '%s' of '%s' has the dtype %s, which evalq does not read as data", tensor->name,
            source->path, tensor->dtype_name);
    }
    array->rank = tensor->rank;
    memcpy(array->shape, tensor->shape, sizeof(array->shape));
    const enum evq_status status = evq_array_alloc(array, source, err);
    if (status != EVQ_OK) {
        return status;
    }
    return widened ? evq_checkpoint_read_f32(file, tensor, array->data,
                                             array->bytes / sizeof(float), err)
                   : evq_checkpoint_read_raw(file, tensor, array->data, array->bytes, err);
}

static enum evq_status tensors_read(const struct evq_array_source *source,
                                    struct evq_array *ret_array, struct evq_error *err)
{
    struct evq_checkpoint *file = NULL;
    struct evq_array array = {0};
    const char *slash = strrchr(source->path, '/');
    const char *name = slash != NULL ? slash + 1 : source->path;

    char *directory = strndup(source->path, (size_t)(name - source->path));
    if (directory == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", source->path);
    }
    const int fd = open(directory[0] != '\0' ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int failed = errno;
    free(directory);
    if (fd < 0) {
        return evq_error_set(err, failed == ENOENT ? EVQ_E_NOT_FOUND : EVQ_E_IO,
                             "open the directory of '%s': %s", source->path, strerror(failed));
    }
    const struct evq_checkpoint_options options = {.key = ""};
    enum evq_status status = evq_checkpoint_open(fd, name, &options, &file, err);
    (void)close(fd); // It was opened for reading, so a failed close loses nothing.
    if (status == EVQ_OK) {
        status = read_tensor(file, source, &array, err);
    }
    evq_checkpoint_close(file);
    if (status == EVQ_E_GONE || status == EVQ_E_INCOMPLETE || status == EVQ_E_CHANGED) {
        // For a checkpoint, these statuses end a job as skipped. A data set has no such end.
        status = evq_error_set(err, status == EVQ_E_GONE ? EVQ_E_NOT_FOUND : EVQ_E_CORRUPT,
                               "data set '%s' is %s", source->path,
                               status == EVQ_E_GONE ? "not there" : "incomplete or was changed");
    }
    if (status != EVQ_OK) {
        free(array.data);
        return status;
    }
    *ret_array = array;
    return EVQ_OK;
}

const struct evq_dataset_format evq_dataset_tensors = {
    .name = "safetensors", .named = true, .read = tensors_read};
