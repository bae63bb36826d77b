/* The CPU backend on plans of tokens, each operation and whole models, against plain loops in
 * double. A case is a plan that ends in squared errors to what the loops give: next to nothing. */
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
#include "tests/unit/plain_plan.h"

#define SLOTS_MAX 64
#define OPS_MAX   64

static const struct evq_backend_ops *const cpu = &evq_backend_cpu;

static uint64_t random_state = 20261121;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static float random_float(float scale)
{
    return scale * (float)((double)(next_random() >> 40) / (double)(1 << 23) - 1.0);
}

static float *random_floats(size_t count, float scale)
{
    float *values = malloc((count > 0 ? count : 1) * sizeof(*values));
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = random_float(scale);
    }
    return values;
}

static void assert_near(double got, double wanted, double tolerance)
{
    if (!(fabs(got - wanted) <= tolerance)) {
        fail_msg("got %.17g, expected %.17g within %g", got, wanted, tolerance);
    }
}

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

static int32_t slot(struct model *model, int32_t rows, int32_t columns, float scale)
{
    const size_t i = model->plan.slot_count++;
    assert_true(i < SLOTS_MAX);
    model->slots[i] = (struct evq_weight_slot){"w", rows, columns};
    model->weights[i] = random_floats((size_t)rows * (size_t)columns, scale);
    return (int32_t)i;
}

static void add(struct model *model, struct evq_op op)
{
    assert_true(model->plan.op_count < OPS_MAX);
    model->ops[model->plan.op_count++] = op;
}

/* Sequences of these lengths, ended by 0; tokens below vocabulary. */
static struct model *model_new(const int32_t *lengths, int32_t vocabulary)
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
        model->tokens[i] = (int32_t)(next_random() % (uint64_t)vocabulary);
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

static void model_free(struct model *model)
{
    for (size_t i = 0; i < model->plan.slot_count; i++) {
        free(model->weights[i]);
    }
    free(model);
}

static void *open_cpu(int32_t threads)
{
    void *state = NULL;
    struct evq_error err = {0};
    const struct evq_backend_config config = {.threads = threads};

    assert_int_equal(cpu->open(&config, &state, &err), EVQ_OK);
    return state;
}

static void prepare(void *state, const struct model *model)
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

/* Ends the plan with squared errors of n columns of a buffer to what plain loops give. */
static void check_buffer(void *state, struct model *model, int32_t buffer, int32_t n,
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

static const int32_t lengths_odd[] = {1, 31, 2, 33, 64, 5, 0};
static const int32_t lengths_long[] = {3, 129, 32, 200, 1, 65, 0};

static void embedding_equals_plain_loops(void **unused)
{
    static const int32_t shapes[][2] = {{1, 1}, {7, 5}, {32, 33}, {70, 96}, {257, 31}};
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t turn = 0; turn < 20; turn++) {
        const int32_t vocabulary = shapes[turn % 5][0];
        const int32_t n = shapes[turn % 5][1];
        struct model *model = model_new(lengths_odd, vocabulary);
        model->columns[0] = 1;
        model->columns[1] = n;
        model->columns[2] = 3;
        model->plan.buffer_count = 3;
        const int32_t table = slot(model, vocabulary, n, 1.0f);
        const int32_t places =
            turn % 2 == 0 ? slot(model, model->plan.length_max + turn, n, 1.0f) : -1;
        add(model, (struct evq_op){.kind = EVQ_OP_EMBEDDING,
                                   .out = 1,
                                   .weight = table,
                                   .bias = places,
                                   .n = n,
                                   .scale = turn % 3 == 0 ? 1.0f : 5.5f});
        if (turn >= 10) { // A table that is a matrix too lies in panels.
            add(model, (struct evq_op){.kind = EVQ_OP_GEMM,
                                       .in = 1,
                                       .out = 2,
                                       .weight = table,
                                       .bias = -1,
                                       .n = vocabulary,
                                       .k = n});
            model->columns[2] = vocabulary;
        }
        check_buffer(state, model, 1, n, 1e-6);
        model_free(model);
    }
    cpu->close(state);
}

