/* The native evaluator end to end: real MNIST, shards, regression, batch norm, NaN, warm data,
 * refusals. */
#include "native_fixture.h"

static void native_gives_published_numbers_of_mnist(void **state)
{
    struct fixture *fx = *state;
    const struct evq_pair options[] = {{"top_k", "2"}};
    const struct evq_task_config task = mnist_task(options, 1);
    struct evq_error err = {0};

    assert_int_equal(eval_mnist(fx, &task, -1, 0, &err), EVQ_OK);
    assert_int_equal(fx->seen.tasks, 1);
    assert_int_equal(fx->seen.done, MNIST_SAMPLES);
    assert_int_equal(fx->seen.total, MNIST_SAMPLES);
    assert_int_equal(fx->seen.result->n, MNIST_SAMPLES);
    assert_true(metric(fx, "accuracy") == 0.9849);
    assert_near(metric(fx, "cross_entropy"), 0.3905516936, 1e-6);
    assert_true(metric(fx, "top2_accuracy") > 0.9849);
    assert_near(fx->seen.result->metrics[0].std_error, sqrt(0.9849 * 0.0151 / 9999.0), 1e-12);
    assert_int_equal(fx->seen.result->metrics[0].higher_is_better, 1);
    assert_int_equal(fx->seen.result->metrics[1].higher_is_better, 0);
    assert_string_equal(fx->seen.result->backend, "cpu");
    assert_int_equal(strlen(fx->seen.result->weights_digest), 32);
    assert_int_equal(strlen(fx->seen.result->data_digest), 32);
    assert_true(fx->seen.result->timing.bytes > 1888000);
    assert_int_equal(fx->seen.result->timing.samples, MNIST_SAMPLES);
    print_message("mnist: cross-entropy %.10f, load %lld us, compute %lld us on %s\n",
                  metric(fx, "cross_entropy"), (long long)fx->seen.result->timing.load_us,
                  (long long)fx->seen.result->timing.compute_us, fx->seen.result->device);
    assert_int_equal(eval_mnist(fx, &task, -1, 0, &err), EVQ_OK); // Warm.
    assert_true(metric(fx, "accuracy") == 0.9849);
    print_message("again: load %lld us, compute %lld us\n",
                  (long long)fx->seen.result->timing.load_us,
                  (long long)fx->seen.result->timing.compute_us);
}

static void native_shards_add_up_to_the_whole(void **state)
{
    static const int32_t counts[] = {1, 2, 3, 7};
    struct fixture *fx = *state;
    const struct evq_task_config task = mnist_task(NULL, 0);
    struct evq_error err = {0};

    assert_int_equal(eval_mnist(fx, &task, -1, 0, &err), EVQ_OK);
    const double whole = metric(fx, "cross_entropy");
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct evq_result *merged = evq_result_new();
        assert_non_null(merged);
        struct evq_sum *sums = NULL;
        for (int32_t shard = 0; shard < counts[i]; shard++) {
            assert_int_equal(eval_mnist(fx, &task, shard, counts[i], &err), EVQ_OK);
            const struct evq_result *part = fx->seen.result;
            assert_int_equal(part->metric_count, 0);
            if (sums == NULL) {
                sums = evq_arena_array(merged->arena, part->sum_count, sizeof(*sums));
                assert_non_null(sums);
            }
            for (size_t s = 0; s < part->sum_count; s++) {
                sums[s].name = evq_arena_strdup(merged->arena, part->sums[s].name);
                sums[s].is_count = part->sums[s].is_count;
                sums[s].count += part->sums[s].count;
                sums[s].value += part->sums[s].value;
            }
            merged->sum_count = part->sum_count;
        }
        merged->sums = sums;
        assert_int_equal(evq_native_merge(&task, merged, &err), EVQ_OK);
        assert_int_equal(merged->n, MNIST_SAMPLES);
        assert_true(merged->metrics[0].value == 0.9849);
        assert_near(merged->metrics[1].value, whole, 1e-12 * whole);
        print_message("%d shards: off by %.3g\n", (int)counts[i], merged->metrics[1].value - whole);
        evq_result_free(merged);
    }
    assert_int_equal(eval_mnist(fx, &task, 3, 3, &err), EVQ_E_INVALID);
}

