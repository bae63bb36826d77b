/* The CPU backend on plans of samples, against plain loops in double. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/losses.h"
#include "kernels/cpu/pool.h"
#include "tests/fixture/check.h"
#include "tests/fixture/random.h"
#include "tests/unit/plain_plan.h"

static const struct evq_backend_ops *const cpu = &evq_backend_cpu;

static uint64_t random_state = 20261121;

static float *random_floats(size_t count)
{
    float *values = malloc((count > 0 ? count : 1) * sizeof(*values));
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = fixture_random_float(&random_state);
    }
    return values;
}

/* One layer and a squared-error head, whose targets are what the loops give: the loss must be next
 * to nothing. */
struct layer_case {
    int32_t rows, n, k;
    enum evq_activation activation;
    bool bias;
};

/* All of one slot, in fp32. */
static enum evq_status put(void *state, int32_t slot, const float *values, int32_t rows,
                           struct evq_error *err)
{
    const struct evq_weight_blob blob = {.values = values, .type = EVQ_WEIGHT_F32, .rows = rows};

    return cpu->put(state, slot, &blob, err);
}

static double *naive_layer(const struct layer_case *c, const float *in, const float *weight,
                           const float *bias)
{
    double *out = malloc(((size_t)c->rows * (size_t)c->n + 1) * sizeof(*out));
    assert_non_null(out);
    for (int32_t r = 0; r < c->rows; r++) {
        for (int32_t o = 0; o < c->n; o++) {
            double sum = c->bias ? (double)bias[o] : 0.0;
            for (int32_t p = 0; p < c->k; p++) {
                sum += (double)in[(size_t)r * (size_t)c->k + (size_t)p] *
                       (double)weight[(size_t)o * (size_t)c->k + (size_t)p];
            }
            out[(size_t)r * (size_t)c->n + (size_t)o] = plain_activate(sum, c->activation);
        }
    }
    return out;
}

static void check_layer(void *state, const struct layer_case *c)
{
    const struct evq_weight_slot slots[] = {{"w", c->n, c->k}, {"b", 1, c->n}};
    const struct evq_op ops[] = {
        {.kind = EVQ_OP_GEMM,
         .in = 0,
         .out = 1,
         .weight = 0,
         .bias = c->bias ? 1 : -1,
         .n = c->n,
         .k = c->k,
         .activation = c->activation},
        {.kind = EVQ_OP_SQUARED_ERROR,
         .in = 1,
         .out = -1,
         .weight = -1,
         .bias = -1,
         .n = c->n,
         .k = c->n},
    };
    const int32_t columns[] = {c->k, c->n};
    const struct evq_plan plan = {
        ops, 2, slots, 2, 2, columns, c->rows > 0 ? c->rows : 1, 0, EVQ_COMPUTE_F32};
    float *in = random_floats((size_t)c->rows * (size_t)c->k);
    float *weight = random_floats((size_t)c->n * (size_t)c->k);
    float *bias = random_floats((size_t)c->n);
    double *wanted = naive_layer(c, in, weight, bias);
    float *targets = malloc(((size_t)c->rows * (size_t)c->n + 1) * sizeof(*targets));
    struct evq_row_result *results = calloc((size_t)c->rows + 1, sizeof(*results));
    struct evq_error err = {0};

    for (size_t i = 0; i < (size_t)c->rows * (size_t)c->n; i++) {
        targets[i] = (float)wanted[i];
    }
    assert_int_equal(cpu->prepare(state, &plan, &err), EVQ_OK);
    assert_int_equal(put(state, 0, weight, c->n, &err), EVQ_OK);
    assert_int_equal(put(state, 1, bias, 1, &err), EVQ_OK);
    const struct evq_batch batch = {.rows = c->rows, .inputs = in, .targets = targets};
    assert_int_equal(cpu->exec(state, &batch, results, &err), EVQ_OK);
    for (int32_t r = 0; r < c->rows; r++) {
        const double each = 2e-6 * (sqrt((double)c->k) + 8.0);
        assert_near(results[r].abs_loss, 0.0, each * c->n);
        assert_near(results[r].loss, 0.0, each * each * c->n);
    }
    free(results);
    free(targets);
    free(wanted);
    free(bias);
    free(weight);
    free(in);
}

