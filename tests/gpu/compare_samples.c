/* Plans of samples: classifiers and regressions over awkward shapes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/compare.h"

#define LAYERS_MAX 3

static uint64_t random_state;

struct shape {
    int32_t rows;
    int32_t widths[LAYERS_MAX + 1];
    int32_t layers;
    enum evq_activation activation;
    bool regression; // Squared errors instead of cross-entropy.
    bool broken;     // A NaN among the inputs.
};

static const struct shape shapes[] = {
    {0, {3, 2}, 1, EVQ_ACT_NONE, false, false},
    {1, {1, 2}, 1, EVQ_ACT_NONE, false, false},
    {1, {784, 512, 128, 10}, 3, EVQ_ACT_RELU, false, false},
    {257, {31, 97, 1009}, 2, EVQ_ACT_GELU_ERF, false, false},
    {1021, {784, 512, 128, 10}, 3, EVQ_ACT_RELU, false, false},
    {509, {13, 7, 1}, 2, EVQ_ACT_TANH, true, false},
    {64, {128, 33, 33}, 2, EVQ_ACT_SILU, true, false},
    {67, {127, 65, 31}, 2, EVQ_ACT_SIGMOID, false, false},
    {515, {64, 257, 50257}, 2, EVQ_ACT_GELU_TANH, false, false},
    {33, {17, 19, 5}, 2, EVQ_ACT_RELU, false, true},
};

struct plan { // Storage of one plan.
    struct evq_weight_slot slots[2 * LAYERS_MAX];
    struct evq_op ops[LAYERS_MAX + 1];
    int32_t columns[LAYERS_MAX + 1];
    struct evq_plan plan;
};

static void make_plan(const struct shape *shape, struct plan *out)
{
    size_t ops = 0;
    size_t slots = 0;

    for (int32_t i = 0; i < shape->layers; i++) {
        const int32_t n = shape->widths[i + 1];
        out->slots[slots] = (struct evq_weight_slot){"weight", n, shape->widths[i]};
        out->slots[slots + 1] = (struct evq_weight_slot){"bias", 1, n};
        out->ops[ops++] =
            (struct evq_op){.kind = EVQ_OP_GEMM,
                            .in = i,
                            .out = i + 1,
                            .weight = (int32_t)slots,
                            .bias = (int32_t)slots + 1,
                            .n = n,
                            .k = shape->widths[i],
                            .activation = i + 1 < shape->layers ? shape->activation : EVQ_ACT_NONE};
        slots += 2;
    }
    const int32_t last = shape->widths[shape->layers];
    out->ops[ops++] =
        (struct evq_op){.kind = shape->regression ? EVQ_OP_SQUARED_ERROR : EVQ_OP_CROSS_ENTROPY,
                        .in = shape->layers,
                        .out = -1,
                        .weight = -1,
                        .bias = -1,
                        .n = last,
                        .top_k = 3};
    memcpy(out->columns, shape->widths, sizeof(out->columns));
    out->plan = (struct evq_plan){out->ops,
                                  ops,
                                  out->slots,
                                  slots,
                                  shape->layers + 1,
                                  out->columns,
                                  shape->rows > 0 ? shape->rows : 1,
                                  0,
                                  EVQ_COMPUTE_F32};
}

static void load(const struct side *const *sides, const struct plan *plan)
{
    struct evq_error err = {0};

    for (int s = 0; s < 2; s++) {
        lm_must(sides[s]->ops->prepare(sides[s]->state, &plan->plan, &err), &err);
    }
    for (size_t i = 0; i < plan->plan.slot_count; i++) {
        const struct evq_weight_slot *slot = &plan->slots[i];
        const size_t count = (size_t)slot->rows * (size_t)slot->columns;
        const float spread = slot->rows > 1 ? 1.0f / sqrtf((float)slot->columns) : 1.0f;
        float *values = lm_alloc(count, sizeof(*values));
        for (size_t j = 0; j < count; j++) {
            values[j] = lm_random_float(&random_state) * spread;
        }
        for (int s = 0; s < 2; s++) {
            const struct evq_weight_blob blob = {
                .values = values, .type = EVQ_WEIGHT_F32, .rows = slot->rows};
            lm_must(sides[s]->ops->put(sides[s]->state, (int32_t)i, &blob, &err), &err);
            lm_must(sides[s]->ops->settle(sides[s]->state, &err), &err);
        }
        free(values);
    }
}

static bool near(double a, double b, double tolerance)
{
    return (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * (1.0 + fabs(a));
}

static int32_t count_faults(const struct shape *shape, const struct evq_row_result *cpu,
                            const struct evq_row_result *cuda, double *ret_worst)
{
    int32_t faults = 0;

    *ret_worst = 0.0;
    for (int32_t r = 0; r < shape->rows; r++) {
        const double apart = fabs(cpu[r].loss - cuda[r].loss);
        *ret_worst = compare_worse(apart, *ret_worst);
        // Near ties may go either way: a flag may differ, but not in more than one row of a
        // hundred.
        faults +=
            !near(cpu[r].loss, cuda[r].loss, 1e-4) || !near(cpu[r].abs_loss, cuda[r].abs_loss, 1e-4)
                ? 100
                : 0;
        faults += cpu[r].predicted != cuda[r].predicted || cpu[r].correct != cuda[r].correct ||
                  cpu[r].in_top_k != cuda[r].in_top_k;
    }
    return faults > shape->rows / 100 ? faults : 0;
}

static int32_t compare(const struct side *const *sides, const struct shape *shape,
                       double *ret_worst)
{
    struct plan plan = {0};
    struct evq_error err = {0};
    const size_t rows = (size_t)shape->rows;
    const int32_t outputs = shape->widths[shape->layers];
    double worst = 0.0;

    lm_doing("samples: %d rows, %d layers, %d outputs", (int)shape->rows, (int)shape->layers,
             (int)outputs);
    make_plan(shape, &plan);
    load(sides, &plan);
    float *inputs = lm_alloc(rows * (size_t)shape->widths[0], sizeof(*inputs));
    float *targets = lm_alloc(rows * (size_t)outputs, sizeof(*targets));
    int32_t *labels = lm_alloc(rows, sizeof(*labels));
    for (size_t i = 0; i < rows * (size_t)shape->widths[0]; i++) {
        inputs[i] = shape->broken && i == 0 ? NAN : lm_random_float(&random_state);
    }
    for (size_t i = 0; i < rows * (size_t)outputs; i++) {
        targets[i] = lm_random_float(&random_state);
    }
    for (size_t i = 0; i < rows; i++) {
        labels[i] = (int32_t)((lm_random_float(&random_state) + 1.0f) * 0.499f * (float)outputs);
    }
    const struct evq_batch batch = {
        .rows = shape->rows, .inputs = inputs, .labels = labels, .targets = targets};
    struct evq_row_result *results[2];
    for (int s = 0; s < 2; s++) {
        results[s] = lm_alloc(rows, sizeof(*results[s]));
        lm_must(sides[s]->ops->exec(sides[s]->state, &batch, results[s], &err), &err);
    }
    const int32_t faults = count_faults(shape, results[0], results[1], &worst);
    if (faults != 0) {
        (void)printf("FAIL rows %d, %d layers, %d outputs: loss apart by up to %.3g\n",
                     (int)shape->rows, (int)shape->layers, (int)outputs, worst);
        compare_losses(results[0], results[1], shape->rows, 1e-4);
    }
    *ret_worst = shape->broken ? *ret_worst : compare_worse(worst, *ret_worst);
    free(results[0]);
    free(results[1]);
    free(labels);
    free(targets);
    free(inputs);
    return faults;
}

int compare_samples(const struct sides *sides)
{
    const struct side *const both[] = {&sides->cpu, &sides->device};
    const int count = (int)(sizeof(shapes) / sizeof(shapes[0]));
    double worst = 0.0;
    int faults = 0;
    int cases = 0;

    random_state = sides->seed;
    for (int i = 0; i < count; i++) {
        if (!sides->small || shapes[i].widths[shapes[i].layers] < 2000) {
            faults += compare(both, &shapes[i], &worst) != 0;
            cases++;
        }
    }
    compare_tell("samples: losses of classifiers and regressions", cases, faults, 0, worst);
    return faults;
}
