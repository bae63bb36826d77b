/* What the native evaluator refuses: each time one sentence that names tensor, option or file and
 * what was expected. */
#include "native_fixture.h"

static void native_refuses_what_does_not_fit(void **state)
{
    struct fixture *fx = *state;
    static float zeros[784 * 12];
    const int64_t whole[4] = {0};
    const struct fixture_tensor fits = MATRIX("0.weight", 10, 784, zeros);
    const struct fixture_tensor integer = {
        .name = "0.weight", .dtype = EVQ_DTYPE_I64, .rank = 2, .shape = {2, 2}, .data = whole};
    const struct fixture_tensor convolution = {.name = "0.weight",
                                               .dtype = EVQ_DTYPE_F32,
                                               .rank = 4,
                                               .shape = {1, 1, 3, 3},
                                               .data = zeros};
    const struct {
        struct fixture_tensor tensors[2];
        size_t count;
        const char *words;
    } cases[] = {
        {{MATRIX("0.weight", 12, 2, zeros), {0}}, 1, "takes 2 inputs, but a sample of"},
        {{MATRIX("0.weight", 9, 784, zeros), {0}}, 1, "label 9, expected 0 to 8"},
        {{MATRIX("0.weight", 1, 784, zeros), {0}}, 1, "at least 2"},
        {{fits, VECTOR("0.bias", 9, zeros)}, 2, "tensor '0.bias' has shape [9], expected [10]"},
        {{fits, MATRIX("1.weight", 10, 9, zeros)},
         2,
         "'1.weight' takes 9 values, but '0.weight' before it gives 10"},
        {{fits, VECTOR("1.bias", 10, zeros)}, 2, "tensor '1.weight' is missing beside '1.bias'"},
        {{fits, VECTOR("1.running_mean", 10, zeros)}, 2, "'1.running_mean' has no place"},
        {{fits, VECTOR("scale", 10, zeros)}, 2, "tensor 'scale' has no place"},
        {{fits, VECTOR("1.weight", 10, zeros)}, 2, "tensor '1.weight' has 1 dimension, expected 2"},
        {{integer, {0}}, 1, "is I64, expected floating point"},
        {{convolution, {0}}, 1, "has 4 dimensions"},
        {{{0}, {0}}, 0, "no matrix"},
    };
    const struct evq_task_config task = mnist_task(NULL, 0);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_error err = {0};
        write_model(fx, cases[i].tensors, cases[i].count);
        assert_int_not_equal(eval(fx, fx->root_fd, "m.safetensors", &task, 1, -1, 0, &err), EVQ_OK);
        if (strstr(err.message, cases[i].words) == NULL ||
            strstr(err.message, "task 'digits'") == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].words);
        }
    }
    struct evq_error err = {0};
    assert_int_equal(eval(fx, fx->root_fd, "gone.safetensors", &task, 1, -1, 0, &err), EVQ_E_GONE);
    assert_int_equal(eval(fx, fx->root_fd, "m.safetensors", &task, 0, -1, 0, &err), EVQ_E_INVALID);
    assert_int_equal(fx->seen.tasks, 0);
}

static void expect_words(struct fixture *fx, const struct evq_pair *model, size_t count,
                         const char *words)
{
    struct evq_task_config task = mnist_task(NULL, 0);
    struct evq_error err = {0};

    task.model = model;
    task.model_count = count;
    const enum evq_status status = eval(fx, fx->root_fd, "m.safetensors", &task, 1, -1, 0, &err);
    if ((status == EVQ_OK) != (words[0] == '\0') || strstr(err.message, words) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", err.message, words);
    }
}

/* A state dict does not tell the activation. */
static void native_mlp_asks_what_lies_between_its_layers(void **state)
{
    struct fixture *fx = *state;
    static float zeros[784 * 10];
    const struct fixture_tensor tensors[] = {MATRIX("0.weight", 10, 784, zeros),
                                             MATRIX("3.weight", 10, 10, zeros)};
    static const struct evq_pair gelu[] = {{"activation", "gelu"}};

    write_model(fx, tensors, 1);
    expect_words(fx, NULL, 0, ""); // One matrix: nothing lies between.
    write_model(fx, tensors, 2);
    expect_words(fx, NULL, 0, "add it to the task (model: {activation: relu}");
    expect_words(fx, gelu, 1, "");
}

