/* The kernels of kernels/cuda/ on the emulator of tests/gpu/emulator/, each against plain loops in
 * double, over awkward shapes, threads run on in three orders. What no kernel may touch is NaN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/cuda_fixture.h"
#include "tests/unit/plain_plan.h"

static struct evq_error err;

/* Rooms of 8 keep rows at multiples of 8 values where the columns are; 3 breaks it. */
static int32_t room_for(int32_t columns, int turn)
{
    return turn % 3 == 2 ? 3 : 8 + (8 - columns % 8) % 8;
}

static void gate_equals_plain_loops(void **unused)
{
    static const int32_t sizes[] = {1, 7, 8, 40, 96, 129};

    (void)unused;
    for (int turn = 0; turn < 48; turn++) {
        const int32_t n = sizes[turn % 6];
        const int32_t rows = 1 + turn % 5 * 9;
        const enum evq_activation activation = (enum evq_activation)(turn % EVQ_ACT_COUNT);
        struct table in = table_new(rows, 2 * n, room_for(2 * n, turn), turn / 3 % 2 == 0, 3.0f);
        struct table out = table_new(rows, n, room_for(n, turn / 2), turn / 6 % 2 == 0, 0.0f);
        must(evq_gate_launch(&in.rows, rows, n, activation, &out.rows, NULL, &err), &err);
        table_read(&out);
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t c = 0; c < out.rows.stride; c++) {
                if (c >= n) {
                    assert_true(isnan(*table_at(&out, r, c)));
                    continue;
                }
                const double wanted = plain_activate((double)*table_at(&in, r, c), activation) *
                                      (double)*table_at(&in, r, n + c);
                check_near((double)*table_at(&out, r, c), wanted, rounding(out.rows.bf16), "gate");
            }
        }
        table_free(&in);
        table_free(&out);
    }
}

static void activations_and_epilogues_equal_plain_loops(void **unused)
{
    static const int32_t sizes[] = {1, 8, 24, 33, 200};

    (void)unused;
    for (int turn = 0; turn < 40; turn++) {
        const int32_t n = sizes[turn % 5];
        const int32_t rows = 1 + turn % 4 * 7;
        const enum evq_activation activation = (enum evq_activation)(turn % EVQ_ACT_COUNT);
        const bool added = turn % 3 != 0;
        struct table values = table_new(rows, n, room_for(n, turn), turn % 2 == 0, 3.0f);
        struct table product = table_new(rows, n, 0, false, 2.0f);
        struct table bias = table_new(1, n, 0, false, 1.0f);
        struct table residual = table_new(rows, n, 5, false, 1.0f);
        struct table out = table_new(rows, n, room_for(n, turn), turn % 2 == 0, 0.0f);
        float *before = malloc((size_t)(rows * values.rows.stride) * sizeof(*before));
        assert_non_null(before);
        memcpy(before, values.values, (size_t)(rows * values.rows.stride) * sizeof(*before));
        must(evq_activate_launch(&values.rows, rows, n, activation, NULL, &err), &err);
        must(evq_epilogue_launch(product.rows.d_data, rows, n, added ? bias.rows.d_data : NULL,
                                 activation, added ? &residual.rows : NULL, &out.rows, NULL, &err),
             &err);
        table_read(&values);
        table_read(&out);
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t c = 0; c < n; c++) {
                const double x =
                    (double)*table_at(&product, r, c) + (added ? (double)bias.values[c] : 0.0);
                check_near((double)*table_at(&values, r, c),
                           plain_activate((double)before[r * values.rows.stride + c], activation),
                           rounding(values.rows.bf16), "activation");
                check_near((double)*table_at(&out, r, c),
                           plain_activate(x, activation) +
                               (added ? (double)*table_at(&residual, r, c) : 0.0),
                           rounding(out.rows.bf16), "epilogue");
            }
        }
        free(before);
        table_free(&values);
        table_free(&product);
        table_free(&bias);
        table_free(&residual);
        table_free(&out);
    }
}

