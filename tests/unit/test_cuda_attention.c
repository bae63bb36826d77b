/* Attention of kernels/cuda/, in bf16 and in fp32, on the emulator of tests/gpu/emulator/ against
 * plain loops in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/cuda_fixture.h"

#define ROWS_MAX 700

static struct evq_error err;
static bool all_shapes; // Else some of them.

struct shape {
    int32_t heads, kv_heads, size, window;
    float cap;
    bool sinks, both;
};

static const float sinks[] = {1.5f, -40.0f, 3.0f, 0.25f, 60.0f, -0.5f}; // One for each head.

/* Sequences of these lengths, ended by 0, and their tiles. */
struct batch {
    int32_t rows, tiles;
    int32_t starts[ROWS_MAX], ends[ROWS_MAX]; // Of the sequence of each row.
    struct evq_attention_tile tile[ROWS_MAX];
};

static void batch_fill(struct batch *batch, const int32_t *lengths, int32_t queries)
{
    *batch = (struct batch){0};
    for (int32_t s = 0; lengths[s] != 0; s++) {
        assert_true(batch->rows + lengths[s] <= ROWS_MAX);
        for (int32_t first = 0; first < lengths[s]; first += queries) {
            const int32_t left = lengths[s] - first;
            batch->tile[batch->tiles++] = (struct evq_attention_tile){
                batch->rows, first, left < queries ? left : queries, lengths[s]};
        }
        for (int32_t i = 0; i < lengths[s]; i++) {
            batch->starts[batch->rows + i] = batch->rows;
            batch->ends[batch->rows + i] = batch->rows + lengths[s];
        }
        batch->rows += lengths[s];
    }
}

static struct evq_op op_of(const struct shape *shape)
{
    return (struct evq_op){.kind = EVQ_OP_ATTENTION,
                           .n = shape->size,
                           .heads = shape->heads,
                           .kv_heads = shape->kv_heads,
                           .window = shape->window,
                           .scale = 2.5f / sqrtf((float)shape->size),
                           .cap = shape->cap,
                           .both = shape->both};
}

/* One row of one head. */
static void plain_head(const struct table *in, const struct batch *batch, const struct evq_op *op,
                       bool has_sinks, int32_t row, int32_t head, double *out)
{
    const int64_t key = (op->heads + head / (op->heads / op->kv_heads)) * (int64_t)op->n;
    const int64_t value = key + (int64_t)op->kv_heads * op->n;
    const int32_t start = batch->starts[row];
    const int32_t low =
        op->window > 0 && row - op->window + 1 > start ? row - op->window + 1 : start;
    const int32_t end = batch->ends[row];
    const int32_t after = op->window > 0 && row + op->window < end ? row + op->window : end;
    const int32_t high = op->both ? after : row + 1;
    double weights[ROWS_MAX];
    double top = -INFINITY;
    double total = 0.0;

    for (int32_t j = low; j < high; j++) {
        weights[j] = 0.0;
        for (int32_t c = 0; c < op->n; c++) {
            weights[j] += (double)op->scale * (double)*table_at(in, row, head * op->n + c) *
                          (double)*table_at(in, j, key + c);
        }
        if (op->cap > 0.0f) {
            weights[j] = tanh(weights[j] / (double)op->cap) * (double)op->cap;
        }
        top = fmax(top, weights[j]);
    }
    total = has_sinks ? exp((double)sinks[head] - top) : 0.0;
    memset(out, 0, (size_t)op->n * sizeof(*out));
    for (int32_t j = low; j < high; j++) {
        weights[j] = exp(weights[j] - top);
        total += weights[j];
        for (int32_t c = 0; c < op->n; c++) {
            out[c] += weights[j] * (double)*table_at(in, j, value + c);
        }
    }
    for (int32_t c = 0; c < op->n; c++) {
        out[c] /= total;
    }
}

static void launch(const struct table *in, const struct batch *batch, const struct evq_op *op,
                   bool has_sinks, bool bf16, struct table *out)
{
    void *d_tiles = device_new(batch->tile, (size_t)batch->tiles * sizeof(batch->tile[0]));
    void *d_sinks = has_sinks ? device_new(sinks, (size_t)op->heads * sizeof(sinks[0])) : NULL;
    const enum evq_status status =
        bf16 ? evq_attention_bf16_launch(&in->rows, d_tiles, batch->tiles, op, d_sinks, &out->rows,
                                         NULL, &err)
             : evq_attention_fp32_launch(&in->rows, d_tiles, batch->tiles, op, d_sinks, &out->rows,
                                         NULL, &err);

    must(status, &err);
    table_read(out);
    must_cuda(cudaFree(d_tiles));
    must_cuda(cudaFree(d_sinks));
}

