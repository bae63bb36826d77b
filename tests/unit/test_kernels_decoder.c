/* The CPU backend on whole language models against plain loops in double: fp32, bf16, the same bits
 * wherever a token stands, NaN. */
#include <pthread.h>

#include "plain_model.h"

#if defined(__SANITIZE_THREAD__)
#define BF16_STEP                                                                                  \
    3 // The narrowest of each kind: the others take a minute and meet no more threads.
#else
#define BF16_STEP 1
#endif

static const float turns[32] = {1.0f, 0.5f, 0.2f, 0.1f, 0.05f, 0.01f, 0.002f, 0.0005f};

/* A GPT-2, or with rope and gates a Llama. */
struct shape {
    int32_t vocabulary, heads, kv_heads, size;
    bool llama;
    const float *frequencies; // Of rope.
};

static struct evq_op norm_of(struct model *m, const struct shape *shape)
{
    const int32_t width = shape->heads * shape->size;

    return (struct evq_op){.kind = shape->llama ? EVQ_OP_RMS_NORM : EVQ_OP_LAYER_NORM,
                           .in = 1,
                           .out = 2,
                           .weight = slot(m, 1, width, 2.0f),
                           .bias = -1,
                           .n = width,
                           .heads = 1,
                           .epsilon = 1e-5f};
}

/* Queries and keys have a norm of their own before they turn. */
static void add_rope(struct model *m, const struct shape *shape)
{
    struct evq_op op = {.kind = EVQ_OP_RMS_NORM,
                        .in = 3,
                        .out = 3,
                        .weight = slot(m, 1, shape->size, 2.0f),
                        .bias = -1,
                        .n = shape->size,
                        .heads = shape->heads,
                        .epsilon = 1e-6f};

    add(m, op);
    op.kind = EVQ_OP_ROPE;
    op.weight = -1;
    op.heads = shape->heads + shape->kv_heads;
    op.scale = 1.0f;
    op.frequencies = shape->frequencies;
    add(m, op);
}

static void add_attention(struct model *m, const struct shape *shape, float spread, int32_t window)
{
    const int32_t width = shape->heads * shape->size;
    const int32_t joined = width + 2 * shape->kv_heads * shape->size;
    struct evq_op gemm = {
        .kind = EVQ_OP_GEMM, .in = 2, .out = 3, .bias = -1, .n = joined, .k = width};

    add(m, norm_of(m, shape));
    gemm.weight = slot(m, joined, width, spread);
    gemm.bias = shape->llama ? -1 : slot(m, 1, joined, 0.1f);
    add(m, gemm);
    if (shape->llama) {
        add_rope(m, shape);
    }
    add(m, (struct evq_op){.kind = EVQ_OP_ATTENTION,
                           .in = 3,
                           .out = 2,
                           .weight = -1,
                           .bias = -1,
                           .n = shape->size,
                           .heads = shape->heads,
                           .kv_heads = shape->kv_heads,
                           .window = window,
                           .scale = 1.0f / sqrtf((float)shape->size)});
    add(m, (struct evq_op){.kind = EVQ_OP_GEMM,
                           .in = 2,
                           .out = 1,
                           .residual = 1,
                           .weight = slot(m, width, width, spread),
                           .bias = -1,
                           .n = width,
                           .k = width});
}

static void add_mlp(struct model *m, const struct shape *shape, float spread)
{
    const int32_t width = shape->heads * shape->size;
    const int32_t hidden = 4 * width;
    struct evq_op gemm = {.kind = EVQ_OP_GEMM,
                          .in = 2,
                          .out = 4,
                          .bias = -1,
                          .n = hidden,
                          .k = width,
                          .activation = shape->llama ? EVQ_ACT_NONE : EVQ_ACT_GELU_TANH};

    add(m, norm_of(m, shape));
    gemm.weight = slot(m, hidden, width, spread);
    add(m, gemm);
    if (shape->llama) {
        add(m, (struct evq_op){.kind = EVQ_OP_GATE,
                               .in = 4,
                               .out = 5,
                               .weight = -1,
                               .bias = -1,
                               .n = hidden / 2,
                               .activation = EVQ_ACT_SILU});
    }
    gemm.activation = EVQ_ACT_NONE;
    gemm.in = shape->llama ? 5 : 4;
    gemm.out = gemm.residual = 1;
    gemm.n = width;
    gemm.k = shape->llama ? hidden / 2 : hidden;
    gemm.weight = slot(m, width, gemm.k, spread);
    add(m, gemm);
}

/* Of two layers; ends with the scoring head. */
static struct model *language_model(const int32_t *lengths, const struct shape *shape)
{
    struct model *m = model_new(lengths, shape->vocabulary);
    const int32_t width = shape->heads * shape->size;
    const int32_t joined = width + 2 * shape->kv_heads * shape->size;
    const float spread = 1.5f / sqrtf((float)width);
    const int32_t table = slot(m, shape->vocabulary, width, 0.5f);