static void embeddings_and_gathers_equal_plain_loops(void **unused)
{
    static const int32_t sizes[] = {1, 8, 31, 64, 96};

    (void)unused;
    for (int turn = 0; turn < 30; turn++) {
        const int32_t n = sizes[turn % 5];
        const int32_t rows = 70;
        const bool placed = turn % 2 == 0;
        const struct evq_op op = {.n = n, .scale = turn % 3 == 0 ? 1.0f : 2.5f};
        struct table table = table_new(41, n, room_for(n, turn), turn / 2 % 2 == 0, 1.0f);
        struct table places = table_new(9, n, 0, false, 1.0f);
        struct table out = table_new(rows, n, room_for(n, turn), turn / 4 % 2 == 0, 0.0f);
        struct table copies = table_new(rows, n, room_for(n, turn), turn / 3 % 2 == 0, 0.0f);
        int32_t tokens[70], positions[70];
        for (int32_t r = 0; r < rows; r++) {
            tokens[r] = (int32_t)(fixture_random(&random_state) % 41);
            positions[r] = (int32_t)(fixture_random(&random_state) % 9);
        }
        void *d_tokens = device_new(tokens, sizeof(tokens));
        void *d_positions = device_new(positions, sizeof(positions));
        const struct evq_cuda_lookup lookup = {.d_tokens = d_tokens,
                                               .d_positions = d_positions,
                                               .table = table.rows,
                                               .d_places = placed ? places.rows.d_data : NULL};
        must(evq_embed_launch(&lookup, rows, &op, &out.rows, NULL, &err), &err);
        must(evq_gather_launch(&table.rows, d_tokens, rows, n, &copies.rows, NULL, &err), &err);
        table_read(&out);
        table_read(&copies);
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t c = 0; c < n; c++) {
                const double value = (double)*table_at(&table, tokens[r], c);
                const double place = placed ? (double)*table_at(&places, positions[r], c) : 0.0;
                check_near((double)*table_at(&out, r, c), value * (double)op.scale + place,
                           rounding(out.rows.bf16), "embedding");
                check_near((double)*table_at(&copies, r, c), value, 0.0, "gather");
            }
        }
        must_cuda(cudaFree(d_tokens));
        must_cuda(cudaFree(d_positions));
        table_free(&table);
        table_free(&places);
        table_free(&out);
        table_free(&copies);
    }
}

static void check_norm(const struct table *in, const struct table *out, const struct evq_op *op,
                       const struct table *weight, const struct table *bias, int32_t row,
                       int32_t head)
{
    const bool centred = op->kind == EVQ_OP_LAYER_NORM;
    const int64_t at = op->column + (int64_t)head * op->n;
    double mean = 0.0;
    double squares = 0.0;

    for (int32_t c = 0; c < op->n && centred; c++) {
        mean += (double)*table_at(in, row, at + c) / op->n;
    }
    for (int32_t c = 0; c < op->n; c++) {
        const double off = (double)*table_at(in, row, at + c) - mean;
        squares += off * off / op->n;
    }
    for (int32_t c = 0; c < op->n; c++) {
        const double wanted = ((double)*table_at(in, row, at + c) - mean) /
                                  sqrt(squares + (double)op->epsilon) * (double)weight->values[c] +
                              (bias != NULL ? (double)bias->values[c] : 0.0);
        check_near((double)*table_at(out, row, at + c), wanted, rounding(out->rows.bf16), "norm");
    }
}

static void norms_equal_plain_loops(void **unused)
{
    // In registers: by one warp up to 1024, by 2, 4, 8 up to 8192; else value by value.
    static const int32_t sizes[] = {1,    8,    24,   100,  768,  1024, 1600,
                                    2048, 2056, 4096, 4104, 8192, 8200};
    static const int32_t begins[] = {0, 8, 5}; // 5: loads of 4 values would be a fault.

    (void)unused;
    for (int turn = 0; turn < 78; turn++) {
        const int32_t n = sizes[turn % 13];
        const bool layer = turn % 2 == 0;
        const int32_t heads = layer || n > 100 ? 1 : 1 + turn % 4;
        const int32_t rows = n > 1000 ? 3 : 19;
        const bool in_place = turn / 13 % 3 == 2;
        const bool biased = layer && turn % 4 == 0;
        const struct evq_op op = {.kind = layer ? EVQ_OP_LAYER_NORM : EVQ_OP_RMS_NORM,
                                  .n = n,
                                  .heads = heads,
                                  .column = layer ? 0 : begins[turn % 3],
                                  .epsilon = 1e-5f};
        const int32_t columns = op.column + heads * n;
        struct table in = table_new(rows, columns, room_for(columns, turn), turn / 13 % 2 == 0, 2);
        struct table out =
            table_new(rows, columns, room_for(columns, turn), turn / 26 % 2 == 0, 0.0f);
        struct table weight = table_new(1, n, 0, false, 2.0f);
        struct table bias = table_new(1, n, 0, false, 1.0f);
        struct table *to = in_place ? &in : &out;
        struct table from = in;
        from.values = malloc((size_t)(rows * in.rows.stride) * sizeof(float));
        assert_non_null(from.values);
        memcpy(from.values, in.values, (size_t)(rows * in.rows.stride) * sizeof(float));
        must(evq_norm_launch(&in.rows, rows, &op, weight.rows.d_data,
                             biased ? bias.rows.d_data : NULL, &to->rows, NULL, &err),
             &err);
        table_read(to);
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t h = 0; h < heads; h++) {
                check_norm(&from, to, &op, &weight, biased ? &bias : NULL, r, h);
            }
            assert_true(isnan(*table_at(to, r, columns))); // Nobody's.
        }
        free(from.values);
        table_free(&in);
        table_free(&out);
        table_free(&weight);
        table_free(&bias);
    }
}