static void *open_cpu(int32_t threads)
{
    void *state = NULL;
    struct evq_error err = {0};
    const struct evq_backend_config config = {.threads = threads};

    assert_int_equal(cpu->open(&config, &state, &err), EVQ_OK);
    return state;
}

static void kernels_cpu_layers_equal_plain_loops(void **unused)
{
    static const int32_t sizes[] = {1, 2, 7, 13, 31, 32, 33, 64, 97, 257, 521};
    static const int32_t rows[] = {0, 1, 5, 127, 128, 129, 389};
    void *state = open_cpu(3);
    int32_t turn = 0;

    (void)unused;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++) {
            const struct layer_case c = {rows[turn % 7], sizes[i], sizes[j],
                                         (enum evq_activation)(turn % EVQ_ACT_COUNT),
                                         turn % 3 != 0};
            check_layer(state, &c);
            turn++;
        }
    }
    cpu->close(state);
}

/* Shards pack rows differently; what a row gives must not depend on where it stands. */
static void kernels_cpu_row_keeps_its_bits_wherever_it_stands(void **unused)
{
    enum { ROWS = 600, IN = 131, HIDDEN = 77, CLASSES = 11 };
    const struct evq_weight_slot slots[] = {
        {"w0", HIDDEN, IN}, {"b0", 1, HIDDEN}, {"w1", CLASSES, HIDDEN}};
    const struct evq_op ops[] = {
        {.kind = EVQ_OP_GEMM,
         .in = 0,
         .out = 1,
         .weight = 0,
         .bias = 1,
         .n = HIDDEN,
         .k = IN,
         .activation = EVQ_ACT_GELU_ERF},
        {.kind = EVQ_OP_GEMM,
         .in = 1,
         .out = 2,
         .weight = 2,
         .bias = -1,
         .n = CLASSES,
         .k = HIDDEN},
        {.kind = EVQ_OP_CROSS_ENTROPY,
         .in = 2,
         .out = -1,
         .weight = -1,
         .bias = -1,
         .n = CLASSES,
         .top_k = 3},
    };
    const int32_t columns[] = {IN, HIDDEN, CLASSES};
    const struct evq_plan plan = {ops, 3, slots, 3, 3, columns, ROWS, 0, EVQ_COMPUTE_F32};
    void *state = open_cpu(2);
    float *in = random_floats((size_t)ROWS * IN);
    int32_t labels[ROWS];
    static struct evq_row_result whole[ROWS];
    static struct evq_row_result part[ROWS];
    struct evq_error err = {0};

    (void)unused;
    assert_int_equal(cpu->prepare(state, &plan, &err), EVQ_OK);
    for (int32_t i = 0; i < 3; i++) {
        float *values = random_floats((size_t)slots[i].rows * (size_t)slots[i].columns);
        assert_int_equal(put(state, i, values, slots[i].rows, &err), EVQ_OK);
        free(values);
    }
    for (int32_t i = 0; i < ROWS; i++) {
        labels[i] = (int32_t)(fixture_random(&random_state) % CLASSES);
    }
    const struct evq_batch all = {.rows = ROWS, .inputs = in, .labels = labels};
    assert_int_equal(cpu->exec(state, &all, whole, &err), EVQ_OK);
    for (int32_t from = 1; from < ROWS; from += 37) {
        const struct evq_batch some = {
            .rows = ROWS - from, .inputs = in + (size_t)from * IN, .labels = labels + from};
        assert_int_equal(cpu->exec(state, &some, part, &err), EVQ_OK);
        for (int32_t i = 0; i < ROWS - from; i++) {
            assert_memory_equal(&part[i].loss, &whole[from + i].loss, sizeof(double));
            assert_int_equal(part[i].predicted, whole[from + i].predicted);
            assert_int_equal(part[i].in_top_k, whole[from + i].in_top_k);
        }
    }
    free(in);
    cpu->close(state);
}

