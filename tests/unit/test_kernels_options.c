/* Options of the CPU backend's operations that only some model families use, against plain loops in
 * double. */
#include "plain_model.h"

static const struct evq_op plain_op = {.in = 1, .out = 2, .weight = -1, .bias = -1};

static float frequencies[2][64];

static void fill_frequencies(void)
{
    for (int32_t i = 0; i < 64; i++) {
        frequencies[0][i] = (float)pow(10000.0, -i / 64.0);
        frequencies[1][i] = (float)pow(3000.0, -i / 64.0) * 0.3f;
    }
}

/* Only the first k values of a head turn, heads stand apart, and pairs are neighbours. */
static void parts_of_heads_turn(void **unused)
{
    static const int32_t shapes[][3] = {// n, k, step.
                                        {2, 2, 0},     {6, 4, 0},    {8, 2, 24},   {80, 34, 80},
                                        {64, 32, 192}, {33, 32, 40}, {128, 0, 130}};
    void *state = open_cpu(2);

    (void)unused;
    fill_frequencies();
    for (int32_t turn = 0; turn < 28; turn++) {
        const int32_t *shape = shapes[turn % 7];
        const int32_t step = shape[2] != 0 ? shape[2] : shape[0];
        const int32_t heads = 1 + turn % 3;
        const int32_t column = turn % 4;
        struct model *model = model_of_inputs(lengths_odd, column + heads * step + turn % 2);
        struct evq_op op = plain_op;
        op.kind = EVQ_OP_ROPE;
        op.out = 1;
        op.n = shape[0];
        op.k = shape[1];
        op.step = shape[2];
        op.column = column;
        op.heads = heads;
        op.neighbours = turn / 7 % 2 == 1;
        op.scale = 1.1f;
        op.frequencies = frequencies[0];
        model->columns[2] = 1;
        add(model, op);
        check_buffer(state, model, 1, model->columns[1], 1e-6);
        model_free(model);
    }
    cpu->close(state);
}

/* Sequences of 1 to 200 tokens around the limit, and a limit above all of them. */
static void long_sequences_turn_by_far_frequencies(void **unused)
{
    static const int32_t limits[] = {1, 2, 31, 32, 64, 65, 128, 129, 200, 1000};
    void *state = open_cpu(2);

    (void)unused;
    fill_frequencies();
    for (int32_t turn = 0; turn < 10; turn++) {
        struct model *model = model_of_inputs(turn % 2 == 0 ? lengths_long : lengths_odd, 24);
        struct evq_op op = plain_op;
        op.kind = EVQ_OP_ROPE;
        op.out = 1;
        op.n = 8;
        op.heads = 3;
        op.scale = 1.0f;
        op.frequencies = frequencies[0];
        op.far_frequencies = frequencies[1];
        op.near = limits[turn];
        model->columns[2] = 1;
        add(model, op);
        op.near = 40; // The second operation has another table.
        add(model, op);
        check_buffer(state, model, 1, 24, 1e-6);
        model_free(model);
    }
    cpu->close(state);
}

static void attention_has_caps_sinks_and_mixed_heads(void **unused)
{
    static const int32_t sizes[] = {1, 7, 16, 33, 64, 80};
    void *state = open_cpu(3);

    (void)unused;
    for (int32_t turn = 0; turn < 24; turn++) {
        const int32_t n = sizes[turn % 6];
        const int32_t heads = 1 + turn % 3;
        const bool mixed = turn % 4 == 3;
        const int32_t kv_heads = mixed ? heads : 1;
        struct model *model = model_of_inputs(lengths_long, (heads + 2 * kv_heads) * n);
        struct evq_op op = plain_op;
        model->columns[2] = heads * n;
        op.kind = EVQ_OP_ATTENTION;
        op.n = n;
        op.heads = heads;
        op.kv_heads = kv_heads;
        op.step = mixed ? 3 * n : 0;
        op.window = turn % 3 == 2 ? 20 : 0;
        op.scale = 3.0f / sqrtf((float)n);
        op.cap = turn % 2 == 0 ? 0.8f : 0.0f;
        op.weight = turn / 2 % 2 == 0 ? slot(model, 1, heads, 4.0f) : -1;
        add(model, op);
        check_buffer(state, model, 2, heads * n, 1e-6);
        model_free(model);
    }
    cpu->close(state);
}