/* Tokens with inputs: buffer 0 copied to buffer 1, so that operations have something to read. */
static struct model *model_of_inputs(const int32_t *lengths, int32_t columns, float **ret_inputs)
{
    struct model *model = model_new(lengths, 2);
    float *inputs = random_floats((size_t)model->batch.rows * (size_t)columns, 1.0f);

    model->batch.inputs = inputs;
    model->columns[0] = columns;
    model->columns[1] = columns;
    model->plan.buffer_count = 3;
    add(model, (struct evq_op){.kind = EVQ_OP_SCALE_SHIFT,
                               .out = 1,
                               .weight = -1,
                               .bias = -1,
                               .n = columns,
                               .scale = 1.0f});
    *ret_inputs = inputs;
    return model;
}

static void norms_equal_plain_loops(void **unused)
{
    static const int32_t sizes[] = {1, 2, 3, 8, 15, 16, 17, 64, 100, 768, 1001};
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t turn = 0; turn < 44; turn++) {
        const int32_t n = sizes[turn % 11];
        const int32_t heads = turn < 22 ? 1 : 1 + turn % 3;
        const bool in_place = turn % 2 == 0;
        const int32_t column = turn < 22 || !in_place ? 0 : turn % 5;
        float *inputs = NULL;
        struct model *model = model_of_inputs(lengths_odd, column + heads * n + turn % 4, &inputs);
        model->columns[2] = model->columns[1];
        add(model,
            (struct evq_op){.kind = turn < 22 ? EVQ_OP_LAYER_NORM : EVQ_OP_RMS_NORM,
                            .in = 1,
                            .out = in_place ? 1 : 2,
                            .weight = slot(model, 1, n, 1.0f),
                            .bias = turn < 22 && turn % 3 != 0 ? slot(model, 1, n, 1.0f) : -1,
                            .n = n,
                            .column = column,
                            .heads = heads,
                            .epsilon = 1e-5f});
        check_buffer(state, model, in_place ? 1 : 2, in_place ? model->columns[1] : heads * n,
                     2e-6);
        free(inputs);
        model_free(model);
    }
    cpu->close(state);
}

static void rope_equals_plain_loops(void **unused)
{
    static const int32_t sizes[] = {2, 4, 6, 30, 32, 34, 64, 80, 128};
    float frequencies[64];
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t turn = 0; turn < 27; turn++) {
        const int32_t n = sizes[turn % 9];
        const int32_t heads = 1 + turn % 3;
        const int32_t column = turn % 4 * 3;
        float *inputs = NULL;
        struct model *model = model_of_inputs(lengths_long, column + heads * n + turn % 2, &inputs);
        for (int32_t i = 0; i < n / 2; i++) {
            frequencies[i] = (float)pow(10000.0, -2.0 * i / n) * (1.0f + 0.1f * (float)turn);
        }
        model->columns[2] = 1;
        add(model, (struct evq_op){.kind = EVQ_OP_ROPE,
                                   .in = 1,
                                   .out = 1,
                                   .weight = -1,
                                   .bias = -1,
                                   .n = n,
                                   .column = column,
                                   .heads = heads,
                                   .scale = turn % 2 == 0 ? 1.0f : 1.25f,
                                   .frequencies = frequencies});
        check_buffer(state, model, 1, model->columns[1], 1e-6);
        free(inputs);
        model_free(model);
    }
    cpu->close(state);
}

static void attention_equals_plain_loops(void **unused)
{
    static const int32_t shapes[][4] = {// heads, kv_heads, size, window.
                                        {1, 1, 1, 0},   {2, 1, 7, 0},   {3, 3, 8, 1},
                                        {4, 2, 16, 5},  {6, 2, 33, 40}, {2, 2, 64, 0},
                                        {2, 1, 80, 64}, {1, 1, 96, 65}, {4, 1, 128, 100}};
    void *state = open_cpu(3);

    (void)unused;
    for (size_t turn = 0; turn < 18; turn++) {
        const int32_t *shape = shapes[turn % 9];
        float *inputs = NULL;
        struct model *model =
            model_of_inputs(turn < 9 ? lengths_odd : lengths_long,
                            (shape[0] + 2 * shape[1]) * shape[2] + (int32_t)turn % 3, &inputs);
        model->columns[2] = shape[0] * shape[2] + (int32_t)turn % 2;
        add(model, (struct evq_op){.kind = EVQ_OP_ATTENTION,
                                   .in = 1,
                                   .out = 2,
                                   .weight = -1,
                                   .bias = -1,
                                   .n = shape[2],
                                   .heads = shape[0],
                                   .kv_heads = shape[1],
                                   .window = shape[3],
                                   .scale = 1.7f / sqrtf((float)shape[2])});
        check_buffer(state, model, 2, shape[0] * shape[2], 1e-6);
        free(inputs);
        model_free(model);
    }
    cpu->close(state);
}

