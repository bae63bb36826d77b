/* The CPU backend on plans of tokens, operation by operation, against plain loops in double. A case
 * is a plan that ends in squared errors to what the loops give: next to nothing. */
#include "plain_model.h"

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
        struct model *model = model_of_inputs(lengths_odd, column + heads * n + turn % 4);
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
        struct model *model = model_of_inputs(lengths_long, column + heads * n + turn % 2);
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
        struct model *model =
            model_of_inputs(turn < 9 ? lengths_odd : lengths_long,
                            (shape[0] + 2 * shape[1]) * shape[2] + (int32_t)turn % 3);
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
        struct model *model = model_of_inputs(lengths_odd, 2 * n);
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
        model_free(model);
    }
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
    };
    int failed = 0;

    for (int isa = isa_lowest(); isa <= (int)evq_machine_isa(); isa++) {
        isa_begin(isa);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
        isa_end();
    }
    return failed;
}