static void ops_cross_entropy_equals_plain_loops_for_odd_shapes(void **unused)
{
    static const int32_t shapes[][2] = {{0, 5}, {1, 1}, {3, 2}, {17, 10}, {5, 997}};

    (void)unused;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        const int32_t rows = shapes[s][0];
        const int32_t classes = shapes[s][1];
        float *logits = random_floats((size_t)rows * (size_t)classes);
        int32_t labels[32] = {0};
        struct evq_row_result results[32];
        for (int32_t r = 0; r < rows; r++) {
            labels[r] = (int32_t)(fixture_random(&random_state) % (uint64_t)classes);
        }
        evq_losses_cross_entropy(logits, (size_t)classes, rows, classes, labels, 5, results);
        for (int32_t r = 0; r < rows; r++) {
            const float *row = logits + (size_t)r * (size_t)classes;
            double sum = 0.0;
            int32_t best = 0;
            int32_t above = 0;
            for (int32_t c = 0; c < classes; c++) {
                sum += exp((double)row[c]);
                best = row[c] > row[best] ? c : best;
                above += row[c] > row[labels[r]] || (row[c] == row[labels[r]] && c < labels[r]);
            }
            assert_near(results[r].loss, log(sum) - (double)row[labels[r]], 1e-12);
            assert_int_equal(results[r].predicted, best);
            assert_int_equal(results[r].correct, best == labels[r]);
            assert_int_equal(results[r].in_top_k, above < 5);
        }
        free(logits);
    }
}

static void ops_cross_entropy_takes_first_maximum_and_survives_extremes(void **unused)
{
    (void)unused;
    const float logits[] = {1.0f,  3.0f,   3.0f, 3.0f, // Ties: class 1 wins.
                            3e38f, -3e38f, 0.0f, 1.0f, -INFINITY, 2.0f, 2.0f, -INFINITY};
    const int32_t labels[] = {2, 0, 0};
    struct evq_row_result results[3];

    evq_losses_cross_entropy(logits, 4, 3, 4, labels, 2, results);
    assert_int_equal(results[0].predicted, 1);
    assert_false(results[0].correct);
    assert_true(results[0].in_top_k); // Second in order of index.
    assert_near(results[1].loss, 0.0, 0.0);
    assert_true(results[1].correct);
    assert_true(isinf(results[2].loss) && results[2].loss > 0.0);
    assert_false(results[2].in_top_k);
}

static void ops_nan_is_never_correct_and_never_lost(void **unused)
{
    (void)unused;
    const float logits[] = {NAN, 5.0f, 1.0f, 2.0f, NAN, 9.0f, INFINITY, 0.0f, 0.0f};
    const int32_t labels[] = {1, 2, 0};
    struct evq_row_result results[3];

    evq_losses_cross_entropy(logits, 3, 3, 3, labels, 3, results);
    for (int32_t r = 0; r < 2; r++) {
        assert_true(isnan(results[r].loss));
        assert_int_equal(results[r].predicted, -1);
        assert_false(results[r].correct);
        assert_false(results[r].in_top_k);
    }
    assert_true(isnan(results[2].loss)); // Infinity minus infinity.
    const float outputs[] = {NAN, 1.0f};
    const float targets[] = {0.0f, 0.0f};
    evq_losses_squared_error(outputs, 2, 1, 2, targets, results);
    assert_true(isnan(results[0].loss) && isnan(results[0].abs_loss));
}

static void kernels_cpu_refuses_bad_labels_and_plans(void **unused)
{
    (void)unused;
    const struct evq_op head = {
        .kind = EVQ_OP_CROSS_ENTROPY, .in = 0, .out = -1, .weight = -1, .bias = -1, .n = 3};
    const int32_t columns[] = {3};
    struct evq_plan plan = {&head, 1, NULL, 0, 1, columns, 2, 0, EVQ_COMPUTE_F32};
    const float in[] = {0.0f, 1.0f, 2.0f, 0.0f, 1.0f, 2.0f};
    const int32_t labels[] = {0, 3};
    struct evq_row_result results[2];
    struct evq_error err = {0};
    void *state = open_cpu(1);
    struct evq_batch batch = {.rows = 2, .inputs = in, .labels = labels};

    assert_int_equal(cpu->exec(state, &batch, results, &err), EVQ_E_BUG); // Not prepared.
    assert_int_equal(cpu->prepare(state, &plan, &err), EVQ_OK);
    assert_int_equal(cpu->exec(state, &batch, results, &err), EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "label 3"));
    batch.labels = NULL;
    assert_int_equal(cpu->exec(state, &batch, results, &err), EVQ_E_BUG);
    batch.labels = labels;
    batch.rows = 3;
    assert_int_equal(cpu->exec(state, &batch, results, &err), EVQ_E_BUG);
    const struct evq_op wide = {
        .kind = EVQ_OP_CROSS_ENTROPY, .in = 0, .out = -1, .weight = -1, .bias = -1, .n = 4};
    plan.ops = &wide;
    assert_int_equal(cpu->prepare(state, &plan, &err), EVQ_E_BUG);
    const struct evq_op lost = {
        .kind = EVQ_OP_GEMM, .in = 0, .out = 0, .weight = 5, .bias = -1, .n = 3, .k = 3};
    plan.ops = &lost;
    assert_int_equal(cpu->prepare(state, &plan, &err), EVQ_E_BUG);
    cpu->close(state);
    cpu->close(NULL);
}

