#include "shared/checkpoint/read.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/adapter/adapter_merge.h"
#include "shared/checkpoint/format.h"
#include "shared/checkpoint/pieces.h"

#define CHUNK_BYTES    ((size_t)1 << 20)   // Read and converted at once: stays in the cache.
#define SPAN_BYTES_MAX ((uint64_t)2 << 30) // A strided view is gathered in memory up to this span.

bool evq_tensor_elements(const struct evq_tensor *tensor, size_t *ret_elements)
{
    size_t elements = 1;
    bool fits = true;

    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0) {
            *ret_elements = 0;
            return true;
        }
        fits = fits && evq_size_mul(elements, (size_t)tensor->shape[i], &elements);
    }
    if (fits) {
        *ret_elements = elements;
    }
    return fits;
}

static enum evq_status named(const struct evq_tensor *tensor, enum evq_status status,
                             struct evq_error *err)
{
    if (status != EVQ_OK) {
        char shown[EVQ_SHOWN_BYTES];
        evq_error_escape(tensor->name, strlen(tensor->name), shown, sizeof(shown));
        (void)evq_error_prefix(err, "tensor '%s'", shown); // The status stays what it is.
    }
    return status;
}

/* A view as rows of `run` elements that lie side by side; the dimensions before them are counted
 * like an odometer. */
struct odometer {
    const struct evq_tensor *tensor;
    size_t size;  // Of an element, in bytes.
    size_t run;   // Elements side by side.
    int32_t rank; // Dimensions that remain.
    int64_t index[EVQ_TENSOR_RANK_MAX];
};

static void odometer_start(struct odometer *odometer, const struct evq_tensor *tensor, size_t size)
{
    *odometer = (struct odometer){.tensor = tensor, .size = size, .run = 1, .rank = tensor->rank};
    while (odometer->rank > 0) {
        int32_t last = odometer->rank - 1;
        if (tensor->shape[last] != 1 && tensor->strides[last] != (int64_t)odometer->run) {
            break;
        }
        odometer->run *= (size_t)tensor->shape[last]; // No overflow: the elements were counted.
        odometer->rank = last;
    }
}

/* Bytes from the first element to the present run. The bounds of every view were checked when it
 * was opened. */
static uint64_t odometer_offset(const struct odometer *odometer)
{
    uint64_t elements = 0;

    for (int32_t i = 0; i < odometer->rank; i++) {
        elements += (uint64_t)odometer->index[i] * (uint64_t)odometer->tensor->strides[i];
    }
    return elements * odometer->size;
}

static bool odometer_next(struct odometer *odometer)
{
    for (int32_t i = odometer->rank - 1; i >= 0; i--) {
        if (++odometer->index[i] < odometer->tensor->shape[i]) {
            return true;
        }
        odometer->index[i] = 0;
    }
    return false;
}

/* All of the view's span in memory, then picked. */
static enum evq_status gather_span(const struct evq_checkpoint *checkpoint,
                                   const struct evq_tensor *tensor, uint8_t *out, size_t size,
                                   struct evq_error *err)
{
    struct odometer odometer;
    uint8_t *span = malloc((size_t)tensor->bytes);

    if (span == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%llu bytes", (unsigned long long)tensor->bytes);
    }
    enum evq_status status = evq_directory_read(checkpoint, tensor->file, tensor->offset, span,
                                                (size_t)tensor->bytes, err);
    if (status == EVQ_OK) {
        odometer_start(&odometer, tensor, size);
        size_t run_bytes = odometer.run * size;
        do {
            memcpy(out, span + odometer_offset(&odometer), run_bytes);
            out += run_bytes;
        } while (odometer_next(&odometer));
    }
    free(span);
    return status;
}

/* Run by run from the file: for the few elements that are spread over a large storage. */
static enum evq_status gather_runs(const struct evq_checkpoint *checkpoint,
                                   const struct evq_tensor *tensor, uint8_t *out, size_t size,
                                   struct evq_error *err)
{
    struct odometer odometer;
    enum evq_status status;

    odometer_start(&odometer, tensor, size);
    size_t run_bytes = odometer.run * size;
    do {
        status =
            evq_directory_read(checkpoint, tensor->file,
                               tensor->offset + odometer_offset(&odometer), out, run_bytes, err);
        out += run_bytes;
    } while (status == EVQ_OK && odometer_next(&odometer));
    return status;
}