static void heads_have_norm_weights_of_their_own(void **unused)
{
    static const int32_t sizes[] = {1, 3, 16, 17, 64};
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t turn = 0; turn < 20; turn++) {
        const int32_t n = sizes[turn % 5];
        const int32_t heads = 1 + turn % 4;
        struct model *model = model_of_inputs(lengths_odd, heads * n + 2 + turn % 3);
        struct evq_op op = plain_op;
        op.kind = turn < 10 ? EVQ_OP_LAYER_NORM : EVQ_OP_RMS_NORM;
        op.out = 1;
        op.weight = slot(model, 1, turn % 5 == 0 ? n : heads * n, 1.0f);
        op.n = n;
        op.column = 2;
        op.heads = heads;
        op.epsilon = 1e-5f;
        model->columns[2] = 1;
        add(model, op);
        check_buffer(state, model, 1, model->columns[1], 2e-6);
        model_free(model);
    }
    cpu->close(state);
}

static void rows_are_added(void **unused)
{
    static const int32_t sizes[] = {1, 3, 16, 17, 31, 200};
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t turn = 0; turn < 18; turn++) {
        const int32_t n = sizes[turn % 6];
        struct model *model = model_of_inputs(lengths_odd, n);
        struct evq_op op = plain_op;
        op.kind = EVQ_OP_GEMM;
        op.weight = slot(model, n, n, 0.5f);
        op.n = op.k = n;
        model->columns[2] = model->columns[3] = n;
        model->plan.buffer_count = 4;
        add(model, op);
        op = plain_op;
        op.kind = EVQ_OP_ADD;
        op.in = 2;
        op.residual = 1;
        op.out = 1 + turn % 3;
        op.n = n;
        op.scale = turn % 2 == 0 ? 1.0f : -0.22f;
        add(model, op);
        check_buffer(state, model, op.out, n, 2e-6);
        model_free(model);
    }
    cpu->close(state);
}

/* A router and experts of buffer 1, in sequences of up to 200 tokens. In some cases a batch has
 * more rows of one expert than a product takes. */
static struct model *model_of_experts(const int32_t shape[4], int32_t turn)
{
    const int32_t n = shape[0];
    const int32_t experts = shape[2];
    struct model *model = model_of_inputs(turn % 2 == 0 ? lengths_long : lengths_odd, n);
    struct evq_op op = plain_op;

    model->columns[2] = experts;
    model->columns[3] = n;
    model->plan.buffer_count = 4;
    op.kind = EVQ_OP_GEMM;
    op.weight = slot(model, experts, n, 1.0f);
    op.n = experts;
    op.k = n;
    add(model, op);
    op = plain_op;
    op.kind = EVQ_OP_ROUTE;
    op.in = op.out = 2;
    op.n = experts;
    op.top_k = shape[3];
    op.whole = turn % 3 == 0;
    add(model, op);
    op = plain_op;
    op.kind = EVQ_OP_EXPERTS;
    op.out = 3;
    op.residual = turn % 4 < 2 ? 1 : 3; // The second case adds to zeros.
    op.routes = 2;
    op.n = op.k = n;
    op.inner = shape[1];
    op.experts = experts;
    op.top_k = shape[3];
    op.activation = EVQ_ACT_SILU;
    op.weight = (int32_t)model->plan.slot_count;
    for (int32_t e = 0; e < experts; e++) {
        (void)slot(model, 2 * op.inner, n, 0.5f);
    }
    op.down = (int32_t)model->plan.slot_count;
    for (int32_t e = 0; e < experts; e++) {
        (void)slot(model, n, op.inner, 0.5f);
    }
    op.down_bias = -1;
    if (turn % 5 < 2) { // As gpt-oss has them.
        op.bias = slot(model, experts, 2 * op.inner, 1.0f);
        op.down_bias = slot(model, experts, n, 1.0f);
        op.neighbours = true;
        op.scale = 1.702f;
        op.cap = 1.5f;
    }
    if (op.residual == 3) { // Buffer 3 begins as buffer 1.
        struct evq_op copy = plain_op;
        copy.kind = EVQ_OP_ADD;
        copy.out = 3;
        copy.residual = 1;
        copy.n = n;
        copy.scale = -0.5f;
        add(model, copy);
    }
    add(model, op);
    return model;
}