static void gate_and_residual_equal_plain_loops(void **unused)
{
    static const int32_t sizes[] = {1, 3, 16, 17, 31, 48, 65, 200};
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t turn = 0; turn < 24; turn++) {
        const int32_t n = sizes[turn % 8];
        float *inputs = NULL;
        struct model *model = model_of_inputs(lengths_odd, 2 * n, &inputs);
        model->columns[2] = n;
        model->columns[3] = 2 * n;
        model->plan.buffer_count = 4;
        add(model, (struct evq_op){.kind = EVQ_OP_GATE,
                                   .in = 1,
                                   .out = 2,
                                   .weight = -1,
                                   .bias = -1,
                                   .n = n,
                                   .activation = (enum evq_activation)(turn % EVQ_ACT_COUNT)});
        add(model, (struct evq_op){.kind = EVQ_OP_GEMM,
                                   .in = 2,
                                   .out = turn % 2 == 0 ? 1 : 3,
                                   .residual = 1,
                                   .weight = slot(model, 2 * n, n, 0.3f),
                                   .bias = turn % 3 == 0 ? -1 : slot(model, 1, 2 * n, 1.0f),
                                   .n = 2 * n,
                                   .k = n,
                                   .activation = (enum evq_activation)(turn / 3 % EVQ_ACT_COUNT)});
        check_buffer(state, model, turn % 2 == 0 ? 1 : 3, 2 * n, 4e-6);
        free(inputs);
        model_free(model);
    }
    cpu->close(state);
}