enum evq_status evq_read_elements(const struct evq_checkpoint *checkpoint,
                                  const struct evq_tensor *tensor, void *out, size_t out_bytes,
                                  size_t size, struct evq_error *err)
{
    if (out_bytes == 0) {
        return EVQ_OK;
    }
    if (tensor->contiguous) {
        return evq_directory_read(checkpoint, tensor->file, tensor->offset, out, out_bytes, err);
    }
    if (tensor->merge != NULL) {
        return evq_merge_read_raw(checkpoint, tensor->merge, out, out_bytes / size, err);
    }
    if (tensor->piece_count > 0) {
        return evq_pieces_read(checkpoint, tensor, out, size, err);
    }
    if (tensor->bytes <= SPAN_BYTES_MAX && tensor->bytes / 4 <= (uint64_t)out_bytes + CHUNK_BYTES) {
        return gather_span(checkpoint, tensor, out, size, err);
    }
    return gather_runs(checkpoint, tensor, out, size, err);
}

static enum evq_status check_elements(const struct evq_tensor *tensor, size_t elements,
                                      struct evq_error *err)
{
    size_t counted = 0;

    if (!evq_tensor_elements(tensor, &counted) || counted != elements) {
        return evq_error_set(err, EVQ_E_INVALID, "room for %zu elements, it has %zu", elements,
                             counted);
    }
    return EVQ_OK;
}

enum evq_status evq_checkpoint_read_raw(const struct evq_checkpoint *checkpoint,
                                        const struct evq_tensor *tensor, void *out,
                                        size_t out_bytes, struct evq_error *err)
{
    size_t size = evq_dtype_stored_bytes(tensor);

    if (size == 0) {
        if (tensor->contiguous && out_bytes == tensor->bytes) { // Unknown elements, known bytes.
            return named(tensor, evq_read_elements(checkpoint, tensor, out, out_bytes, 1, err),
                         err);
        }
        return named(tensor,
                     evq_error_set(err, EVQ_E_UNSUPPORTED,
                                   "dtype %s has no whole bytes per element", tensor->dtype_name),
                     err);
    }
    enum evq_status status =
        out_bytes % size == 0
            ? check_elements(tensor, out_bytes / size, err)
            : evq_error_set(err, EVQ_E_INVALID, "room for %zu bytes, elements have %zu", out_bytes,
                            size);
    if (status == EVQ_OK) {
        status = evq_read_elements(checkpoint, tensor, out, out_bytes, size, err);
    }
    return named(tensor, status, err);
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
        status = evq_directory_read(checkpoint, tensor->file, tensor->offset + (uint64_t)at * size,
                                    bytes, count * size, err);
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
    enum evq_status status = evq_read_elements(checkpoint, tensor, raw, bytes, size, err);
    if (status == EVQ_OK) {
        (void)evq_convert_f32(tensor->dtype, raw, elements, out); // The dtype was checked.
    }
    free(raw);
    return status;
}

enum evq_status evq_checkpoint_read_f32(const struct evq_checkpoint *checkpoint,
                                        const struct evq_tensor *tensor, float *out,
                                        size_t elements, struct evq_error *err)
{
    size_t size = evq_dtype_bytes(tensor->dtype);
    enum evq_status status = check_elements(tensor, elements, err);

    if (status == EVQ_OK && !evq_convert_f32(tensor->dtype, NULL, 0, NULL)) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED, "dtype %s cannot be computed with",
                               tensor->dtype_name);
    }
    if (status == EVQ_OK && elements > 0) {
        if (tensor->dtype == EVQ_DTYPE_F32) {
            status = evq_read_elements(checkpoint, tensor, out, elements * size, size, err);
        } else if (tensor->merge != NULL) {
            status = evq_merge_read_f32(checkpoint, tensor->merge, out, elements, err);
        } else if (tensor->contiguous) {
            status = convert_chunks(checkpoint, tensor, out, elements, size, err);
        } else {
            status = convert_gathered(checkpoint, tensor, out, elements, size, err);
        }
    }
    return named(tensor, status, err);
}