/* bf16: in the kernel for tensor cores. The values are within spread. */
static double check(const struct shape *shape, const int32_t *lengths, int32_t queries, bool bf16,
                    bool in16, bool out16, float spread)
{
    const struct evq_op op = op_of(shape);
    const double tolerance = bf16 ? 0.006 * (double)spread : rounding(out16);
    double worst = 0.0;
    double wanted[EVQ_ATTENTION_SIZE_MAX];
    static struct batch batch;

    batch_fill(&batch, lengths, queries);
    const int32_t columns = (op.heads + 2 * op.kv_heads) * op.n;
    struct table in =
        table_new(batch.rows, columns, bf16 ? 8 + (8 - columns % 8) % 8 : 3, in16, spread);
    struct table out = table_new(batch.rows, op.heads * op.n, 8, out16, 0.0f);
    launch(&in, &batch, &op, shape->sinks, bf16, &out);
    for (int32_t r = 0; r < batch.rows; r++) {
        for (int32_t h = 0; h < op.heads; h++) {
            plain_head(&in, &batch, &op, shape->sinks, r, h, wanted);
            for (int32_t c = 0; c < op.n; c++) {
                const double got = (double)*table_at(&out, r, h * op.n + c);
                check_near(got, wanted[c], tolerance, "attention");
                worst = fmax(worst, fabs(got - wanted[c]));
            }
        }
        for (int32_t c = op.heads * op.n; c < out.rows.stride; c++) {
            assert_true(isnan(*table_at(&out, r, c))); // Nobody's.
        }
    }
    table_free(&in);
    table_free(&out);
    return worst;
}

static void tensor_cores_equal_plain_loops(void **unused)
{
    static const int32_t lengths[][8] = {
        {1, 2, 15, 16, 17, 31, 0}, {63, 65, 1, 64, 0}, {129, 7, 128, 0}, {300, 127, 0}};
    static const struct shape shapes[] = {
        {.heads = 1, .kv_heads = 1, .size = 32},
        {.heads = 4, .kv_heads = 2, .size = 64, .cap = 2.0f, .sinks = true},
        {.heads = 2, .kv_heads = 2, .size = 80},
        {.heads = 3, .kv_heads = 1, .size = 96},
        {.heads = 2, .kv_heads = 1, .size = 128},
        {.heads = 2, .kv_heads = 1, .size = 256},
        {.heads = 2, .kv_heads = 1, .size = 64, .window = 1},
        {.heads = 2, .kv_heads = 1, .size = 64, .window = 63},
        {.heads = 2, .kv_heads = 2, .size = 32, .window = 64, .cap = 1.0f},
        {.heads = 1, .kv_heads = 1, .size = 32, .window = 65, .sinks = true},
        {.heads = 2, .kv_heads = 1, .size = 96, .window = 5, .cap = 30.0f},
        {.heads = 1, .kv_heads = 1, .size = 128, .window = 130, .sinks = true},
        {.heads = 2, .kv_heads = 1, .size = 256, .cap = 1.0f, .sinks = true},
        {.heads = 1, .kv_heads = 1, .size = 64, .both = true},
        {.heads = 2, .kv_heads = 2, .size = 128, .window = 65, .both = true},
        {.heads = 1, .kv_heads = 1, .size = 96, .window = 2, .cap = 2.0f, .both = true},
        {.heads = 1, .kv_heads = 1, .size = 256, .both = true},
        {.heads = 1, .kv_heads = 1, .size = 64, .window = 2}};

    (void)unused;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s += all_shapes ? 1 : 4) {
        const int32_t queries = evq_attention_bf16_queries(shapes[s].size);
        double worst = 0.0;
        assert_true(queries > 0);
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            if ((l == 3 && s % 4 != 0) || (l < 2 && !all_shapes)) {
                continue;
            }
            worst = fmax(worst, check(&shapes[s], lengths[l], s % 3 == 2 ? 64 : queries, true, true,
                                      true, 1.0f));
        }
        print_message("heads %d on %d of %d values, window %d: at most %.2g off\n",
                      (int)shapes[s].heads, (int)shapes[s].kv_heads, (int)shapes[s].size,
                      (int)shapes[s].window, worst);
    }
    assert_int_equal(evq_attention_bf16_queries(24), 0);
}

/* Products in the hundreds, whose exponentials no float holds: the top counts as scores do. */
static void large_products_equal_plain_loops(void **unused)
{
    static const int32_t lengths[] = {70, 3, 0};
    const struct shape shape = {.heads = 1, .kv_heads = 1, .size = 64};

    (void)unused;
    (void)check(&shape, lengths, 128, true, true, true, 15.0f);
}

