/*
 * Plans of tokens with random weights, run by the CPU backend under every instruction set of the
 * machine, to be compared with plain loops in double.
 */
#ifndef EVQ_TESTS_UNIT_PLAIN_MODEL_H
#define EVQ_TESTS_UNIT_PLAIN_MODEL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cpu/machine.h"
#include "tests/fixture/check.h"
#include "tests/fixture/random.h"
#include "tests/unit/plain_plan.h"

#define SEED      20261121
#define SLOTS_MAX 64
#define OPS_MAX   64

static const struct evq_backend_ops *const cpu = &evq_backend_cpu;

static uint64_t random_state = SEED;

static inline float random_float(float scale)
{
    return scale * fixture_random_float(&random_state);
}

static inline float *random_floats(size_t count, float scale)
{
    float *values = malloc((count > 0 ? count : 1) * sizeof(*values));
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = random_float(scale);
    }
    return values;
}

static const int32_t lengths_odd[] = {1, 31, 2, 33, 64, 5, 0};
static const int32_t lengths_long[] = {3, 129, 32, 200, 1, 65, 0};

/* A plan under construction, its weights, and a batch for it. */
struct model {
    struct evq_weight_slot slots[SLOTS_MAX];
    float *weights[SLOTS_MAX];
    struct evq_op ops[OPS_MAX];
    int32_t columns[16];
    struct evq_plan plan;
    struct evq_batch batch;
    int32_t tokens[2048], starts[32], score_rows[4096], score_targets[4096];
};

static inline int32_t slot(struct model *model, int32_t rows, int32_t columns, float scale)
{
    const size_t i = model->plan.slot_count++;
    assert_true(i < SLOTS_MAX);
    model->slots[i] = (struct evq_weight_slot){"w", rows, columns};
    model->weights[i] = random_floats((size_t)rows * (size_t)columns, scale);
    return (int32_t)i;
}

static inline void add(struct model *model, struct evq_op op)
{
    assert_true(model->plan.op_count < OPS_MAX);
    model->ops[model->plan.op_count++] = op;
}

/* Sequences of these lengths, ended by 0; tokens below vocabulary. */
static inline struct model *model_new(const int32_t *lengths, int32_t vocabulary)
{
    struct model *model = calloc(1, sizeof(*model));
    int32_t rows = 0;
    int32_t longest = 0;
    int32_t count = 0;

    assert_non_null(model);
    for (; lengths[count] != 0; count++) {
        rows += lengths[count];
        longest = lengths[count] > longest ? lengths[count] : longest;
        model->starts[count + 1] = rows;
    }
    for (int32_t i = 0; i < rows; i++) {
        model->tokens[i] = (int32_t)(fixture_random(&random_state) % (uint64_t)vocabulary);
    }
    model->plan = (struct evq_plan){.ops = model->ops,
                                    .slots = model->slots,
                                    .buffer_columns = model->columns,
                                    .rows_max = rows,
                                    .length_max = longest};
    model->batch = (struct evq_batch){.rows = rows,
                                      .tokens = model->tokens,
                                      .starts = model->starts,
                                      .sequences = count,
                                      .score_rows = model->score_rows,
                                      .score_targets = model->score_targets};
    return model;
}

static inline void model_free(struct model *model)
{
    for (size_t i = 0; i < model->plan.slot_count; i++) {
        free(model->weights[i]);
    }
    free(model);
}

static inline void *open_cpu(int32_t threads)
{
    void *state = NULL;
    struct evq_error err = {0};
    const struct evq_backend_config config = {.threads = threads};

    assert_int_equal(cpu->open(&config, &state, &err), EVQ_OK);
    return state;
}

static inline void prepare(void *state, const struct model *model)
{
    struct evq_error err = {0};

    if (cpu->prepare(state, &model->plan, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
    for (size_t i = 0; i < model->plan.slot_count; i++) {
        const struct evq_weight_blob blob = {
            .values = model->weights[i], .type = EVQ_WEIGHT_F32, .rows = model->slots[i].rows};
        assert_int_equal(cpu->put(state, (int32_t)i, &blob, &err), EVQ_OK);
    }
}

/* Buffer 1 gets random values: each row is another row of an embedding. */
static inline struct model *model_of_inputs(const int32_t *lengths, int32_t columns)
{
    struct model *model = model_new(lengths, 2);
    const int32_t table = slot(model, model->batch.rows, columns, 1.0f);

    for (int32_t row = 0; row < model->batch.rows; row++) {
        model->tokens[row] = row;
    }
    model->columns[0] = 1;
    model->columns[1] = columns;
    model->plan.buffer_count = 3;
    add(model, (struct evq_op){.kind = EVQ_OP_EMBEDDING,
                               .out = 1,
                               .weight = table,
                               .bias = -1,
                               .n = columns,
                               .scale = 1.0f});
    return model;
}

/* Ends the plan with squared errors of n columns of a buffer to what plain loops give. */
static inline void check_buffer(void *state, struct model *model, int32_t buffer, int32_t n,
                                double tolerance)
{
    const int32_t rows = model->batch.rows;
    const size_t columns = (size_t)model->columns[buffer];
    double **wanted = plain_run(&model->plan, &model->batch, model->weights, NULL);
    float *targets = malloc(((size_t)rows * (size_t)n + 1) * sizeof(*targets));
    struct evq_row_result *results = calloc((size_t)rows + 1, sizeof(*results));
    struct evq_error err = {0};

    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < n; c++) {
            targets[r * n + c] = (float)wanted[buffer][(size_t)r * columns + (size_t)c];
        }
    }
    add(model,
        (struct evq_op){.kind = EVQ_OP_SQUARED_ERROR, .in = buffer, .out = -1, .n = n, .bias = -1});
    model->batch.targets = targets;
    prepare(state, model);
    assert_int_equal(cpu->exec(state, &model->batch, results, &err), EVQ_OK);
    for (int32_t r = 0; r < rows; r++) {
        assert_near(results[r].abs_loss / n, 0.0, tolerance);
        assert_near(results[r].loss / n, 0.0, tolerance * tolerance * 4.0);
    }
    plain_free(wanted, model->plan.buffer_count);
    free(results);
    free(targets);
}

/* The first of the instruction sets to test; the last is evq_machine_isa(). */
static inline int isa_lowest(void)
{
#if defined(__SANITIZE_THREAD__)
    return (int)evq_machine_isa(); // Threads meet the same way in all, and each is slow.
#else
    return EVQ_ISA_BASE;
#endif
}

static inline void isa_begin(int isa)
{
    static const char *const sets[] = {"base", "avx2", "avx512", "avx512 bf16"};

    print_message("seed %d, %s\n", SEED, sets[isa]);
    assert_int_equal(setenv("EVALQ_ISA", sets[isa], 1), 0);
}

static inline void isa_end(void)
{
    (void)unsetenv("EVALQ_ISA");
}

#endif