static void check_turn(const struct table *before, const struct table *after,
                       const struct evq_cuda_rope *turn, const float *frequencies, float scale,
                       const struct table *norms, int32_t row, int32_t head, int32_t position)
{
    const int32_t half = turn->n / 2;
    const int64_t at = turn->column + (int64_t)head * turn->n;
    const bool first = head < turn->first_heads;
    const struct table *norm = turn->d_first_norm == NULL ? NULL : &norms[first ? 0 : 1];
    double factor = 1.0;

    if (norm != NULL) {
        double squares = 0.0;
        for (int32_t c = 0; c < turn->n; c++) {
            squares += pow((double)*table_at(before, row, at + c), 2.0) / turn->n;
        }
        factor = 1.0 / sqrt(squares + (double)(first ? turn->first_epsilon : turn->rest_epsilon));
    }
    for (int32_t i = 0; i < half; i++) {
        const double angle = (double)((float)position * frequencies[i]);
        const double x = (double)*table_at(before, row, at + i) *
                         (norm != NULL ? factor * (double)norm->values[i] : 1.0);
        const double y = (double)*table_at(before, row, at + half + i) *
                         (norm != NULL ? factor * (double)norm->values[half + i] : 1.0);
        const double tolerance = rounding(after->rows.bf16);
        check_near((double)*table_at(after, row, at + i),
                   (x * cos(angle) - y * sin(angle)) * (double)scale, tolerance, "low half");
        check_near((double)*table_at(after, row, at + half + i),
                   (y * cos(angle) + x * sin(angle)) * (double)scale, tolerance, "high half");
    }
}

static void turns_equal_plain_loops(void **unused)
{
    static const int32_t sizes[] = {2, 6, 32, 64, 80, 128, 256};
    enum { ROWS = 23, POSITIONS = 50 };

    (void)unused;
    for (int number = 0; number < 28; number++) {
        const int32_t n = sizes[number % 7];
        const bool bf16 = number % 2 == 0;
        const bool normed = number % 3 != 0;
        const int32_t heads = number / 7 % 2 == 0 ? 5 : 35; // More than a block turns at once.
        const float scale = number % 4 == 0 ? 1.25f : 1.0f;
        float frequencies[128];
        int32_t positions[ROWS];
        for (int32_t i = 0; i < n / 2; i++) {
            frequencies[i] = (float)pow(10000.0, -2.0 * i / n);
        }
        for (int32_t r = 0; r < ROWS; r++) {
            positions[r] = (int32_t)(fixture_random(&random_state) % POSITIONS);
        }
        void *d_frequencies = device_new(frequencies, (size_t)(n / 2) * sizeof(float));
        void *d_positions = device_new(positions, sizeof(positions));
        void *d_rope_table = device_new(NULL, (size_t)(POSITIONS * n) * sizeof(float));
        struct table norms[2] = {table_new(1, n, 0, false, 2.0f), table_new(1, n, 0, false, 2.0f)};
        const struct evq_cuda_rope turn = {.n = n,
                                           .heads = heads,
                                           .column = number % 3 == 1 ? 3 : number % 3 * 4,
                                           .first_heads = 3,
                                           .d_first_norm = normed ? norms[0].rows.d_data : NULL,
                                           .d_rest_norm = normed ? norms[1].rows.d_data : NULL,
                                           .first_epsilon = 1e-6f,
                                           .rest_epsilon = 1e-2f,
                                           .d_rope_table = d_rope_table};
        // Of most, several values are taken at once: not where column or stride forbid it.
        const int32_t room = (number / 14 % 2 == 0 ? 6 : 8) - turn.column % 4;
        struct table values = table_new(ROWS, turn.column + heads * n, room, bf16, 2.0f);
        struct table before = values;
        before.values = malloc((size_t)(ROWS * values.rows.stride) * sizeof(float));
        assert_non_null(before.values);
        memcpy(before.values, values.values, (size_t)(ROWS * values.rows.stride) * sizeof(float));
        must(
            evq_rope_table_launch(d_frequencies, n / 2, POSITIONS, scale, d_rope_table, NULL, &err),
            &err);
        must(evq_rope_launch(&values.rows, ROWS, d_positions, &turn, NULL, &err), &err);
        table_read(&values);
        for (int32_t r = 0; r < ROWS; r++) {
            for (int32_t h = 0; h < turn.heads; h++) {
                check_turn(&before, &values, &turn, frequencies, scale, norms, r, h, positions[r]);
            }
            assert_true(isnan(*table_at(&values, r, turn.column + heads * n)));
        }
        free(before.values);
        must_cuda(cudaFree(d_frequencies));
        must_cuda(cudaFree(d_positions));
        must_cuda(cudaFree(d_rope_table));
        table_free(&norms[0]);
        table_free(&norms[1]);
        table_free(&values);
    }
}

