/* Finding and reading one tensor of an open checkpoint, declared in checkpoint.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/adapter/adapter_merge.h"
#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/tensor_read.h"

const struct evq_tensor *evq_checkpoint_find(const struct evq_checkpoint *checkpoint,
                                             const char *name)
{
    const struct evq_tensor wanted = {.name = name};

    return checkpoint->tensor_count == 0
               ? NULL
               : bsearch(&wanted, checkpoint->tensors, checkpoint->tensor_count, sizeof(wanted),
                         evq_tensor_compare_names);
}

const struct evq_tensor *evq_checkpoint_find_below(const struct evq_checkpoint *checkpoint,
                                                   const char *prefix, const char *name)
{
    char full[EVQ_CHECKPOINT_NAME_BYTES_MAX + 1];
    int bytes = snprintf(full, sizeof(full), "%s%s", prefix, name);

    if (bytes < 0 || (size_t)bytes >= sizeof(full)) {
        return NULL; // No tensor has a name that long.
    }
    return evq_checkpoint_find(checkpoint, full);
}

enum evq_status evq_checkpoint_read_raw(const struct evq_checkpoint *checkpoint,
                                        const struct evq_tensor *tensor, void *out,
                                        size_t out_bytes, struct evq_error *err)
{
    size_t size = evq_dtype_stored_bytes(tensor);

    if (size == 0) {
        // The elements are unknown, but the size is known.
        if (tensor->contiguous && out_bytes == tensor->bytes) {
            return evq_tensor_error_prefix(
                tensor, evq_tensor_read_elements(checkpoint, tensor, out, out_bytes, 1, err), err);
        }
        return evq_tensor_error_prefix(tensor,
                                       evq_error_set(err, EVQ_E_UNSUPPORTED,
                                                     "dtype %s has no whole bytes per element",
                                                     tensor->dtype_name),
                                       err);
    }
    enum evq_status status =
        out_bytes % size == 0
            ? evq_tensor_check_elements(tensor, out_bytes / size, err)
            : evq_error_set(err, EVQ_E_INVALID, "room for %zu bytes, elements have %zu", out_bytes,
                            size);
    if (status == EVQ_OK) {
        status = tensor->merge != NULL && out_bytes > 0
                     ? evq_merge_read_raw(checkpoint, tensor->merge, out, out_bytes / size, err)
                     : evq_tensor_read_elements(checkpoint, tensor, out, out_bytes, size, err);
    }
    return evq_tensor_error_prefix(tensor, status, err);
}

enum evq_status evq_checkpoint_read_f32(const struct evq_checkpoint *checkpoint,
                                        const struct evq_tensor *tensor, float *out,
                                        size_t elements, struct evq_error *err)
{
    if (tensor->merge == NULL) {
        return evq_tensor_read_f32(checkpoint, tensor, out, elements, err);
    }
    enum evq_status status = evq_tensor_check_elements(tensor, elements, err);
    if (status == EVQ_OK && elements > 0) {
        status = evq_merge_read_f32(checkpoint, tensor->merge, out, elements, err);
    }
    return evq_tensor_error_prefix(tensor, status, err);
}
