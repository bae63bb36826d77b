#include "tests/unit/native_fixture.h"

#include <sys/stat.h>

static const float points[] = {1.0f, 2.0f, -3.0f, 1.0f};

static enum evq_status eval_variant(struct fixture *fx, const char *variant,
                                    const struct evq_task_config *task, struct evq_error *err)
{
    const int root_fd = open(EVQ_TEST_DATA "/checkpoints/made", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct evq_suite suite = {.name = "s",
                                    .evaluator = "native",
                                    .prepare = "",
                                    .shards = 1,
                                    .tasks = task,
                                    .task_count = 1,
                                    .digest = "0123456789abcdef0123456789abcdef"};
    const struct evq_job job = {.variant = variant};
    const struct evq_eval_request request = {.suite = &suite,
                                             .job = &job,
                                             .root_fd = root_fd,
                                             .root_path = "",
                                             .path = "ema_mlp.ckpt",
                                             .prepared = "",
                                             .shard = -1};
    const struct evq_eval_report report = {&fx->seen, on_progress, on_task};

    assert_true(root_fd >= 0);
    const enum evq_status status = evq_native_eval(fx->native, &request, &report, err);
    (void)close(root_fd);
    return status;
}

/* One file, two jobs: the trained layer multiplies by 1, the averaged one by 2. */
static void native_gives_regular_and_ema_weights_of_one_file_their_own_numbers(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {0};
    struct small small;
    char digests[2][33];
    float twice[4];

    for (int i = 0; i < 4; i++) {
        twice[i] = 2.0f * points[i];
    }
    write_npy(fx, "x.npy", 2, 2, points);
    write_npy(fx, "y.npy", 2, 2, twice);
    small_init(fx, &small, NULL, 0);
    assert_int_equal(eval_variant(fx, "ema", &small.task, &err), EVQ_OK);
    assert_near(metric(fx, "mse"), 0.0, 0.0);
    (void)snprintf(digests[0], sizeof(digests[0]), "%s", fx->seen.result->weights_digest);
    assert_int_equal(eval_variant(fx, "regular", &small.task, &err), EVQ_OK);
    assert_near(metric(fx, "mse"), (1.0 + 4.0 + 9.0 + 1.0) / 4.0, 1e-12);
    (void)snprintf(digests[1], sizeof(digests[1]), "%s", fx->seen.result->weights_digest);
    assert_string_not_equal(digests[0], digests[1]);
}

static void put_directory(const struct fixture *fx, const char *name, const char *file,
                          const struct fixture_tensor *tensors, size_t count)
{
    char path[128];

    assert_int_equal(mkdirat(fx->root_fd, name, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/%s/%s", fx->directory, name, file);
    fixture_safetensors(path, tensors, count);
}

/* The adapter adds 2 (x0 + x1) to the first output of the first layer. */
static void native_evaluates_an_adapter_on_the_base_that_the_suite_names(void **state)
{
    struct fixture *fx = *state;
    static const char config[] = "{\"peft_type\": \"LORA\", \"lora_alpha\": 2, \"r\": 1, "
                                 "\"base_model_name_or_path\": \"somebody/model\"}";
    const float w0[] = {1.0f, -1.0f, 2.0f, 0.5f};
    const float b0[] = {0.5f, -1.0f};
    const float w1[] = {1.0f, 2.0f, -1.0f, 0.0f};
    const float a[] = {1.0f, 1.0f};
    const float b[] = {1.0f, 0.0f};
    const struct fixture_tensor base[] = {MATRIX("0.weight", 2, 2, w0), VECTOR("0.bias", 2, b0),
                                          MATRIX("2.weight", 2, 2, w1)};
    const struct fixture_tensor adapter[] = {MATRIX("base_model.model.0.lora_A.weight", 1, 2, a),
                                             MATRIX("base_model.model.0.lora_B.weight", 2, 1, b)};
    const float wanted[] = {9.5f, -5.5f, 0.0f, 0.0f}; // Hidden (5.5, 2) and (0, 0).
    const struct evq_pair model[] = {{"activation", "relu"}, {"base", "base"}};
    struct evq_error err = {0};
    struct small small;
    char path[128];

    put_directory(fx, "base", "model.safetensors", base, 3);
    put_directory(fx, "adapter", "adapter_model.safetensors", adapter, 2);
    (void)snprintf(path, sizeof(path), "%s/adapter/adapter_config.json", fx->directory);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(config, 1, sizeof(config) - 1, file), sizeof(config) - 1);
    assert_int_equal(fclose(file), 0);
    write_npy(fx, "x.npy", 2, 2, points);
    write_npy(fx, "y.npy", 2, 2, wanted);
    small_init(fx, &small, model, 2);
    assert_int_equal(eval(fx, fx->root_fd, "adapter", &small.task, 1, -1, 0, &err), EVQ_OK);
    assert_near(metric(fx, "mse"), 0.0, 1e-12);
    small_init(fx, &small, NULL, 0); // Without the option the adapter's own name leads nowhere.
    assert_int_equal(eval(fx, fx->root_fd, "adapter", &small.task, 1, -1, 0, &err),
                     EVQ_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "set `base`"));
    static const char *const made[] = {"base/model.safetensors", "adapter/adapter_config.json",
                                       "adapter/adapter_model.safetensors"};
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        assert_int_equal(unlinkat(fx->root_fd, made[i], 0), 0);
    }
    assert_int_equal(unlinkat(fx->root_fd, "base", AT_REMOVEDIR), 0);
    assert_int_equal(unlinkat(fx->root_fd, "adapter", AT_REMOVEDIR), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            native_gives_regular_and_ema_weights_of_one_file_their_own_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(
            native_evaluates_an_adapter_on_the_base_that_the_suite_names, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
