/*
 * Rows on the emulated device, filled and read by tests of kernels/cuda/. Values are random, the
 * same for fp32 and bf16 rows: rounded to bf16.
 */
#ifndef EVQ_TESTS_UNIT_CUDA_FIXTURE_H
#define EVQ_TESTS_UNIT_CUDA_FIXTURE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launchers.h"
#include "tests/fixture/random.h"
#include "tests/gpu/emulator/control.h"

static uint64_t random_state = 20261122;

static inline float of_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* To the nearest, ties to even. */
static inline uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return isnan(value) ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* In (-scale, scale), as a bf16 value. */
static inline float random_value(float scale)
{
    return of_bf16(to_bf16(scale * fixture_random_float(&random_state)));
}

static inline void must_cuda(cudaError_t code)
{
    assert_int_equal(code, cudaSuccess);
}

static inline void *device_new(const void *values, size_t bytes)
{
    void *d_data = NULL;

    must_cuda(cudaMalloc(&d_data, bytes > 0 ? bytes : 1));
    if (values != NULL) {
        must_cuda(cudaMemcpy(d_data, values, bytes, cudaMemcpyHostToDevice));
    }
    return d_data;
}

/* `count` rows of `columns`, with their values here too; `room` columns more are NaN. */
struct table {
    struct evq_cuda_rows rows;
    float *values; // [count][stride].
    int64_t count;
};

static inline struct table table_new(int64_t count, int32_t columns, int32_t room, bool bf16,
                                     float scale)
{
    const int64_t stride = columns + room;
    const size_t all = (size_t)(count * stride);
    struct table table = {{NULL, stride, bf16}, malloc((all + 1) * sizeof(float)), count};
    uint16_t *shorts = malloc((all + 1) * sizeof(*shorts));

    assert_true(table.values != NULL && shorts != NULL);
    for (size_t i = 0; i < all; i++) {
        const bool there = (int64_t)i % stride < columns;
        table.values[i] = there && scale > 0.0f ? random_value(scale) : NAN;
        shorts[i] = to_bf16(table.values[i]);
    }
    table.rows.d_data = bf16 ? device_new(shorts, all * 2) : device_new(table.values, all * 4);
    free(shorts);
    return table;
}

/* Brings the device's values here. */
static inline void table_read(struct table *table)
{
    const size_t all = (size_t)(table->count * table->rows.stride);
    const uint16_t *shorts = table->rows.d_data;

    must_cuda(cudaStreamSynchronize(NULL));
    for (size_t i = 0; i < all; i++) {
        table->values[i] =
            table->rows.bf16 ? of_bf16(shorts[i]) : ((const float *)table->rows.d_data)[i];
    }
}

static inline float *table_at(const struct table *table, int64_t row, int64_t column)
{
    return table->values + row * table->rows.stride + column;
}

static inline void table_free(struct table *table)
{
    must_cuda(cudaFree(table->rows.d_data));
    free(table->values);
}

static inline void check_near(double got, double wanted, double tolerance, const char *what)
{
    if (!(fabs(got - wanted) <= tolerance * (1.0 + fabs(wanted)))) {
        fail_msg("%s: got %.9g, expected %.9g within %g", what, got, wanted, tolerance);
    }
}

static inline void must(enum evq_status status, const struct evq_error *err)
{
    if (status != EVQ_OK) {
        fail_msg("%s", err->message);
    }
}

/* What is lost where a value is written as bf16, or computed in fp32. */
static inline double rounding(bool bf16)
{
    return bf16 ? 0.0042 : 3e-6;
}

#endif
