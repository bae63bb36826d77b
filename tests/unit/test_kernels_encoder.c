/* What only encoders do: attention in both directions, types of tokens, means of sequences, and
 * labels of sequences; against plain loops in double. */
#include "plain_model.h"

static const struct evq_op plain_op = {.in = 1, .out = 2, .weight = -1, .bias = -1};

static struct model *model_of_attention(const int32_t *lengths, int32_t n, int32_t window)
{
    struct model *model = model_of_inputs(lengths, 4 * n);
    struct evq_op op = plain_op;

    model->columns[2] = 2 * n;
    op.kind = EVQ_OP_ATTENTION;
    op.n = n;
    op.heads = 2;
    op.kv_heads = 1;
    op.both = true;
    op.window = window;
    op.scale = 2.0f / sqrtf((float)n);
    add(model, op);
    return model;
}

/* Windows around the blocks of keys and queries, and of more than a sequence. */
static void attention_looks_in_both_directions(void **unused)
{
    static const int32_t sizes[] = {1, 7, 16, 33, 64, 80};
    static const int32_t windows[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 128, 199, 200, 5000};
    void *state = open_cpu(3);

    (void)unused;
    for (int32_t turn = 0; turn < 26; turn++) {
        const int32_t n = sizes[turn % 6];
        struct model *model = model_of_attention(turn % 2 == 0 ? lengths_long : lengths_odd, n,
                                                 windows[turn / 2 % 13]);
        struct evq_op *op = &model->ops[model->plan.op_count - 1];
        op->cap = turn % 5 == 0 ? 0.8f : 0.0f;
        op->weight = turn % 4 == 1 ? slot(model, 1, 2, 4.0f) : -1;
        check_buffer(state, model, 2, 2 * n, 1e-6);
        model_free(model);
    }
    cpu->close(state);
}

static void embeddings_have_types_and_a_first_position(void **unused)
{
    static const int32_t sizes[] = {1, 16, 17, 48, 200};
    int32_t types[200];
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t i = 0; i < 200; i++) {
        types[i] = i % 7 % 3;
    }
    for (int32_t turn = 0; turn < 20; turn++) {
        const int32_t n = sizes[turn % 5];
        struct model *model = model_new(lengths_odd, 50);
        struct evq_op op = plain_op;
        model->columns[0] = 1;
        model->columns[1] = n;
        model->plan.buffer_count = 2;
        op.kind = EVQ_OP_EMBEDDING;
        op.in = 0;
        op.out = 1;
        op.n = n;
        op.weight = slot(model, 50, n, 1.0f);
        op.column = turn % 3;
        op.bias = slot(model, 64 + op.column, n, 1.0f);
        op.types = slot(model, 3, n, 1.0f);
        op.scale = 1.0f;
        model->batch.types = turn % 2 == 0 ? types : NULL;
        add(model, op);
        check_buffer(state, model, 1, n, 1e-6);
        model_free(model);
    }
    cpu->close(state);
}

static void means_equal_plain_loops(void **unused)
{
    static const int32_t sizes[] = {1, 31, 64, 65, 130};
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t turn = 0; turn < 10; turn++) {
        const int32_t n = sizes[turn % 5];
        struct model *model = model_of_inputs(turn < 5 ? lengths_long : lengths_odd, n + turn % 2);
        struct evq_op op = plain_op;
        model->columns[2] = n;
        op.kind = EVQ_OP_MEAN;
        op.n = n;
        add(model, op);
        check_buffer(state, model, 2, n, 1e-6);
        model_free(model);
    }
    cpu->close(state);
}