static void kernels_cpu_keeps_values_and_memory_when_shapes_stay(void **unused)
{
    (void)unused;
    const struct evq_weight_slot slots[] = {{"w", 3, 2}};
    const struct evq_op ops[] = {
        {.kind = EVQ_OP_GEMM, .in = 0, .out = 1, .weight = 0, .bias = -1, .n = 3, .k = 2},
        {.kind = EVQ_OP_CROSS_ENTROPY, .in = 1, .out = -1, .weight = -1, .bias = -1, .n = 3}};
    const int32_t columns[] = {2, 3};
    const struct evq_plan plan = {ops, 2, slots, 1, 2, columns, 4, 0, EVQ_COMPUTE_F32};
    const struct evq_plan again = plan;
    const float weight[] = {1.0f, 0.0f, 0.0f, 1.0f, 1.0f, 1.0f};
    const float in[] = {1.0f, 2.0f};
    const int32_t labels[] = {2};
    const struct evq_batch batch = {.rows = 1, .inputs = in, .labels = labels};
    struct evq_row_result result;
    struct evq_backend_stats before;
    struct evq_backend_stats after;
    struct evq_error err = {0};
    void *state = open_cpu(2);

    assert_int_equal(cpu->prepare(state, &plan, &err), EVQ_OK);
    assert_int_equal(cpu->exec(state, &batch, &result, &err), EVQ_E_BUG); // Weight never put.
    assert_int_equal(put(state, 1, weight, 3, &err), EVQ_E_BUG);
    assert_int_equal(put(state, 0, weight, 3, &err), EVQ_OK);
    cpu->stats(state, &before);
    assert_int_equal(cpu->prepare(state, &again, &err), EVQ_OK);
    cpu->stats(state, &after);
    assert_int_equal(before.memory_bytes, after.memory_bytes);
    assert_int_equal(cpu->exec(state, &batch, &result, &err), EVQ_OK);
    assert_true(result.correct);
    cpu->close(state);
    const struct evq_backend_config small = {.threads = 1, .memory_bytes_max = 100};
    assert_int_equal(cpu->open(&small, &state, &err), EVQ_OK);
    assert_int_equal(cpu->prepare(state, &plan, &err), EVQ_E_NOMEM);
    cpu->close(state);
}

/* Units in the last place of wanted; where that is denormal, zero will do. */
static double in_units(double difference, double wanted)
{
    const float near = (float)wanted;
    if (fabsf(near) < FLT_MIN && fabs(difference) <= fabs(wanted)) {
        return 0.0;
    }
    return fabs(difference) / ((double)nextafterf(fabsf(near), INFINITY) - (double)fabsf(near));
}

