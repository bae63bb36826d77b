/* Weights as they arrive, in parts, transposed, in the file's own type, read back in fp32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/weights.h"
#include "tests/fixture/random.h"

static uint64_t random_state = 20261121;

static double half_value(uint16_t half)
{
    const int exponent = half >> 10 & 31;
    const int digits = half & 1023;
    const double size = exponent == 31  ? (digits != 0 ? NAN : INFINITY)
                        : exponent == 0 ? ldexp(digits, -24)
                                        : ldexp(1024 + digits, exponent - 25);

    return (half & 0x8000) != 0 ? -size : size;
}

static double bf16_value(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return (double)value;
}

struct fixture {
    struct evq_pool *pool;
    struct evq_memory memory;
    struct evq_weights weights;
    struct evq_weight_slot slot;
    struct evq_op op;
    struct evq_plan plan;
};

static void fixture_open(struct fixture *fx, int32_t rows, int32_t columns, bool matrix,
                         enum evq_compute compute, int32_t panel)
{
    struct evq_error err = {0};

    *fx = (struct fixture){.memory = {.bytes_max = SIZE_MAX},
                           .weights = {.panel = panel},
                           .slot = {"w", rows, columns},
                           .op = {.kind = matrix ? EVQ_OP_GEMM : EVQ_OP_EMBEDDING}};
    fx->plan = (struct evq_plan){
        .ops = &fx->op, .op_count = 1, .slots = &fx->slot, .slot_count = 1, .compute = compute};
    assert_int_equal(evq_pool_new(2, &fx->pool, &err), EVQ_OK);
    assert_int_equal(evq_weights_prepare(&fx->weights, &fx->plan, &fx->memory, &err), EVQ_OK);
}

static void fixture_close(struct fixture *fx)
{
    evq_weights_release(&fx->weights, &fx->memory);
    assert_int_equal(fx->memory.bytes, 0);
    evq_pool_free(fx->pool);
}

/* A value of any finite size, as its bits; what it is worth through ret_value. */
static uint32_t random_value(enum evq_weight_type type, double *ret_value)
{
    uint32_t bits = (uint32_t)fixture_random(&random_state);
    float value;

    if (type == EVQ_WEIGHT_F16) {
        bits = (bits & 0x7c00) == 0x7c00 ? bits & 0xbfff : bits & 0xffff;
        *ret_value = half_value((uint16_t)bits);
        return bits;
    }
    bits = (bits & 0x7f800000) == 0x7f800000 ? bits & 0xbfffffff : bits;
    bits = type == EVQ_WEIGHT_BF16 ? bits & 0xffff0000 : bits;
    memcpy(&value, &bits, sizeof(value));
    *ret_value = (double)value;
    return type == EVQ_WEIGHT_BF16 ? bits >> 16 : bits;
}

/* Puts rows [first, first + rows) with new values, which join `wanted`. */
static void put_part(struct fixture *fx, enum evq_weight_type type, int32_t first, int32_t rows,
                     bool transposed, double *wanted)
{
    const size_t columns = (size_t)fx->slot.columns;
    uint32_t *values = malloc((size_t)rows * columns * sizeof(*values));
    uint16_t *shorts = (uint16_t *)values;
    assert_non_null(values);
    for (size_t r = 0; r < (size_t)rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            // Ascending, so that a short never overwrites what is still to be written.
            const size_t at = transposed ? c * (size_t)rows + r : r * columns + c;
            const uint32_t bits = random_value(type, &wanted[((size_t)first + r) * columns + c]);
            if (type == EVQ_WEIGHT_F32) {
                values[at] = bits;
            } else {
                shorts[at] = (uint16_t)bits;
            }
        }
    }
    const struct evq_weight_blob blob = {
        .values = values, .type = type, .first_row = first, .rows = rows, .transposed = transposed};
    evq_weights_put(&fx->weights.items[0], fx->weights.panel, &blob, fx->pool);
    free(values);
}