static void native_merge_refuses_sums_that_lack_a_name(void **state)
{
    struct evq_result *result = evq_result_new();
    struct evq_sum sums[] = {{"n", true, 0.0, 0}, {"correct", true, 0.0, 0}};
    struct evq_task_config task = mnist_task(NULL, 0);
    struct evq_error err = {0};

    (void)state;
    assert_non_null(result);
    result->sums = sums;
    result->sum_count = 2;
    assert_int_equal(evq_native_merge(&task, result, &err), EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "correct_top_k"));
    task.type = "clasification";
    assert_int_equal(evq_native_merge(&task, result, &err), EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "not known"));
    evq_result_free(result);
}

/* A batch may take longer than a child may stay silent. */
static void native_tells_within_a_batch(void **state)
{
    struct fixture *fx = *state;
    const struct evq_task_config task = mnist_task(NULL, 0);
    struct evq_error err = {0};

    fx->seen.stop_at = 1; // The first batch is the last.
    assert_int_equal(eval_mnist(fx, &task, -1, 0, &err), EVQ_E_STOPPED);
    assert_true(fx->seen.within >= 1);
}

static void native_stops_when_told(void **state)
{
    struct fixture *fx = *state;
    const struct evq_task_config task = mnist_task(NULL, 0);
    struct evq_error err = {0};

    fx->seen.stop_at = 1;
    assert_int_equal(eval_mnist(fx, &task, -1, 0, &err), EVQ_E_STOPPED);
    assert_int_equal(fx->seen.progress, 1);
    assert_int_equal(fx->seen.tasks, 0);
    fx->seen.stop_at = 0;
    assert_int_equal(eval_mnist(fx, &task, -1, 0, &err), EVQ_OK);
}

static void native_regression_equals_by_hand(void **state)
{
    struct fixture *fx = *state;
    const float w0[] = {1.0f, -1.0f, 2.0f, 0.5f};
    const float b0[] = {0.5f, -1.0f};
    const float w1[] = {1.0f, 2.0f, -1.0f, 0.0f};
    const struct fixture_tensor tensors[] = {MATRIX("net.0.weight", 2, 2, w0),
                                             VECTOR("net.0.bias", 2, b0),
                                             MATRIX("net.2.weight", 2, 2, w1)};
    const float x[] = {1.0f, 2.0f, -3.0f, 1.0f};
    const float y[] = {4.0f, 1.0f, 0.0f, 0.5f};
    struct small small;
    struct evq_error err = {0};

    // Row 0: hidden relu(-0.5, 2) = (0, 2), out (4, 0). Row 1: relu(-3.5, -6.5) = (0, 0), out (0,
    // 0).
    write_model(fx, tensors, 3);
    write_npy(fx, "x.npy", 2, 2, x);
    write_npy(fx, "y.npy", 2, 2, y);
    small_init(fx, &small, mnist_model, 1);
    assert_int_equal(eval(fx, fx->root_fd, "m.safetensors", &small.task, 1, -1, 0, &err), EVQ_OK);
    assert_near(metric(fx, "mse"), (1.0 + 0.25) / 4.0, 1e-12);
    assert_near(metric(fx, "mae"), (1.0 + 0.5) / 4.0, 1e-12);
    assert_int_equal(fx->seen.result->n, 2);
    const struct evq_pair sigmoid[] = {{"activation", "sigmoid"}};
    small_init(fx, &small, sigmoid, 1);
    assert_int_equal(eval(fx, fx->root_fd, "m.safetensors", &small.task, 1, -1, 0, &err), EVQ_OK);
    const double h[2][2] = {{1.0 / (1.0 + exp(0.5)), 1.0 / (1.0 + exp(-2.0))},
                            {1.0 / (1.0 + exp(3.5)), 1.0 / (1.0 + exp(6.5))}};
    double squared = 0.0;
    for (int r = 0; r < 2; r++) {
        squared += pow(h[r][0] + 2.0 * h[r][1] - (double)y[2 * r], 2.0) +
                   pow(-h[r][0] - (double)y[2 * r + 1], 2.0);
    }
    assert_near(metric(fx, "mse"), squared / 4.0, 1e-6);
    for (int32_t shard = 0; shard < 3; shard++) { // More shards than samples: the last has none.
        assert_int_equal(eval(fx, fx->root_fd, "m.safetensors", &small.task, 1, shard, 3, &err),
                         EVQ_OK);
        assert_int_equal(fx->seen.result->n, shard < 2 ? 1 : 0);
    }
}