/* Without numbers in their names, only the user knows the order of the layers. */
static void native_mlp_asks_for_the_order_of_unnumbered_layers(void **state)
{
    struct fixture *fx = *state;
    static float zeros[784 * 4];
    static const struct {
        const char *names[4];
        bool numbered;
    } cases[] = {
        {{"in.weight", "two.weight", "three.weight", "z_out.weight"}, false},
        {{"l1.weight", "l2.weight", "l3.weight", "z_out.weight"}, false},
        {{"l.weight", "l2.weight", "l3.weight", "l4.weight"}, false},
        {{"l.1a.weight", "l.1b.weight", "l.2.weight", "l.3.weight"}, false},
        {{"l0.weight", "l2.weight", "l10.weight", "l11.weight"}, true},
        {{"l0.weight", "l1.weight", "l10.weight", "l11.weight"}, true},
        {{"l0.fc.weight", "l1.fc.weight", "l10.fc.weight", "l11.out.weight"}, true},
    };
    static const struct evq_pair text[] = {{"activation", "relu"},
                                           {"layers", "in, two, three, z_out"}};
    static const struct evq_pair list[] = {{"activation", "relu"}, {"layers.0", "in"},
                                           {"layers.1", "two"},    {"layers.2", "three"},
                                           {"layers.3", "z_out"},  {"layers.x", "more"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const *names = cases[i].names;
        const struct fixture_tensor tensors[] = {
            MATRIX(names[0], 4, 784, zeros), MATRIX(names[1], 4, 4, zeros),
            MATRIX(names[2], 4, 4, zeros), MATRIX(names[3], 10, 4, zeros)};
        write_model(fx, tensors, 4);
        expect_words(fx, mnist_model, 1, cases[i].numbered ? "" : "model: {layers: [...]}");
        if (i == 0) {
            expect_words(fx, text, 2, "");
            expect_words(fx, list, 5, "");
            expect_words(fx, list, 4, "'z_out' is in the checkpoint but not among");
            expect_words(fx, list, 6, "'layers.x' is not known");
        }
    }
}

/* The result says which tensors it leaves aside. */
static void native_notes_the_tensors_that_it_ignores(void **state)
{
    struct fixture *fx = *state;
    static float zeros[784 * 10];
    const struct fixture_tensor tensors[] = {MATRIX("net.weight", 10, 784, zeros),
                                             MATRIX("other.weight", 3, 4, zeros)};
    static const struct evq_pair prefix[] = {{"prefix", "net."}};
    static const struct evq_pair ignore[] = {{"ignore.0", "oth"}};

    write_model(fx, tensors, 2);
    expect_words(fx, prefix, 1, "");
    assert_string_equal(fx->seen.result->note,
                        "tensors of the checkpoint that were ignored: other.weight");
    expect_words(fx, ignore, 1, "");
    assert_non_null(strstr(fx->seen.result->note, "ignored: other.weight"));
    write_model(fx, tensors, 1);
    expect_words(fx, NULL, 0, "");
    assert_string_equal(fx->seen.result->note, "");
}

static void native_model_options_are_read_strictly(void **state)
{
    struct fixture *fx = *state;
    static float zeros[784 * 10];
    const struct fixture_tensor tensors[] = {
        MATRIX("a.in.weight", 4, 784, zeros), MATRIX("a.out.weight", 10, 4, zeros),
        MATRIX("b.weight", 3, 3, zeros), MATRIX("a.mid.weight", 4, 4, zeros)};
    static const struct {
        struct evq_pair model[3];
        size_t count;
        const char *words; // "": accepted.
    } cases[] = {
        {{{"prefix", "a."}, {"layers", "in, mid, out"}, {"activation", "relu"}}, 3, ""},
        {{{"prefix", "a."}}, 1, "model: {layers: [...]}"},
        {{{"layers", "b, a.in, a.mid, a.out"}}, 1, "takes 784 values"},
        {{{"prefix", "c."}}, 1, "under the prefix 'c.'"},
        {{{"prefix", "a."}, {"layers", "in, out"}}, 2, "'mid' is in the checkpoint but not among"},
        {{{"prefix", "a."}, {"layers", "in, mid, mid"}}, 2, "names 'mid'"},
        {{{"prefix", "a."}, {"layers", "out, mid, in"}}, 2, "before it gives 10"},
        {{{"prefix", "a."}, {"activation", "softplus"}}, 2, "activation is 'softplus'"},
        {{{"prefix", "a."}, {"actvation", "relu"}}, 2, "did you mean 'activation'"},
        {{{"prefix", "a."}, {"family", "gpt7"}}, 2, "family 'gpt7'"},
    };

    write_model(fx, tensors, 4);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_task_config task = mnist_task(NULL, 0);
        struct evq_error err = {0};
        task.model = cases[i].model;
        task.model_count = cases[i].count;
        const enum evq_status status =
            eval(fx, fx->root_fd, "m.safetensors", &task, 1, -1, 0, &err);
        if ((status == EVQ_OK) != (cases[i].words[0] == '\0') ||
            strstr(err.message, cases[i].words) == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].words);
        }
    }
    const struct evq_pair bad[] = {{"topk", "3"}};
    const struct evq_task_config task = mnist_task(bad, 1);
    struct evq_error err = {0};
    assert_int_equal(eval(fx, fx->root_fd, "m.safetensors", &task, 1, -1, 0, &err), EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "did you mean 'top_k'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(native_refuses_what_does_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(native_mlp_asks_what_lies_between_its_layers, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(native_mlp_asks_for_the_order_of_unnumbered_layers, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(native_notes_the_tensors_that_it_ignores, setup, teardown),
        cmocka_unit_test_setup_teardown(native_model_options_are_read_strictly, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