    m->plan.buffer_count = 6;
    memcpy(m->columns, (int32_t[]){1, width, width, joined, 4 * width, 2 * width},
           6 * sizeof(int32_t));
    add(m, (struct evq_op){.kind = EVQ_OP_EMBEDDING,
                           .out = 1,
                           .weight = table,
                           .bias = shape->llama ? -1 : slot(m, m->plan.length_max, width, 0.5f),
                           .n = width,
                           .scale = 1.0f});
    for (int32_t layer = 0; layer < 2; layer++) {
        add_attention(m, shape, spread, layer == 1 && shape->llama ? 50 : 0);
        add_mlp(m, shape, spread);
    }
    struct evq_op last = norm_of(m, shape);
    last.kind = EVQ_OP_LAYER_NORM;
    add(m, last);
    add(m, (struct evq_op){.kind = EVQ_OP_SCORE,
                           .in = 2,
                           .out = -1,
                           .weight = table,
                           .bias = shape->llama ? slot(m, 1, shape->vocabulary, 0.2f) : -1,
                           .n = shape->vocabulary,
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
            model->score_targets[count++] =
                (int32_t)(fixture_random(&random_state) % (uint64_t)vocabulary);
        }
    }
    model->batch.scores = count;
}

static void language_models_equal_plain_loops(void **unused)
{
    static const struct {
        struct shape shape;
        int32_t step, each;
    } cases[] = {{{300, 4, 4, 16, false, NULL}, 2, 1},  {{5, 2, 1, 8, true, turns}, 3, 1},
                 {{1031, 4, 2, 32, true, turns}, 5, 3}, {{513, 3, 3, 24, false, NULL}, 7, 2},
                 {{1, 1, 1, 2, false, NULL}, 1, 1},     {{64, 1, 1, 6, true, turns}, 100, 5}};
    struct evq_row_result *wanted = calloc(4096, sizeof(*wanted));
    struct evq_row_result *results = calloc(4096, sizeof(*results));
    void *state = open_cpu(2);
    struct evq_error err = {0};

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *model = language_model(lengths_long, &cases[i].shape);
        score_rows(model, cases[i].step, cases[i].each, cases[i].shape.vocabulary);
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
    static struct evq_row_result wanted[4096];
    static struct evq_row_result results[4096];
    struct evq_error err = {0};

    (void)unused;
    if (evq_machine_isa() != EVQ_ISA_AVX512_BF16) {
        skip();
    }
    void *state = open_cpu(2);
    for (int32_t turn = 0; turn < 6; turn += BF16_STEP) {
        const int32_t size = 9 + turn % 3 * 23; // Odd and even.
        const struct shape shape = {300, 4, 2, size + turn / 3 * (size % 2), turn >= 3, turns};
        struct model *model = language_model(lengths_long, &shape);
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
    static const int32_t lengths[] = {3, 129, 32, 200, 1, 65, 500, 0};
    struct model *model = language_model(lengths, &(struct shape){700, 4, 2, 16, true, turns});
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

struct told {
    pthread_t thread;
    int32_t times;
};

static void count_told(void *listener)
{
    struct told *told = listener;

    assert_true(pthread_equal(told->thread, pthread_self()));
    told->times++;
}

/* Who kills what says nothing for long must hear of a long batch before it ends: a segment over all
 * rows of a large model may take minutes. */
static void batch_tells_of_its_parts(void **unused)
{
    static const int32_t lengths[] = {600, 0};
    static struct evq_row_result results[4096];
    struct model *model = language_model(lengths, &(struct shape){50, 4, 2, 16, true, turns});
    struct told told = {.thread = pthread_self()};
    struct evq_error err = {0};

    (void)unused;
    score_rows(model, 1, 1, 50);
    model->batch.tell = count_told;
    model->batch.listener = &told;
    for (int32_t threads = 1; threads <= 3; threads++) {
        void *state = open_cpu(threads);
        prepare(state, model);
        told.times = 0;
        assert_int_equal(cpu->exec(state, &model->batch, results, &err), EVQ_OK);
        // Segments are 5; a thread alone has three chunks of rows, and blocks of queries of 4
        // heads.
        assert_true(told.times >= (threads == 1 ? 40 : 5));
        cpu->close(state);
    }
    model_free(model);
}

static void nan_weights_give_nan_losses(void **unused)
{
    struct model *model = language_model(lengths_odd, &(struct shape){50, 2, 2, 8, false, NULL});
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
        cmocka_unit_test(language_models_equal_plain_loops),
        cmocka_unit_test(language_models_in_bf16_stay_near_plain_loops),
        cmocka_unit_test(token_keeps_its_bits_wherever_it_stands),
        cmocka_unit_test(batch_tells_of_its_parts),
        cmocka_unit_test(nan_weights_give_nan_losses),
    };
    int failed = 0;

    for (int isa = isa_lowest(); isa <= (int)evq_machine_isa(); isa++) {
        isa_begin(isa);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
        isa_end();
    }
    return failed;
}
