#include "shared/checkpoint/tensor_read.h"

#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/tensor_pieces.h"
#include "shared/checkpoint/tensor_range.h"

// Read and converted in one step, so that it stays in the cache.
#define CHUNK_BYTES ((size_t)1 << 20)

enum evq_status evq_tensor_error_prefix(const struct evq_tensor *tensor, enum evq_status status,
                                        struct evq_error *err)
{
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "tensor '%.160s'",
                               tensor->name); // The status stays what it is.
    }
    return status;
}

enum evq_status evq_tensor_check_elements(const struct evq_tensor *tensor, size_t elements,
                                          struct evq_error *err)
{
    size_t counted = 0;

    if (!evq_tensor_elements(tensor, &counted) || counted != elements) {
        return evq_error_set(err, EVQ_E_INVALID, "room for %zu elements, it has %zu", elements,
                             counted);
    }
    return EVQ_OK;
}

enum evq_status evq_tensor_read_elements(const struct evq_checkpoint *checkpoint,
                                         const struct evq_tensor *tensor, void *out,
                                         size_t out_bytes, size_t size, struct evq_error *err)
{
    if (out_bytes > 0 && tensor->piece_count > 0) {
        return evq_tensor_pieces_read(checkpoint, tensor, out, size, err);
    }
    return evq_tensor_range_read(checkpoint, tensor, out, out_bytes, size, err);
}

static enum evq_status convert_chunks(const struct evq_checkpoint *checkpoint,
                                      const struct evq_tensor *tensor, float *out, size_t elements,
                                      size_t size, struct evq_error *err)
{
    size_t chunk = CHUNK_BYTES / size;
    enum evq_status status = EVQ_OK;
    uint8_t *bytes = malloc((elements < chunk ? elements : chunk) * size);

    if (bytes == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a read buffer");
    }
    for (size_t at = 0; status == EVQ_OK && at < elements; at += chunk) {
        size_t count = elements - at < chunk ? elements - at : chunk;
        status = evq_checkpoint_read_bytes(checkpoint, tensor->file,
                                           tensor->offset + (uint64_t)at * size, bytes,
                                           count * size, err);
        if (status == EVQ_OK) {
            (void)evq_convert_f32(tensor->dtype, bytes, count, out + at); // The dtype was checked.
        }
    }
    free(bytes);
    return status;
}

static enum evq_status convert_gathered(const struct evq_checkpoint *checkpoint,
                                        const struct evq_tensor *tensor, float *out,
                                        size_t elements, size_t size, struct evq_error *err)
{
    size_t bytes = 0;

    if (!evq_size_mul(elements, size, &bytes)) {
        return evq_error_set(err, EVQ_E_LIMIT, "%zu elements", elements);
    }
    uint8_t *raw = malloc(bytes);
    if (raw == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", bytes);
    }
    enum evq_status status = evq_tensor_read_elements(checkpoint, tensor, raw, bytes, size, err);
    if (status == EVQ_OK) {
        (void)evq_convert_f32(tensor->dtype, raw, elements, out); // The dtype was checked.
    }
    free(raw);
    return status;
}

static enum evq_status read_converted(const struct evq_checkpoint *checkpoint,
                                      const struct evq_tensor *tensor, float *out, size_t elements,
                                      struct evq_error *err)
{
    const size_t size = evq_dtype_bytes(tensor->dtype);

    if (!evq_convert_f32(tensor->dtype, NULL, 0, NULL)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "dtype %s cannot be computed with",
                             tensor->dtype_name);
    }
    if (elements == 0) {
        return EVQ_OK;
    }
    if (tensor->dtype == EVQ_DTYPE_F32) {
        return evq_tensor_read_elements(checkpoint, tensor, out, elements * size, size, err);
    }
    return tensor->contiguous ? convert_chunks(checkpoint, tensor, out, elements, size, err)
                              : convert_gathered(checkpoint, tensor, out, elements, size, err);
}

enum evq_status evq_tensor_read_f32(const struct evq_checkpoint *checkpoint,
                                    const struct evq_tensor *tensor, float *out, size_t elements,
                                    struct evq_error *err)
{
    enum evq_status status = evq_tensor_check_elements(tensor, elements, err);

    if (status == EVQ_OK) {
        status = read_converted(checkpoint, tensor, out, elements, err);
    }
    return evq_tensor_error_prefix(tensor, status, err);
}
