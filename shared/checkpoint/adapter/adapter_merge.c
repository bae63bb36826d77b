#include "shared/checkpoint/adapter/adapter_merge.h"

#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/tensor_read.h"

bool evq_merge_takes(enum evq_dtype dtype)
{
    return dtype == EVQ_DTYPE_F32 || dtype == EVQ_DTYPE_F16 || dtype == EVQ_DTYPE_BF16 ||
           dtype == EVQ_DTYPE_F64;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)(bits >> 16 | 0x40); // NaN stays NaN.
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounds to the nearest half, ties to even. */
static uint16_t to_f16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00);
    }
    if (magnitude >= 0x477ff000) { // 65520 and more round to infinity.
        return (uint16_t)(sign | 0x7c00);
    }
    if (magnitude < 0x38800000) { // Below 2^-14: in steps of 2^-24.
        float scaled;
        memcpy(&scaled, &magnitude, sizeof(scaled));
        scaled += 0.5f; // In [0.5, 1) floats are 2^-24 apart: the addition rounds.
        uint32_t rounded;
        memcpy(&rounded, &scaled, sizeof(rounded));
        return (uint16_t)(sign | (rounded - 0x3f000000));
    }
    const uint32_t half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return (uint16_t)(sign | half);
}

static void store(enum evq_dtype dtype, const float *values, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        if (dtype == EVQ_DTYPE_F64) {
            const double value = values[i];
            memcpy(out + 8 * i, &value, sizeof(value));
        } else {
            const uint16_t half = dtype == EVQ_DTYPE_BF16 ? to_bf16(values[i]) : to_f16(values[i]);
            memcpy(out + 2 * i, &half, sizeof(half));
        }
    }
}

/* Rounds values as storing them in dtype would. */
static void round_to(enum evq_dtype dtype, float *values, size_t count)
{
    uint16_t halves[256];
    const size_t most = sizeof(halves) / sizeof(halves[0]);

    if (dtype != EVQ_DTYPE_BF16 && dtype != EVQ_DTYPE_F16) {
        return;
    }
    for (size_t at = 0; at < count; at += most) {
        const size_t part = count - at < most ? count - at : most;
        store(dtype, values + at, part, (uint8_t *)halves);
        (void)evq_convert_f32(dtype, halves, part, values + at); // It converts both types.
    }
}

/* A matrix product in rows of the weight: row i is the sum over k of left(i, k) times row k of
 * right. */
struct product {
    const float *left;
    size_t left_row; // Distance in elements from (i, k) to (i + 1, k); left_column: to (i, k + 1).
    size_t left_column;
    const float *right; // [rank, columns]
    size_t rank;
    size_t columns;
};

static void add_row(const struct product *product, const struct evq_merge *merge, size_t i,
                    float *delta, float *out)
{
    const float scaling = (float)merge->scaling;

    memset(delta, 0, product->columns * sizeof(*delta));
    for (size_t k = 0; k < product->rank; k++) {
        const float factor = product->left[i * product->left_row + k * product->left_column];
        const float *row = product->right + k * product->columns;
        for (size_t j = 0; j < product->columns; j++) {
            delta[j] += factor * row[j];
        }
    }
    for (size_t j = 0; j < product->columns; j++) {
        delta[j] *= scaling;
    }
    for (size_t j = 0; j < product->columns; j++) {
        out[j] += delta[j];
    }
    round_to(merge->base.dtype, out, product->columns);
}

static void transpose(const float *in, size_t rows, size_t columns, float *out)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < columns; j++) {
            out[j * rows + i] = in[i * columns + j];
        }
    }
}

/* scratch has room for a row of the weight and for B. */
static void multiply(const struct evq_merge *merge, const float *a, const float *b, float *scratch,
                     float *out)
{
    const size_t rank = (size_t)merge->a.shape[0];
    const size_t inputs = (size_t)merge->a.shape[1];
    const size_t outputs = (size_t)merge->b.shape[0];
    struct product product = {.left = b,
                              .left_row = rank,
                              .left_column = 1,
                              .right = a,
                              .rank = rank,
                              .columns = (size_t)merge->base.shape[1]};

    if (merge->transposed) { // Row i belongs to input i: column i of A times B transposed.
        float *turned = scratch + product.columns;
        transpose(b, outputs, rank, turned);
        product.left = a;
        product.left_row = 1;
        product.left_column = inputs;
        product.right = turned;
    }
    for (size_t i = 0; i < (size_t)merge->base.shape[0]; i++) {
        add_row(&product, merge, i, scratch, out + i * product.columns);
    }
}

enum evq_status evq_merge_read_f32(const struct evq_checkpoint *checkpoint,
                                   const struct evq_merge *merge, float *out, size_t elements,
                                   struct evq_error *err)
{
    size_t a_count = 0;
    size_t b_count = 0;
    size_t floats = 0;
    size_t bytes = 0;
    enum evq_status status = evq_tensor_read_f32(checkpoint, &merge->base, out, elements, err);

    if (status != EVQ_OK) {
        return status;
    }
    // Memory for A, B, a row of the weight and B transposed.
    const size_t columns = (size_t)merge->base.shape[1];
    if (!evq_tensor_elements(&merge->a, &a_count) || !evq_tensor_elements(&merge->b, &b_count) ||
        !evq_size_mul(b_count, 2, &floats) || !evq_size_add(floats, a_count, &floats) ||
        !evq_size_add(floats, columns, &floats) || !evq_size_mul(floats, sizeof(float), &bytes)) {
        return evq_error_set(err, EVQ_E_LIMIT, "its adapter is too large");
    }
    float *a = malloc(bytes);
    if (a == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", bytes);
    }
    float *b = a + a_count;
    status = evq_tensor_read_f32(checkpoint, &merge->a, a, a_count, err);
    if (status == EVQ_OK) {
        status = evq_tensor_read_f32(checkpoint, &merge->b, b, b_count, err);
    }
    if (status == EVQ_OK) {
        multiply(merge, a, b, b + b_count, out);
    }
    free(a);
    return status;
}

enum evq_status evq_merge_read_raw(const struct evq_checkpoint *checkpoint,
                                   const struct evq_merge *merge, void *out, size_t elements,
                                   struct evq_error *err)
{
    size_t bytes = 0;

    if (merge->base.dtype == EVQ_DTYPE_F32) {
        return evq_merge_read_f32(checkpoint, merge, out, elements, err);
    }
    if (!evq_size_mul(elements, sizeof(float), &bytes)) {
        return evq_error_set(err, EVQ_E_LIMIT, "%zu elements", elements);
    }
    float *values = malloc(bytes == 0 ? 1 : bytes);
    if (values == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", bytes);
    }
    enum evq_status status = evq_merge_read_f32(checkpoint, merge, values, elements, err);
    if (status == EVQ_OK) {
        store(merge->base.dtype, values, elements, out);
    }
    free(values);
    return status;
}