static void check_logsum(const struct table *logits, const float *bias, int32_t n, int32_t row,
                         int32_t target, const struct evq_row_result *result)
{
    int32_t best = 0;
    double sum = 0.0;
    bool broken = false;

#define LOGIT(c) (*table_at(logits, row, c) + (bias != NULL ? bias[c] : 0.0f))
    for (int32_t c = 0; c < n; c++) {
        best = LOGIT(c) > LOGIT(best) ? c : best;
        broken = broken || isnan(LOGIT(c));
    }
    for (int32_t c = 0; c < n; c++) {
        sum += exp((double)LOGIT(c) - (double)LOGIT(best));
    }
    if (broken) {
        assert_true(isnan(result->loss));
        assert_int_equal(result->predicted, -1);
        assert_false(result->correct);
        return;
    }
    if (fabsf(LOGIT(best)) > 5e8f) { // No loss is better than a wrong one.
        assert_true(isnan(result->loss));
        assert_true(result->predicted == best || (LOGIT(best) > 0.0f && result->predicted == -1));
        return;
    }
    check_near(result->loss, log(sum) + (double)LOGIT(best) - (double)LOGIT(target), 2e-6,
               "log-sum");
    assert_int_equal(result->predicted, best);
    assert_int_equal(result->correct, best == target);
#undef LOGIT
}

static void logsums_equal_plain_loops(void **unused)
{
    static const int32_t sizes[] = {1, 2, 3, 5, 8, 255, 1023, 1024, 1027, 5000};
    static const float masks[] = {-1e9f, -1e10f, -1e30f, -3.4e38f};
    enum { ROWS = 9 };

    (void)unused;
    for (int turn = 0; turn < 40; turn++) {
        const int32_t n = sizes[turn % 10];
        const bool biased = turn % 2 == 0;
        struct table logits = table_new(ROWS, n, (4 - n % 4) % 4 + 4, false, 20.0f);
        struct table bias = table_new(1, n, 0, false, 1.0f);
        int32_t targets[ROWS];
        float *rows = logits.rows.d_data;
        for (int32_t r = 0; r < ROWS; r++) {
            targets[r] = (int32_t)(fixture_random(&random_state) % (uint64_t)n);
        }
        if (turn % 3 == 0) { // A tie, the largest first, a NaN, and logits that are nothing.
            const int32_t at = (int32_t)(fixture_random(&random_state) % (uint64_t)n);
            rows[at] = rows[n / 2] = *table_at(&logits, 0, at) = *table_at(&logits, 0, n / 2) = 30;
            rows[2 * logits.rows.stride + n - 1] = *table_at(&logits, 2, n - 1) = NAN;
            rows[3 * logits.rows.stride] = *table_at(&logits, 3, 0) = n > 1 ? -INFINITY : 0.0f;
            targets[3] = n > 1 ? 1 : 0;
            rows[4 * logits.rows.stride] = *table_at(&logits, 4, 0) = 80.0f;
        }
        for (int32_t c = 0; c < n; c++) { // Far from 0 on either side; nothing at all.
            rows[4 * logits.rows.stride + c] = *table_at(&logits, 4, c) -= 3000.0f;
            rows[5 * logits.rows.stride + c] = *table_at(&logits, 5, c) += 3000.0f;
            rows[6 * logits.rows.stride + c] = *table_at(&logits, 6, c) = -INFINITY;
            rows[8 * logits.rows.stride + c] = *table_at(&logits, 8, c) *= 1e12f;
        }
        for (int32_t c = 0; c < n - 1; c++) { // Words that a model never says.
            if (c / 4 % 3 < 2) {
                rows[7 * logits.rows.stride + c] = *table_at(&logits, 7, c) = masks[turn / 10];
            }
        }
        void *d_targets = device_new(targets, sizeof(targets));
        struct evq_row_result *d_results = device_new(NULL, ROWS * sizeof(*d_results));
        must(evq_logsum_launch(&logits.rows, ROWS, n, biased ? bias.rows.d_data : NULL, d_targets,
                               d_results, NULL, &err),
             &err);
        must_cuda(cudaStreamSynchronize(NULL));
        for (int32_t r = 0; r < ROWS; r++) {
            check_logsum(&logits, biased ? bias.values : NULL, n, r, targets[r], &d_results[r]);
        }
        must_cuda(cudaFree(d_targets));
        must_cuda(cudaFree(d_results));
        table_free(&logits);
        table_free(&bias);
    }
}

