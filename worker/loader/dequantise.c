#include "worker/loader/dequantise.h"

#include <assert.h>
#include <math.h>

#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/dtype.h"
#include "worker/models/quantised.h"

struct grid { // How the scales lie over the tensor, seen as one matrix of all its rows.
    size_t row_bytes, columns;
    size_t scale_columns, scale_bytes; // Scales for a row of blocks, and bytes of one scale.
    size_t block_rows, block_columns;  // Size of a block in values.
};

/* The product of the first dimensions. It cannot overflow, because the checkpoint was checked. */
static size_t product(const struct evq_tensor *tensor, int32_t dimensions)
{
    size_t product = 1;

    for (int32_t i = 0; i < dimensions; i++) {
        product *= (size_t)tensor->shape[i];
    }
    return product;
}

static struct grid grid_of(const struct evq_source *source)
{
    const struct evq_tensor *tensor = source->tensor;
    const struct evq_tensor *scale = source->scale;
    const bool pairs = source->kind == EVQ_SOURCE_MXFP4;
    const int32_t outer = tensor->rank - (pairs ? 2 : 1); // Dimensions that count rows.
    const size_t rows = product(tensor, outer);
    const int32_t scale_outer = scale->rank > 0 ? scale->rank - 1 : 0;
    const size_t scale_rows = product(scale, scale_outer);
    struct grid grid = {.row_bytes = (size_t)tensor->bytes / rows};

    grid.columns = pairs ? 2 * grid.row_bytes : grid.row_bytes;
    grid.scale_columns = product(scale, scale->rank) / scale_rows;
    grid.scale_bytes = evq_dtype_bytes(scale->dtype);
    grid.block_rows = rows / scale_rows;
    grid.block_columns = grid.columns / grid.scale_columns;
    return grid;
}

size_t evq_dequantise_values(const struct evq_source *source, uint64_t bytes)
{
    return source->kind == EVQ_SOURCE_MXFP4
               ? 2 * (size_t)bytes
               : (size_t)bytes / evq_dtype_bytes(source->tensor->dtype);
}

size_t evq_dequantise_room(const struct evq_source *source, uint64_t bytes)
{
    if (source->scale == NULL) {
        return 0;
    }
    const struct grid grid = grid_of(source);
    // The first and the last row of blocks may be incomplete.
    const size_t rows = (size_t)bytes / grid.row_bytes / grid.block_rows + 2;

    return rows * grid.scale_columns * (sizeof(float) + grid.scale_bytes);
}

/* Writes twice the FP4 values. expand_exponents() halves the scales in return, because the largest
 * scale (2^128, stored as 255) is not finite in fp32. */
static void expand_pairs(const uint8_t *stored, size_t bytes, float *out)
{
    static const float doubled[16] = {0.0f,  1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                      -0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};

    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = doubled[stored[i] & 15];
        out[2 * i + 1] = doubled[stored[i] >> 4];
    }
}

/* Writes half of each scale: a byte b means 2^(b - 127). */
static void expand_exponents(const uint8_t *stored, size_t count, float *out)
{
    float halves[256];

    for (int i = 0; i < 256; i++) {
        halves[i] = ldexpf(1.0f, i - 128);
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = halves[stored[i]];
    }
}

static void scale_row(const struct grid *grid, const float *scales, float *values)
{
    for (size_t block = 0; block < grid->scale_columns; block++) {
        const float scale = scales[block];
        float *first = values + block * grid->block_columns;
        for (size_t i = 0; i < grid->block_columns; i++) {
            first[i] *= scale;
        }
    }
}

enum evq_status evq_dequantise(const struct evq_checkpoint *checkpoint,
                               const struct evq_source *source, uint64_t at, uint64_t bytes,
                               const uint8_t *stored, void *scratch, float *out,
                               struct evq_error *err)
{
    const struct evq_tensor *scale = source->scale;
    const struct grid grid = grid_of(source);
    const size_t row = (size_t)at / grid.row_bytes;
    const size_t rows = (size_t)bytes / grid.row_bytes;
    const size_t first = row / grid.block_rows;
    const size_t count = ((row + rows - 1) / grid.block_rows - first + 1) * grid.scale_columns;
    float *scales = scratch;
    uint8_t *raw = (uint8_t *)(scales + count);

    assert(rows > 0 && at % grid.row_bytes == 0 && bytes % grid.row_bytes == 0);
    const enum evq_status status = evq_checkpoint_read_bytes(
        checkpoint, scale->file,
        scale->offset + (uint64_t)first * grid.scale_columns * grid.scale_bytes, raw,
        count * grid.scale_bytes, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (source->kind == EVQ_SOURCE_MXFP4) {
        expand_pairs(stored, (size_t)bytes, out);
        expand_exponents(raw, count, scales);
    } else if (!evq_convert_f32(source->tensor->dtype, stored, (size_t)bytes, out) ||
               !evq_convert_f32(scale->dtype, raw, count, scales)) {
        return evq_error_set(err, EVQ_E_BUG, "tensor '%s' is %s", source->tensor->name,
                             source->tensor->dtype_name);
    }
    for (size_t i = 0; i < rows; i++) {
        scale_row(&grid, scales + ((row + i) / grid.block_rows - first) * grid.scale_columns,
                  out + i * grid.columns);
    }
    return EVQ_OK;
}