/* The bounds that kernels/cpu/isa/vecmath.h states, over all sizes of arguments. */
static void activations_stay_within_their_stated_errors(void **unused)
{
    enum { POINTS = 200000 };
    float *in = random_floats(POINTS);
    float *out = malloc((POINTS + EVQ_KERNELS_PAD) * sizeof(*out));

    (void)unused;
    assert_non_null(out);
    for (int32_t i = 0; i < POINTS; i++) { // 1e-6 to 100, both signs.
        in[i] *= (float)pow(10.0, 2.0 - 8.0 * (double)i / POINTS);
    }
    for (int isa = 0; isa <= (int)evq_machine_isa(); isa++) {
        const struct evq_kernels *kernels = evq_kernels_of((enum evq_isa)isa);
        for (int a = 0; a < EVQ_ACT_COUNT; a++) {
            const bool by_units = a == EVQ_ACT_TANH || a == EVQ_ACT_SIGMOID || a == EVQ_ACT_NONE ||
                                  a == EVQ_ACT_RELU || a == EVQ_ACT_RELU2;
            double worst = 0.0;
            memcpy(out, in, POINTS * sizeof(*out));
            kernels->activate(out, 0, 1, POINTS, (enum evq_activation)a);
            for (int32_t i = 0; i < POINTS; i++) {
                const double wanted = plain_activate((double)in[i], (enum evq_activation)a);
                const double off = (double)out[i] - wanted;
                const double error =
                    by_units ? in_units(off, wanted) : fabs(off) / fmax(1.0, fabs((double)in[i]));
                worst = error > worst || isnan(error) ? error : worst;
            }
            print_message("isa %d, activation %d: worst %.3g\n", isa, a, worst);
            assert_near(worst, 0.0, by_units ? 3.0 : 2e-7);
            float edges[64] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 0.0f};
            kernels->activate(edges, 0, 1, 6, (enum evq_activation)a);
            assert_true(isnan(edges[0]));
            assert_false(isnan(edges[3]) || isnan(edges[4]) || isnan(edges[5]));
        }
    }
    free(out);
    free(in);
}

static void count_part(void *context, int32_t part, int32_t thread)
{
    int32_t *counts = context;

    counts[part]++;
    if (thread < 0 || thread > 3) {
        abort();
    }
}

static void pool_runs_each_part_once(void **unused)
{
    struct evq_pool *pool = NULL;
    struct evq_error err = {0};
    int32_t counts[1000] = {0};

    (void)unused;
    assert_int_equal(evq_pool_new(-1, &pool, &err), EVQ_E_INVALID);
    assert_int_equal(evq_pool_new(4, &pool, &err), EVQ_OK);
    for (int32_t run = 0; run < 200; run++) {
        evq_pool_run(pool, count_part, counts, run * 5);
    }
    for (int32_t i = 0; i < 1000; i++) {
        assert_int_equal(counts[i], 199 - i / 5);
    }
    evq_pool_free(pool);
    evq_pool_free(NULL);
}

#if defined(__x86_64__)
/* The kernel of the machine is asked, because a compiler's own test may answer no to everything. */
static void machine_isa_is_the_best_that_the_kernel_lists(void **unused)
{
    char line[8192] = "";
    FILE *file = fopen("/proc/cpuinfo", "r");

    (void)unused;
    assert_non_null(file);
    while (strncmp(line, "flags", 5) != 0) {
        assert_non_null(fgets(line, sizeof(line), file));
    }
    (void)fclose(file);
    line[strcspn(line, "\n")] = ' ';
    enum evq_isa isa = EVQ_ISA_BASE;
    if (strstr(line, " avx2 ") != NULL && strstr(line, " fma ") != NULL) {
        isa = EVQ_ISA_AVX2;
        if (strstr(line, " avx512f ") != NULL && strstr(line, " avx512dq ") != NULL &&
            strstr(line, " avx512bw ") != NULL && strstr(line, " avx512vl ") != NULL) {
            isa = strstr(line, " avx512_bf16 ") != NULL ? EVQ_ISA_AVX512_BF16 : EVQ_ISA_AVX512;
        }
    }
    assert_int_equal(unsetenv("EVALQ_ISA"), 0);
    assert_int_equal(evq_machine_isa(), isa);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#if defined(__x86_64__)
        cmocka_unit_test(machine_isa_is_the_best_that_the_kernel_lists),
#endif
        cmocka_unit_test(kernels_cpu_layers_equal_plain_loops),
        cmocka_unit_test(kernels_cpu_row_keeps_its_bits_wherever_it_stands),
        cmocka_unit_test(ops_cross_entropy_equals_plain_loops_for_odd_shapes),
        cmocka_unit_test(ops_cross_entropy_takes_first_maximum_and_survives_extremes),
        cmocka_unit_test(ops_nan_is_never_correct_and_never_lost),
        cmocka_unit_test(kernels_cpu_refuses_bad_labels_and_plans),
        cmocka_unit_test(kernels_cpu_keeps_values_and_memory_when_shapes_stay),
        cmocka_unit_test(activations_stay_within_their_stated_errors),
        cmocka_unit_test(pool_runs_each_part_once),
    };
    print_message("seed 20261121\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