/* A half of this sign, exponent and fraction, and its value. */
static uint16_t make_half(uint64_t random, double *ret_value)
{
    const int exponent = (int)(random >> 10 & 31) % 31;
    const int fraction = (int)(random & 1023);
    const double size =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);

    *ret_value = (random & 0x8000) != 0 ? -size : size;
    return (uint16_t)((random & 0x8000) | (uint64_t)exponent << 10 | (uint64_t)fraction);
}

static void conversions_equal_plain_loops(void **unused)
{
    static const int32_t shapes[][2] = {{1, 1}, {1, 40}, {33, 31}, {64, 8}, {100, 129}, {7, 300}};

    (void)unused;
    for (int turn = 0; turn < 36; turn++) {
        const int32_t rows = shapes[turn % 6][0];
        const int32_t columns = shapes[turn % 6][1];
        const size_t count = (size_t)rows * (size_t)columns;
        const enum evq_weight_type type = (enum evq_weight_type)(turn / 6 % 3);
        const bool transposed = turn % 2 == 0;
        struct table out = table_new(rows, columns, room_for(columns, turn), turn >= 18, 0.0f);
        double *wanted = malloc(count * sizeof(*wanted));
        float *floats = malloc(count * sizeof(*floats));
        uint16_t *shorts = malloc(count * sizeof(*shorts));
        assert_true(wanted != NULL && floats != NULL && shorts != NULL);
        for (size_t i = 0; i < count; i++) {
            floats[i] =
                (float)((double)(fixture_random(&random_state) >> 11) / 4503599627370496.0 - 1.0);
            shorts[i] = to_bf16(floats[i]);
            wanted[i] = type == EVQ_WEIGHT_F32 ? (double)floats[i] : (double)of_bf16(shorts[i]);
            if (type == EVQ_WEIGHT_F16) {
                shorts[i] = make_half(fixture_random(&random_state), &wanted[i]);
            }
        }
        void *d_in = type == EVQ_WEIGHT_F32 ? device_new(floats, count * sizeof(*floats))
                                            : device_new(shorts, count * sizeof(*shorts));
        must(evq_convert_launch(d_in, type, transposed, rows, columns, &out.rows, NULL, &err),
             &err);
        table_read(&out);
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t c = 0; c < out.rows.stride; c++) {
                const float got = *table_at(&out, r, c);
                if (c >= columns) {
                    assert_true(isnan(got));
                    continue;
                }
                const double value = wanted[transposed ? c * rows + r : r * columns + c];
                const double exact = out.rows.bf16 ? (double)of_bf16(to_bf16((float)value)) : value;
                assert_true((double)got == exact);
            }
        }
        must_cuda(cudaFree(d_in));
        free(wanted);
        free(floats);
        free(shorts);
        table_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_equals_plain_loops),
        cmocka_unit_test(activations_and_epilogues_equal_plain_loops),
        cmocka_unit_test(embeddings_and_gathers_equal_plain_loops),
        cmocka_unit_test(norms_equal_plain_loops),
        cmocka_unit_test(turns_equal_plain_loops),
        cmocka_unit_test(logsums_equal_plain_loops),
        cmocka_unit_test(conversions_equal_plain_loops),
    };
    static const char *const orders[] = {"forward", "backward", "in any order"};
    int failed = 0;

    for (int order = EMULATOR_FORWARD; order <= EMULATOR_RANDOM; order++) {
        print_message("seed %llu, threads %s\n", (unsigned long long)random_state, orders[order]);
        emulator_order(order, random_state);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    if (emulator_blocks_held() != 0) {
        print_error("%zu blocks of device memory were never freed\n", emulator_blocks_held());
        failed++;
    }
    return failed;
}
