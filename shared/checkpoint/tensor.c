/* Finding and reading one tensor of an open checkpoint, declared in checkpoint.h. */
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/adapter/adapter_merge.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/tensor_read.h"

enum evq_status evq_checkpoint_read_raw(const struct evq_checkpoint *checkpoint,
                                        const struct evq_tensor *tensor, void *out,
                                        size_t out_bytes, struct evq_error *err)
{
    size_t size = evq_dtype_stored_bytes(tensor);

    if (size == 0) {
        // The elements are unknown, but the size is known.
        if (tensor->contiguous && out_bytes == tensor->bytes) {
            return evq_tensor_name_error(
                tensor, evq_tensor_read_elements(checkpoint, tensor, out, out_bytes, 1, err), err);
        }
        return evq_tensor_name_error(tensor,
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
    return evq_tensor_name_error(tensor, status, err);
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
    return evq_tensor_name_error(tensor, status, err);
}