/* Rows of both types, and heads whose rows are not aligned. */
static void fp32_equals_plain_loops(void **unused)
{
    static const int32_t lengths[] = {1, 33, 2, 64, 7, 97, 0};
    static const struct shape shapes[] = {
        {.heads = 1, .kv_heads = 1, .size = 1},
        {.heads = 3, .kv_heads = 3, .size = 8, .window = 1},
        {.heads = 4, .kv_heads = 2, .size = 24, .window = 5, .cap = 2.0f, .sinks = true},
        {.heads = 6, .kv_heads = 2, .size = 33, .window = 39, .sinks = true},
        {.heads = 2, .kv_heads = 1, .size = 64, .window = 64},
        {.heads = 2, .kv_heads = 1, .size = 70, .window = 65, .cap = 0.5f},
        {.heads = 2, .kv_heads = 1, .size = 128},
        {.heads = 1, .kv_heads = 1, .size = 256, .window = 12},
        {.heads = 2, .kv_heads = 1, .size = 64, .both = true},
        {.heads = 1, .kv_heads = 1, .size = 40, .window = 33, .both = true},
        {.heads = 2, .kv_heads = 1, .size = 256, .window = 2, .both = true},
        {.heads = 2, .kv_heads = 1, .size = 200, .sinks = true}};
    enum { COUNT = sizeof(shapes) / sizeof(shapes[0]) };

    (void)unused;
    for (int turn = 0; turn < 4 * COUNT; turn += all_shapes ? 1 : 5) {
        const struct shape *shape = &shapes[turn % COUNT];
        const int32_t queries = turn % 5 == 4 ? 32 : evq_attention_fp32_queries(shape->size);
        (void)check(shape, lengths, queries, false, turn / COUNT % 2 == 1, turn / COUNT > 1, 1.0f);
    }
}

/* Where a sequence stands, and what stands beside it, a NaN even, changes no bit of it. */
static void sequences_keep_their_bits(void **unused)
{
    static const int32_t together[] = {40, 150, 9, 70, 0};
    static const int32_t alone[] = {150, 0};
    const struct shape shape = {.heads = 2, .kv_heads = 1, .size = 64, .window = 100};
    const struct evq_op op = op_of(&shape);
    static struct batch batch;

    (void)unused;
    batch_fill(&batch, together, 128);
    struct table in = table_new(batch.rows, 4 * 64, 8, true, 1.0f);
    struct table out = table_new(batch.rows, 2 * 64, 8, true, 0.0f);
    uint16_t *values = in.rows.d_data;
    for (int64_t i = 0; i < 199 * in.rows.stride; i++) {
        const bool before = i < 40 * in.rows.stride;
        values[i] = before || i >= 190 * in.rows.stride ? 0x7fc0 : values[i]; // Its neighbours.
    }
    launch(&in, &batch, &op, false, true, &out);
    struct table rest = in;
    struct table again = table_new(150, 2 * 64, 8, true, 0.0f);
    rest.rows.d_data = device_new(values + 40 * in.rows.stride, (size_t)(150 * in.rows.stride) * 2);
    batch_fill(&batch, alone, 128);
    launch(&rest, &batch, &op, false, true, &again);
    for (int32_t r = 0; r < 150; r++) {
        for (int32_t c = 0; c < 2 * 64; c++) {
            assert_true(isnan(*table_at(&out, 0, c)));
            assert_true(*table_at(&again, r, c) == *table_at(&out, 40 + r, c));
        }
    }
    must_cuda(cudaFree(rest.rows.d_data));
    table_free(&in);
    table_free(&out);
    table_free(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_cores_equal_plain_loops),
        cmocka_unit_test(large_products_equal_plain_loops),
        cmocka_unit_test(fp32_equals_plain_loops),
        cmocka_unit_test(sequences_keep_their_bits),
    };
    static const char *const orders[] = {"forward", "backward", "in any order"};
    int failed = 0;

    for (int order = EMULATOR_FORWARD; order <= EMULATOR_RANDOM; order++) {
        print_message("seed %llu, threads %s\n", (unsigned long long)random_state, orders[order]);
        emulator_order(order, random_state);
#if !defined(__SANITIZE_ADDRESS__) // Each takes long there.
        all_shapes = order == EMULATOR_FORWARD;
#endif
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    if (emulator_blocks_held() != 0) {
        print_error("%zu blocks of device memory were never freed\n", emulator_blocks_held());
        failed++;
    }
    return failed;
}