static void native_nan_weights_give_nan_metrics(void **state)
{
    struct fixture *fx = *state;
    const float w[] = {NAN, 1.0f, 1.0f, 1.0f};
    const struct fixture_tensor tensors[] = {MATRIX("weight", 2, 2, w)};
    const float x[] = {1.0f, 2.0f, 3.0f, 4.0f};
    struct small small;
    struct evq_error err = {0};

    write_model(fx, tensors, 1);
    write_npy(fx, "x.npy", 2, 2, x);
    write_npy(fx, "y.npy", 2, 2, x);
    small_init(fx, &small, NULL, 0);
    assert_int_equal(eval(fx, fx->root_fd, "m.safetensors", &small.task, 1, -1, 0, &err), EVQ_OK);
    assert_true(isnan(metric(fx, "mse")) && isnan(metric(fx, "mae")));

    static float images[10 * 784];
    images[0] = NAN;
    const struct fixture_tensor wide[] = {MATRIX("weight", 10, 784, images)};
    const struct evq_task_config task = mnist_task(NULL, 0);
    write_model(fx, wide, 1);
    assert_int_equal(eval(fx, fx->root_fd, "m.safetensors", &task, 1, -1, 0, &err), EVQ_OK);
    assert_true(isnan(metric(fx, "cross_entropy")));
    assert_true(isnan(metric(fx, "accuracy")));
    assert_true(metric(fx, "nan_samples") == (double)MNIST_SAMPLES);
}

static void native_runs_tasks_in_turn_and_leaves_done_ones_out(void **state)
{
    struct fixture *fx = *state;
    const struct evq_pair limit[] = {
        mnist_data[0], mnist_data[1], mnist_data[2], mnist_data[3], {"limit", "100"}};
    const struct evq_task_config tasks[] = {
        {.name = "a",
         .type = "classification",
         .data = limit,
         .data_count = 5,
         .model = mnist_model,
         .model_count = 1},
        {.name = "b",
         .type = "classification",
         .data = limit,
         .data_count = 5,
         .model = mnist_model,
         .model_count = 1},
    };
    const char *const done[] = {"a"};
    const struct evq_suite suite = {
        .name = "s", .evaluator = "native", .prepare = "", .tasks = tasks, .task_count = 2};
    const int root_fd = open(EVQ_TEST_DATA, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct evq_eval_request request = {.suite = &suite,
                                       .root_fd = root_fd,
                                       .root_path = "",
                                       .path = "mnist/mlp_784_512_128_32_10.safetensors",
                                       .shard = -1};
    const struct evq_eval_report report = {&fx->seen, on_progress, on_task};
    struct evq_error err = {0};

    assert_int_equal(evq_native_eval(fx->native, &request, &report, &err), EVQ_OK);
    assert_int_equal(fx->seen.tasks, 2);
    assert_string_equal(fx->seen.result->task, "b");
    assert_int_equal(fx->seen.result->timing.bytes, 0); // The weights were there.
    assert_int_equal(fx->seen.result->n, 100);
    assert_int_equal(strlen(fx->seen.result->weights_digest), 32);
    const double both = metric(fx, "cross_entropy");
    request.tasks_done = done;
    request.task_done_count = 1;
    assert_int_equal(evq_native_eval(fx->native, &request, &report, &err), EVQ_OK);
    assert_int_equal(fx->seen.tasks, 3);
    assert_true(fx->seen.result->timing.bytes > 0);
    assert_true(metric(fx, "cross_entropy") == both);
    request.prepared = EVQ_TEST_DATA "/nowhere";
    assert_int_equal(evq_native_eval(fx->native, &request, &report, &err), EVQ_E_IO);
    (void)close(root_fd);
}

static void native_says_why_it_runs_on_the_cpu(void **state)
{
    struct evq_native *native = NULL;
    char note[512] = "";
    struct evq_error err = {0};

    (void)state;
    assert_int_equal(evq_native_open(99, 1, &native, note, sizeof(note), &err),
                     EVQ_OK); // No machine has so many.
    assert_non_null(strstr(note, "evaluating on the CPU: "));
    print_message("%s\n", note);
    evq_native_close(native);
    evq_native_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(native_gives_published_numbers_of_mnist, setup, teardown),
        cmocka_unit_test_setup_teardown(native_shards_add_up_to_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(native_merge_refuses_sums_that_lack_a_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(native_tells_within_a_batch, setup, teardown),
        cmocka_unit_test_setup_teardown(native_stops_when_told, setup, teardown),
        cmocka_unit_test_setup_teardown(native_regression_equals_by_hand, setup, teardown),
        cmocka_unit_test_setup_teardown(native_nan_weights_give_nan_metrics, setup, teardown),
        cmocka_unit_test_setup_teardown(native_runs_tasks_in_turn_and_leaves_done_ones_out, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(native_says_why_it_runs_on_the_cpu, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