/* A GPT-2 of `width`, or with rope and gates a Llama, of two layers; ends with the scoring head. */
static struct model *language_model(const int32_t *lengths, int32_t vocabulary, int32_t heads,
                                    int32_t kv_heads, int32_t size, bool llama,
                                    const float *frequencies)
{
    struct model *m = model_new(lengths, vocabulary);
    const int32_t width = heads * size;
    const int32_t joined = (heads + 2 * kv_heads) * size;
    const int32_t hidden = 4 * width;
    const float spread = 1.5f / sqrtf((float)width);
    const int32_t table = slot(m, vocabulary, width, 0.5f);

    m->plan.buffer_count = 6;
    memcpy(m->columns, (int32_t[]){1, width, width, joined, hidden, hidden / 2},
           6 * sizeof(int32_t));
    add(m, (struct evq_op){.kind = EVQ_OP_EMBEDDING,
                           .out = 1,
                           .weight = table,
                           .bias = llama ? -1 : slot(m, m->plan.length_max, width, 0.5f),
                           .n = width,
                           .scale = 1.0f});
    for (int32_t layer = 0; layer < 2; layer++) {
        const struct evq_op norm = {.kind = llama ? EVQ_OP_RMS_NORM : EVQ_OP_LAYER_NORM,
                                    .in = 1,
                                    .out = 2,
                                    .bias = -1,
                                    .n = width,
                                    .heads = 1,
                                    .epsilon = 1e-5f};
        const struct evq_op gemm = {.kind = EVQ_OP_GEMM, .bias = -1};
        struct evq_op op = norm;
        op.weight = slot(m, 1, width, 2.0f);
        add(m, op);
        op = gemm;
        op.in = 2, op.out = 3, op.n = joined, op.k = width;
        op.weight = slot(m, joined, width, spread);
        op.bias = llama ? -1 : slot(m, 1, joined, 0.1f);
        add(m, op);
        if (llama) {
            op = (struct evq_op){.kind = EVQ_OP_RMS_NORM,
                                 .in = 3,
                                 .out = 3,
                                 .weight = slot(m, 1, size, 2.0f),
                                 .bias = -1,
                                 .n = size,
                                 .heads = heads,
                                 .epsilon = 1e-6f};
            add(m, op);
            op.kind = EVQ_OP_ROPE;
            op.weight = -1;
            op.heads = heads + kv_heads;
            op.scale = 1.0f;
            op.frequencies = frequencies;
            add(m, op);
        }
        add(m, (struct evq_op){.kind = EVQ_OP_ATTENTION,
                               .in = 3,
                               .out = 2,
                               .weight = -1,
                               .bias = -1,
                               .n = size,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .window = layer == 1 && llama ? 50 : 0,
                               .scale = 1.0f / sqrtf((float)size)});
        op = gemm;
        op.in = 2, op.out = 1, op.residual = 1, op.n = width, op.k = width;
        op.weight = slot(m, width, width, spread);
        add(m, op);
        op = norm;
        op.weight = slot(m, 1, width, 2.0f);
        add(m, op);
        op = gemm;
        op.in = 2, op.out = 4, op.n = hidden, op.k = width;
        op.activation = llama ? EVQ_ACT_NONE : EVQ_ACT_GELU_TANH;
        op.weight = slot(m, hidden, width, spread);
        add(m, op);
        if (llama) {
            add(m, (struct evq_op){.kind = EVQ_OP_GATE,
                                   .in = 4,
                                   .out = 5,
                                   .weight = -1,
                                   .bias = -1,
                                   .n = hidden / 2,
                                   .activation = EVQ_ACT_SILU});
        }
        op = gemm;
        op.in = llama ? 5 : 4, op.out = 1, op.residual = 1, op.n = width;
        op.k = llama ? hidden / 2 : hidden;
        op.weight = slot(m, width, op.k, spread);
        add(m, op);
    }
    add(m, (struct evq_op){.kind = EVQ_OP_LAYER_NORM,
                           .in = 1,
                           .out = 2,
                           .weight = slot(m, 1, width, 2.0f),
                           .bias = -1,
                           .n = width,
                           .epsilon = 1e-5f});
    add(m, (struct evq_op){.kind = EVQ_OP_SCORE,
                           .in = 2,
                           .out = -1,
                           .weight = table,
                           .bias = llama ? slot(m, 1, vocabulary, 0.2f) : -1,
                           .n = vocabulary,
                           .k = width});
    return m;
}

/* Scores `each` targets of every `step`-th row. */
static void score_rows(struct model *model, int32_t step, int32_t each, int32_t vocabulary)
{
    int32_t count = 0;

    for (int32_t r = 0; r < model->batch.rows; r += step) {
        for (int32_t i = 0; i < each && count < 4096; i++) {
            model->score_rows[count] = r;
            model->score_targets[count++] = (int32_t)(next_random() % (uint64_t)vocabulary);
        }
    }
    model->batch.scores = count;
}

static void language_models_equal_plain_loops(void **unused)
{
    static const struct {
        int32_t vocabulary, heads, kv_heads, size;
        bool llama;
        int32_t step, each;
    } cases[] = {{300, 4, 4, 16, false, 2, 1}, {5, 2, 1, 8, true, 3, 1},
                 {1031, 4, 2, 32, true, 5, 3}, {513, 3, 3, 24, false, 7, 2},
                 {1, 1, 1, 2, false, 1, 1},    {64, 1, 1, 6, true, 100, 5}};
    const float frequencies[32] = {1.0f, 0.5f, 0.2f, 0.1f, 0.05f, 0.01f, 0.002f, 0.0005f};
    struct evq_row_result *wanted = calloc(4096, sizeof(*wanted));
    struct evq_row_result *results = calloc(4096, sizeof(*results));
    void *state = open_cpu(2);
    struct evq_error err = {0};

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *model =
            language_model(lengths_long, cases[i].vocabulary, cases[i].heads, cases[i].kv_heads,
                           cases[i].size, cases[i].llama, frequencies);
        score_rows(model, cases[i].step, cases[i].each, cases[i].vocabulary);
        plain_free(plain_run(&model->plan, &model->batch, model->weights, wanted), 6);
        prepare(state, model);
        assert_int_equal(cpu->exec(state, &model->batch, results, &err), EVQ_OK);
        double sum = 0.0;
        double wanted_sum = 0.0;
        for (int32_t s = 0; s < model->batch.scores; s++) {
            assert_near(results[s].loss, wanted[s].loss, 3e-5);
            assert_int_equal(results[s].predicted, wanted[s].predicted);
            assert_int_equal(results[s].correct, wanted[s].correct);
            sum += results[s].loss / model->batch.scores;
            wanted_sum += wanted[s].loss / model->batch.scores;
        }
        assert_near(sum, wanted_sum, 2e-6);
        print_message("mean NLL %.9f, %.1e from double\n", sum, fabs(sum - wanted_sum));
        model_free(model);
    }
    free(results);
    free(wanted);
    cpu->close(state);
}