static void experts_equal_plain_loops(void **unused)
{
    static const int32_t shapes[][4] = {// n, inner, experts, experts of a row.
                                        {1, 1, 1, 1},  {16, 24, 5, 2}, {33, 17, 7, 7},
                                        {8, 40, 2, 1}, {24, 8, 20, 3}, {48, 32, 4, 1}};
    void *state = open_cpu(3);

    (void)unused;
    for (int32_t turn = 0; turn < 24; turn++) {
        struct model *model = model_of_experts(shapes[turn % 6], turn);
        check_buffer(state, model, 3, shapes[turn % 6][0], 5e-6);
        model_free(model);
    }
    cpu->close(state);
}

/* Of equal logits the first count; a NaN reaches the result of its row, and of no other. */
static void routes_break_ties_and_keep_nan(void **unused)
{
    static const int32_t shape[] = {4, 3, 6, 2};
    void *state = open_cpu(2);
    struct model *model = model_of_experts(shape, 1);
    struct evq_row_result results[136];
    struct evq_error err = {0};
    float targets[136 * 4] = {0};

    (void)unused;
    memset(model->weights[1], 0, 6 * 4 * sizeof(float)); // The router.
    check_buffer(state, model, 3, 4, 5e-6);
    for (int32_t c = 0; c < 4; c++) { // The row 5 of the inputs.
        model->weights[0][5 * 4 + c] = NAN;
    }
    model->batch.targets = targets;
    prepare(state, model);
    assert_int_equal(cpu->exec(state, &model->batch, results, &err), EVQ_OK);
    for (int32_t r = 0; r < model->batch.rows; r++) {
        assert_true(isnan(results[r].loss) == (r == 5));
    }
    model_free(model);
    cpu->close(state);
}

static void logits_are_scaled_and_capped(void **unused)
{
    static const float options[][2] = {{0.0f, 0.0f}, {0.0625f, 0.0f}, {0.0f, 3.0f}, {1.7f, 2.0f}};
    void *state = open_cpu(2);
    struct evq_error err = {0};

    (void)unused;
    for (int32_t turn = 0; turn < 16; turn++) {
        const int32_t vocabulary = turn < 8 ? 67 : 1201; // The larger one has several tiles.
        struct model *model = model_of_inputs(lengths_odd, 24);
        struct evq_row_result plain[64];
        struct evq_row_result results[64];
        struct evq_op op = plain_op;
        model->columns[2] = 1;
        op.kind = EVQ_OP_SCORE;
        op.out = -1;
        op.weight = slot(model, vocabulary, 24, 0.3f);
        op.n = vocabulary;
        op.k = 24;
        op.scale = options[turn % 4][0];
        op.cap = options[turn % 4][1];
        add(model, op);
        model->batch.scores = 64;
        for (int32_t i = 0; i < 64; i++) {
            model->score_rows[i] = i;
            model->score_targets[i] = (i * 37 + turn) % vocabulary;
        }
        prepare(state, model);
        assert_int_equal(cpu->exec(state, &model->batch, results, &err), EVQ_OK);
        plain_free(plain_run(&model->plan, &model->batch, model->weights, plain), 3);
        for (int32_t i = 0; i < 64; i++) {
            assert_near(results[i].loss, plain[i].loss, 1e-5);
            assert_int_equal(results[i].predicted, plain[i].predicted);
        }
        model_free(model);
    }
    cpu->close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_heads_turn),
        cmocka_unit_test(long_sequences_turn_by_far_frequencies),
        cmocka_unit_test(attention_has_caps_sinks_and_mixed_heads),
        cmocka_unit_test(heads_have_norm_weights_of_their_own),
        cmocka_unit_test(rows_are_added),
        cmocka_unit_test(experts_equal_plain_loops),
        cmocka_unit_test(routes_break_ties_and_keep_nan),
        cmocka_unit_test(logits_are_scaled_and_capped),
    };
    int failed = 0;

    for (int isa = isa_lowest(); isa <= (int)evq_machine_isa(); isa++) {
        isa_begin(isa);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
        isa_end();
    }
    return failed;
}