static void check_shape(int32_t rows, int32_t columns, bool matrix, enum evq_compute compute,
                        int32_t panel)
{
    struct fixture fx;
    double *wanted = calloc((size_t)rows * (size_t)columns, sizeof(*wanted));
    float *row = malloc((size_t)columns * sizeof(*row));
    assert_non_null(wanted);
    assert_non_null(row);
    fixture_open(&fx, rows, columns, matrix, compute, panel);
    for (int32_t turn = 0; turn < 8; turn++) {
        for (int32_t first = 0; first < rows;) {
            const int32_t left = rows - first;
            const int32_t part =
                turn < 4 ? left : 1 + (int32_t)(fixture_random(&random_state) % (uint64_t)left);
            put_part(&fx,
                     (enum evq_weight_type)(fixture_random(&random_state) % EVQ_WEIGHT_TYPE_COUNT),
                     first, part, fixture_random(&random_state) % 2 == 0, wanted);
            first += part;
            assert_int_equal(fx.weights.items[0].rows_put, first);
        }
        for (int32_t r = 0; r < rows; r++) {
            evq_weights_row(&fx.weights.items[0], panel, r, row);
            for (int32_t c = 0; c < columns; c++) {
                const double value = wanted[(size_t)r * (size_t)columns + (size_t)c];
                const bool exact = fx.weights.items[0].form != EVQ_WEIGHT_PANELS_BF16;
                // A bf16 value has 8 digits.
                const double room = exact ? 0.0 : fabs(value) * 0x1p-8 + 0x1p-134;
                if (!(fabs((double)row[c] - value) <= room) && fabs(value) < 3.38e38) {
                    fail_msg("%d x %d, row %d, column %d: got %g, expected %g", (int)rows,
                             (int)columns, (int)r, (int)c, (double)row[c], value);
                }
            }
        }
    }
    fixture_close(&fx);
    free(row);
    free(wanted);
}

static void weights_read_back_as_they_were_put(void **unused)
{
    static const int32_t shapes[][2] = {{1, 1},  {1, 300}, {5, 7},    {8, 128}, {24, 129},
                                        {31, 3}, {32, 64}, {33, 257}, {97, 1},  {100, 50}};
    static const int32_t panels[] = {8, 24, 32};

    (void)unused;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (size_t p = 0; p < 3; p++) {
            check_shape(shapes[i][0], shapes[i][1], true, EVQ_COMPUTE_F32, panels[p]);
            check_shape(shapes[i][0], shapes[i][1], true, EVQ_COMPUTE_BF16, panels[p]);
        }
        check_shape(shapes[i][0], shapes[i][1], false, EVQ_COMPUTE_F32, 32);
        check_shape(shapes[i][0], shapes[i][1], false, EVQ_COMPUTE_BF16, 32);
    }
}

static void every_half_is_read_exactly(void **unused)
{
    struct fixture fx;
    uint16_t *halves = malloc(65536 * sizeof(*halves));
    float *row = malloc(65536 * sizeof(*row));

    (void)unused;
    assert_non_null(halves);
    assert_non_null(row);
    for (int32_t i = 0; i < 65536; i++) {
        halves[i] = (uint16_t)i;
    }
    fixture_open(&fx, 1, 65536, false, EVQ_COMPUTE_F32, 32);
    const struct evq_weight_blob blob = {.values = halves, .type = EVQ_WEIGHT_F16, .rows = 1};
    evq_weights_put(&fx.weights.items[0], 32, &blob, fx.pool);
    evq_weights_row(&fx.weights.items[0], 32, 0, row);
    for (int32_t i = 0; i < 65536; i++) {
        const double wanted = half_value((uint16_t)i);
        if (isnan(wanted)
                ? !isnan(row[i])
                : (double)row[i] != wanted || (signbit(row[i]) != 0) != (signbit(wanted) != 0)) {
            fail_msg("half %04x: got %g, expected %g", (unsigned)i, (double)row[i], wanted);
        }
    }
    fixture_close(&fx);
    free(row);
    free(halves);
}

/* To the nearest, ties to even; infinities and NaN stay, and what rounds beyond the largest is
 * infinite. */
static void bf16_rounds_to_the_nearest(void **unused)
{
    static const struct {
        uint32_t bits;
        uint16_t wanted;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80},
                 {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0xbf818000, 0xbf82},
                 {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
                 {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}, {0x00008001, 0x0001}};
    enum { COUNT = sizeof(cases) / sizeof(cases[0]) };
    struct fixture fx;
    uint32_t values[COUNT];
    float row[COUNT];

    (void)unused;
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = cases[i].bits;
    }
    fixture_open(&fx, 1, COUNT, true, EVQ_COMPUTE_BF16, 32);
    const struct evq_weight_blob blob = {.values = values, .type = EVQ_WEIGHT_F32, .rows = 1};
    evq_weights_put(&fx.weights.items[0], 32, &blob, fx.pool);
    evq_weights_row(&fx.weights.items[0], 32, 0, row);
    for (size_t i = 0; i < COUNT; i++) {
        const double wanted = bf16_value(cases[i].wanted);
        assert_true(isnan(wanted) ? isnan(row[i]) : (double)row[i] == wanted);
    }
    fixture_close(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_read_back_as_they_were_put),
        cmocka_unit_test(every_half_is_read_exactly),
        cmocka_unit_test(bf16_rounds_to_the_nearest),
    };
    print_message("seed 20261121\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