/* Weights as a bf16 file has them, logits as spread as a language model's: what is left to differ
 * is the rounding between operations. */
static void language_models_in_bf16_stay_near_plain_loops(void **unused)
{
    const float frequencies[32] = {1.0f, 0.5f, 0.2f, 0.1f, 0.05f, 0.01f, 0.002f, 0.0005f};
    static struct evq_row_result wanted[4096];
    static struct evq_row_result results[4096];
    struct evq_error err = {0};

    (void)unused;
    if (evq_machine_isa() != EVQ_ISA_AVX512_BF16) {
        skip();
    }
    void *state = open_cpu(2);
    for (int32_t turn = 0; turn < 6; turn++) {
        const int32_t size = 9 + turn % 3 * 23; // Odd and even.
        struct model *model = language_model(lengths_long, 300, 4, 2, size + turn / 3 * (size % 2),
                                             turn >= 3, frequencies);
        for (size_t i = 0; i < model->plan.slot_count; i++) {
            for (int32_t v = 0; v < model->slots[i].rows * model->slots[i].columns; v++) {
                uint32_t bits;
                model->weights[i][v] *= i == 0 ? 0.25f : 1.0f; // The vocabulary.
                memcpy(&bits, &model->weights[i][v], sizeof(bits));
                bits &= 0xffff0000u;
                memcpy(&model->weights[i][v], &bits, sizeof(bits));
            }
        }
        model->plan.compute = EVQ_COMPUTE_BF16;
        score_rows(model, 1, 1, 300);
        plain_free(plain_run(&model->plan, &model->batch, model->weights, wanted), 6);
        prepare(state, model);
        assert_int_equal(cpu->exec(state, &model->batch, results, &err), EVQ_OK);
        double off = 0.0;
        double bias = 0.0;
        for (int32_t s = 0; s < model->batch.scores; s++) {
            off += fabs(results[s].loss - wanted[s].loss) / model->batch.scores;
            bias += (results[s].loss - wanted[s].loss) / model->batch.scores;
        }
        print_message("bf16: mean NLL %.1e from double, each %.1e\n", bias, off);
        assert_near(bias, 0.0, 1e-3);
        assert_near(off, 0.0, 2e-2);
        assert_true(off > 1e-5); // It did round.
        model_free(model);
    }
    cpu->close(state);
}

/* Shards pack sequences differently; what a token gives must not depend on where it stands, nor on
 * what else is scored, nor on the number of threads. */