/* Ends a plan with a product of buffer 2 and the loss of the first row of each sequence. */
static void add_labels(struct model *model, int32_t k, int32_t classes, int32_t top_k)
{
    struct evq_op op = plain_op;

    model->columns[3] = classes;
    model->plan.buffer_count = 4;
    op.kind = EVQ_OP_GEMM;
    op.in = 2;
    op.out = 3;
    op.weight = slot(model, classes, k, 0.7f);
    op.bias = slot(model, 1, classes, 1.0f);
    op.n = classes;
    op.k = k;
    add(model, op);
    op = plain_op;
    op.kind = EVQ_OP_CROSS_ENTROPY;
    op.in = 3;
    op.out = -1;
    op.n = op.k = classes;
    op.top_k = top_k;
    add(model, op);
    model->batch.scores = model->batch.sequences;
    for (int32_t s = 0; s < model->batch.sequences; s++) {
        model->score_rows[s] = model->starts[s];
        model->score_targets[s] = (s * 5 + 1) % classes;
    }
}

static void run(void *state, const struct model *model, struct evq_row_result *results)
{
    struct evq_error err = {0};

    prepare(state, model);
    if (cpu->exec(state, &model->batch, results, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
}

/* Whether fewer than top_k logits of a row are larger than the label's. */
static bool is_among(const double *logits, int32_t classes, int32_t label, int32_t top_k)
{
    int32_t above = 0;

    for (int32_t c = 0; c < classes; c++) {
        above += logits[c] > logits[label];
    }
    return above < top_k;
}

static void labels_are_scored_at_the_first_row(void **unused)
{
    static const int32_t classes[] = {2, 3, 17, 40};
    void *state = open_cpu(2);

    (void)unused;
    for (int32_t turn = 0; turn < 8; turn++) {
        const int32_t n = 1 + turn * 5;
        const int32_t count = classes[turn % 4];
        const int32_t top_k = turn % 3;
        struct evq_row_result results[16];
        struct model *model = model_of_attention(lengths_odd, n, turn % 2 == 0 ? 0 : 3);
        add_labels(model, 2 * n, count, top_k);
        run(state, model, results);
        double **wanted = plain_run(&model->plan, &model->batch, model->weights, NULL);
        for (int32_t s = 0; s < model->batch.sequences; s++) {
            const double *logits = wanted[3] + (size_t)model->starts[s] * (size_t)count;
            const int32_t label = model->score_targets[s];
            int32_t best = 0;
            double sum = 0.0;
            for (int32_t c = 0; c < count; c++) {
                best = logits[c] > logits[best] ? c : best;
                sum += exp(logits[c] - logits[label]);
            }
            assert_near(results[s].loss, log(sum), 1e-5);
            assert_int_equal(results[s].predicted, best);
            assert_int_equal(results[s].correct, best == label);
            assert_int_equal(results[s].in_top_k, is_among(logits, count, label, top_k));
        }
        plain_free(wanted, model->plan.buffer_count);
        model_free(model);
    }
    cpu->close(state);
}

/* A sequence gets the same bits alone as between others. */
static void sequences_do_not_touch_each_other(void **unused)
{
    void *state = open_cpu(2);
    struct evq_row_result together[16];
    struct model *model = model_of_attention(lengths_long, 24, 40);

    (void)unused;
    add_labels(model, 48, 5, 1);
    run(state, model, together);
    const struct evq_batch whole = model->batch;
    const int32_t first_row = 0;
    for (int32_t s = 0; s < whole.sequences; s++) {
        const int32_t rows = model->starts[s + 1] - model->starts[s];
        const int32_t starts[] = {0, rows};
        struct evq_row_result alone;
        model->batch = (struct evq_batch){.rows = rows,
                                          .tokens = whole.tokens + model->starts[s],
                                          .starts = starts,
                                          .sequences = 1,
                                          .score_rows = &first_row,
                                          .score_targets = whole.score_targets + s,
                                          .scores = 1};
        run(state, model, &alone);
        assert_memory_equal(&alone.loss, &together[s].loss, sizeof(alone.loss));
    }
    model_free(model);
    cpu->close(state);
}

static void a_nan_reaches_its_own_sequence_alone(void **unused)
{
    void *state = open_cpu(2);
    struct evq_row_result results[16];
    struct model *model = model_of_attention(lengths_odd, 8, 0);

    (void)unused;
    add_labels(model, 16, 3, 1);
    model->weights[0][40 * 32 + 31] = NAN; // A value of row 40, which is in the fourth sequence.
    run(state, model, results);
    for (int32_t s = 0; s < model->batch.sequences; s++) {
        assert_int_equal(isnan(results[s].loss) != 0, s == 3);
        assert_int_equal(results[s].predicted < 0, s == 3);
    }
    model_free(model);
    cpu->close(state);
}

static void refuse(void *state, const struct model *model, enum evq_status status, const char *part)
{
    struct evq_row_result results[16];
    struct evq_error err = {0};

    assert_int_equal(cpu->exec(state, &model->batch, results, &err), status);
    if (strstr(err.message, part) == NULL) {
        fail_msg("expected '%s', got '%s'", part, err.message);
    }
}

static void batches_that_do_not_fit_are_refused(void **unused)
{
    void *state = open_cpu(2);
    int32_t types[200] = {0};
    struct model *model = model_of_attention(lengths_odd, 8, 0);

    (void)unused;
    model->ops[0].types = slot(model, 2, 32, 1.0f);
    add_labels(model, 16, 3, 1);
    model->batch.types = types;
    prepare(state, model);
    model->score_targets[2] = 3;
    refuse(state, model, EVQ_E_INVALID, "row 2 has label 3, expected 0 to 2");
    model->score_targets[2] = -1;
    refuse(state, model, EVQ_E_INVALID, "row 2 has label -1");
    model->score_targets[2] = 0;
    types[7] = 2;
    refuse(state, model, EVQ_E_INVALID, "row 7 has token type 2, expected 0 to 1");
    types[7] = 0;
    model->score_rows[2] = model->score_rows[1]; // A row has one label.
    refuse(state, model, EVQ_E_BUG, "scores that do not fit");
    model->score_rows[2] = model->batch.rows;
    refuse(state, model, EVQ_E_BUG, "scores that do not fit");
    model_free(model);
    cpu->close(state);
}

/* Every query of both directions looks at all keys of its sequence, or of its window. */
static void work_is_counted(void **unused)
{
    static const int32_t windows[] = {0, 1, 3, 10, 11};
    static const int32_t lengths[] = {10, 0};
    void *state = open_cpu(1);
    struct evq_row_result results[16];

    (void)unused;
    for (size_t i = 0; i < 5; i++) {
        struct model *model = model_of_attention(lengths, 8, windows[i]);
        struct evq_backend_stats before;
        struct evq_backend_stats after;
        uint64_t pairs = 0;
        for (int32_t q = 0; q < 10; q++) {
            for (int32_t k = 0; k < 10; k++) {
                pairs += windows[i] == 0 || abs(q - k) < windows[i];
            }
        }
        add_labels(model, 16, 3, 1);
        cpu->stats(state, &before);
        run(state, model, results);
        cpu->stats(state, &after);
        assert_int_equal(after.flops - before.flops, pairs * 4 * 8 * 2 + 2 * 3 * 16);
        model_free(model);
    }
    cpu->close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_looks_in_both_directions),
        cmocka_unit_test(embeddings_have_types_and_a_first_position),
        cmocka_unit_test(means_equal_plain_loops),
        cmocka_unit_test(labels_are_scored_at_the_first_row),
        cmocka_unit_test(sequences_do_not_touch_each_other),
        cmocka_unit_test(a_nan_reaches_its_own_sequence_alone),
        cmocka_unit_test(batches_that_do_not_fit_are_refused),
        cmocka_unit_test(work_is_counted),
    };
    int failed = 0;

    for (int isa = isa_lowest(); isa <= (int)evq_machine_isa(); isa++) {
        isa_begin(isa);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
        isa_end();
    }
    return failed;
}
