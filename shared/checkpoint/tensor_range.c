#include "shared/checkpoint/tensor_range.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"

#define GATHER_EXTRA_BYTES                                                                         \
    ((size_t)1 << 20) // A view may span this much more than four times its size.
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

enum evq_status evq_checkpoint_read_fd(int fd, uint64_t offset, void *out, size_t bytes,
                                       struct evq_error *err)
{
    const enum evq_status status = evq_file_read_at(fd, out, bytes, offset, "the file", err);

    return status == EVQ_E_CORRUPT
               ? evq_error_set(err, EVQ_E_CHANGED,
                               "the file became shorter: it ends before byte %llu",
                               (unsigned long long)(offset + bytes))
               : status;
}

enum evq_status evq_checkpoint_read_bytes(const struct evq_checkpoint *checkpoint, int32_t file,
                                          uint64_t offset, void *out, size_t bytes,
                                          struct evq_error *err)
{
    return evq_checkpoint_read_fd(checkpoint->files[file].fd, offset, out, bytes, err);
}

/* Iterates over a view in rows of `run` adjacent elements. The dimensions above the rows count like
 * an odometer. */
struct odometer {
    const struct evq_tensor *tensor;
    size_t size;  // Size of an element in bytes.
    size_t run;   // Number of adjacent elements.
    int32_t rank; // Number of dimensions above the rows.
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

/* Offset of the current row from the first element, in bytes. The bounds of every view were checked
 * when it was opened. */
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

/* Reads the whole span of the view into memory and picks the elements. */
static enum evq_status gather_span(const struct evq_checkpoint *checkpoint,
                                   const struct evq_tensor *tensor, uint8_t *out, size_t size,
                                   struct evq_error *err)
{
    struct odometer odometer;
    uint8_t *span = malloc((size_t)tensor->bytes);

    if (span == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%llu bytes", (unsigned long long)tensor->bytes);
    }
    enum evq_status status = evq_checkpoint_read_bytes(checkpoint, tensor->file, tensor->offset,
                                                       span, (size_t)tensor->bytes, err);
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

/* Reads row by row from the file, for a few elements spread over a large storage. */
static enum evq_status gather_runs(const struct evq_checkpoint *checkpoint,
                                   const struct evq_tensor *tensor, uint8_t *out, size_t size,
                                   struct evq_error *err)
{
    struct odometer odometer;
    enum evq_status status;

    odometer_start(&odometer, tensor, size);
    size_t run_bytes = odometer.run * size;
    do {
        status = evq_checkpoint_read_bytes(checkpoint, tensor->file,
                                           tensor->offset + odometer_offset(&odometer), out,
                                           run_bytes, err);
        out += run_bytes;
    } while (status == EVQ_OK && odometer_next(&odometer));
    return status;
}

enum evq_status evq_tensor_range_read(const struct evq_checkpoint *checkpoint,
                                      const struct evq_tensor *tensor, void *out, size_t out_bytes,
                                      size_t size, struct evq_error *err)
{
    if (out_bytes == 0) {
        return EVQ_OK;
    }
    if (tensor->contiguous) {
        return evq_checkpoint_read_bytes(checkpoint, tensor->file, tensor->offset, out, out_bytes,
                                         err);
    }
    if (tensor->bytes <= SPAN_BYTES_MAX &&
        tensor->bytes / 4 <= (uint64_t)out_bytes + GATHER_EXTRA_BYTES) {
        return gather_span(checkpoint, tensor, out, size, err);
    }
    return gather_runs(checkpoint, tensor, out, size, err);
}