static void check_bits(enum evq_compute compute)
{
    const float frequencies[32] = {1.0f, 0.5f, 0.2f, 0.1f, 0.05f, 0.01f, 0.002f, 0.0005f};
    static const int32_t lengths[] = {3, 129, 32, 200, 1, 65, 500, 0};
    struct model *model = language_model(lengths, 700, 4, 2, 16, true, frequencies);
    static struct evq_row_result whole[4096];
    static struct evq_row_result part[4096];
    struct evq_error err = {0};

    model->plan.compute = compute;
    score_rows(model, 1, 1, 700);
    void *state = open_cpu(2);
    prepare(state, model);
    assert_int_equal(cpu->exec(state, &model->batch, whole, &err), EVQ_OK);
    cpu->close(state);
    for (int32_t threads = 1; threads <= 5; threads += 2) {
        state = open_cpu(threads);
        prepare(state, model);
        for (int32_t s = 0; s < model->batch.sequences; s++) {
            const int32_t first = model->starts[s];
            const int32_t starts[] = {0, model->starts[s + 1] - first};
            int32_t rows[600];
            int32_t scores = 0;
            for (int32_t i = 0; i < starts[1]; i += threads) {
                rows[scores++] = i;
            }
            int32_t targets[600];
            for (int32_t i = 0; i < scores; i++) {
                targets[i] = model->score_targets[first + rows[i]];
            }
            const struct evq_batch alone = {.rows = starts[1],
                                            .tokens = model->tokens + first,
                                            .starts = starts,
                                            .sequences = 1,
                                            .score_rows = rows,
                                            .score_targets = targets,
                                            .scores = scores};
            assert_int_equal(cpu->exec(state, &alone, part, &err), EVQ_OK);
            for (int32_t i = 0; i < scores; i++) {
                assert_memory_equal(&part[i].loss, &whole[first + rows[i]].loss, sizeof(double));
                assert_int_equal(part[i].predicted, whole[first + rows[i]].predicted);
            }
        }
        cpu->close(state);
    }
    model_free(model);
}

static void token_keeps_its_bits_wherever_it_stands(void **unused)
{
    (void)unused;
    check_bits(EVQ_COMPUTE_F32);
    if (evq_machine_isa() == EVQ_ISA_AVX512_BF16) {
        check_bits(EVQ_COMPUTE_BF16);
    }
}

static void nan_weights_give_nan_losses(void **unused)
{
    struct model *model = language_model(lengths_odd, 50, 2, 2, 8, false, NULL);
    static struct evq_row_result results[4096];
    struct evq_error err = {0};
    void *state = open_cpu(2);

    (void)unused;
    score_rows(model, 1, 1, 50);
    model->weights[3][0] = NAN; // The first joined projection.
    prepare(state, model);
    assert_int_equal(cpu->exec(state, &model->batch, results, &err), EVQ_OK);
    for (int32_t s = 0; s < model->batch.scores; s++) {
        assert_true(isnan(results[s].loss));
        assert_int_equal(results[s].predicted, -1);
        assert_false(results[s].correct);
    }
    model->weights[3][0] = 0.0f;
    model->weights[0][7 * 16] = NAN; // One row of the vocabulary: every sum over it.
    prepare(state, model);
    assert_int_equal(cpu->exec(state, &model->batch, results, &err), EVQ_OK);
    for (int32_t s = 0; s < model->batch.scores; s++) {
        assert_true(isnan(results[s].loss));
        assert_int_equal(results[s].predicted, -1);
    }
    model_free(model);
    cpu->close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_equals_plain_loops),
        cmocka_unit_test(norms_equal_plain_loops),
        cmocka_unit_test(rope_equals_plain_loops),
        cmocka_unit_test(attention_equals_plain_loops),
        cmocka_unit_test(gate_and_residual_equal_plain_loops),
        cmocka_unit_test(language_models_equal_plain_loops),
        cmocka_unit_test(language_models_in_bf16_stay_near_plain_loops),
        cmocka_unit_test(token_keeps_its_bits_wherever_it_stands),
        cmocka_unit_test(nan_weights_give_nan_losses),
    };
    static const char *const sets[] = {"base", "avx2", "avx512", "avx512 bf16"};
    int failed = 0;
#if defined(__SANITIZE_THREAD__)
    const int lowest =
        (int)evq_machine_isa(); // Threads meet the same way in all, and each is slow.
#else
    const int lowest = EVQ_ISA_BASE;
#endif

    for (int isa = lowest; isa <= (int)evq_machine_isa(); isa++) {
        print_message("seed 20261121, %s\n", sets[isa]);
        assert_int_equal(setenv("EVALQ_ISA", sets[isa], 1), 0);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
        (void)unsetenv("EVALQ_ISA");
    }
    return failed;
}
