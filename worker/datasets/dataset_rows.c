/* Converts the samples of a data set into the inputs and answers of a batch. */
#include "worker/datasets/dataset.h"

#define CONVERT_ROW(type)                                                                          \
    for (size_t c = 0; c < columns; c++) {                                                         \
        out[c] = (float)((const type *)array->data)[at + c] * scale + shift;                       \
    }                                                                                              \
    break

static void convert_row(const struct evq_array *array, int64_t sample, size_t columns, float scale,
                        float shift, float *out)
{
    const size_t at = (size_t)sample * columns;

    switch (array->dtype) {
    case EVQ_DTYPE_U8:
        CONVERT_ROW(uint8_t);
    case EVQ_DTYPE_I8:
        CONVERT_ROW(int8_t);
    case EVQ_DTYPE_U16:
        CONVERT_ROW(uint16_t);
    case EVQ_DTYPE_I16:
        CONVERT_ROW(int16_t);
    case EVQ_DTYPE_U32:
        CONVERT_ROW(uint32_t);
    case EVQ_DTYPE_I32:
        CONVERT_ROW(int32_t);
    case EVQ_DTYPE_I64:
        CONVERT_ROW(int64_t);
    case EVQ_DTYPE_F64:
        CONVERT_ROW(double);
    default:
        CONVERT_ROW(float);
    }
}

void evq_dataset_inputs(const struct evq_dataset *dataset, int64_t first, int64_t stride,
                        int32_t rows, float *out)
{
    const size_t columns = (size_t)dataset->columns;

    for (int32_t r = 0; r < rows; r++) {
        convert_row(&dataset->inputs, first + r * stride, columns, dataset->scale, dataset->shift,
                    out + (size_t)r * columns);
    }
}

void evq_dataset_labels(const struct evq_dataset *dataset, int64_t first, int64_t stride,
                        int32_t rows, int32_t *out)
{
    for (int32_t r = 0; r < rows; r++) {
        out[r] = (int32_t)evq_array_integer(&dataset->answers, first + r * stride);
    }
}

void evq_dataset_targets(const struct evq_dataset *dataset, int64_t first, int64_t stride,
                         int32_t rows, float *out)
{
    const size_t columns = (size_t)dataset->answer_columns;

    for (int32_t r = 0; r < rows; r++) {
        convert_row(&dataset->answers, first + r * stride, columns, 1.0f, 0.0f,
                    out + (size_t)r * columns);
    }
}
