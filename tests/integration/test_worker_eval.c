/*
 * Tests `evalq-worker eval` and `inspect`, which use no Redis.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fixture/folder.h"
#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"
#define MLP EVQ_TEST_DATA "/mnist/mlp_784_512_128_32_10.safetensors"

static const char site_yaml[] =
    "worker: {scratch: $DIR/scratch}\n"
    "evaluators:\n"
    "  sh: {kind: command, command: [$DIR/eval.sh], env: {EXTRA: given}}\n"
    "  harness: {kind: command, command: [$DIR/harness.sh], results: lm-eval}\n"
    "  slow: {kind: command, command: [sleep, '60']}\n"
    "  gone: {kind: command, command: [$DIR/gone.sh]}\n"
    "  py: {kind: persistent, command: [python3, $DATA/evaluators/persistent.py]}\n"
    "suites:\n"
    "  digits: {evaluator: native, tasks: [{name: digits, type: classification, model: "
    "{activation: relu}, data: "
    "{format: idx, inputs: $DATA/mnist/t10k-images-idx3-ubyte.gz, labels: "
    "$DATA/mnist/t10k-labels-idx1-ubyte.gz, "
    "scale: 0.00392156862745098}}]}\n"
    "  sh: {evaluator: sh, tasks: [{name: t, type: any, data: {format: mine}}]}\n"
    "  harness: {evaluator: harness, tasks: [{name: a, type: any}]}\n"
    "  slow: {evaluator: slow, limits: {seconds: 1}, tasks: [{name: t, type: any}]}\n"
    "  py: {evaluator: py, tasks: [{name: a, type: any}, {name: b, type: any}]}\n"
    "  unprepared: {evaluator: sh, prepare: gone, tasks: [{name: t, type: any}]}\n"
    "  split: {evaluator: sh, shards: 2, tasks: [{name: t, type: any}]}\n";

static const char eval_sh[] = "#!/bin/sh\nset -e\n[ \"$EXTRA\" = given ]\n[ -z "
                              "\"$CUDA_VISIBLE_DEVICES\" ]\n[ -f \"$EVALQ_CHECKPOINT\" ]\n"
                              "cp \"$EVALQ_JOB\" $DIR/job.json\n"
                              "echo '{\"accuracy\": 0.5, \"n\": 4}' > \"$EVALQ_RESULT\"\n";
static const char harness_sh[] =
    "#!/bin/sh\nset -e\nmkdir \"$EVALQ_RESULT/model\"\n"
    "echo '{\"results\": {\"a\": {\"acc,none\": 0.25, \"acc_stderr,none\": 0.5}}}' > "
    "\"$EVALQ_RESULT/model/results_1.json\"\n";

static int setup(void **state)
{
    struct fixture_site *site = fixture_site_open(NULL, BIN, EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "eval.sh", "", eval_sh);
    fixture_site_write(site, "harness.sh", "", harness_sh);
    fixture_site_checkpoint(site, "a.safetensors", 1);
    *state = site;
    return 0;
}

/*
 * Reads the JSON object that a command wrote to the site's file `out`. Warnings before it are
 * skipped.
 */
static json_t *out_json(const struct fixture_site *site)
{
    char path[256];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/out", site->dir);
    uint8_t *text = fixture_file_load(path, &bytes);
    json_t *json = json_loadb((const char *)text, bytes, 0, NULL);
    if (json == NULL) {
        fail_msg("no JSON: %.*s", (int)bytes, (const char *)text);
    }
    free(text);
    return json;
}

static double metric_of(const json_t *json, const char *task, const char *metric)
{
    const json_t *metrics =
        json_object_get(json_object_get(json_object_get(json, "tasks"), task), "metrics");

    assert_non_null(json_object_get(metrics, metric));
    return json_number_value(json_object_get(metrics, metric));
}

static int eval_json(struct fixture_site *site, const char *path, const char *suite)
{
    return fixture_site_run(site, "out", "eval", path, "--suite", suite, "--json", "--devices",
                            "cpu", "--config", site->config, NULL);
}

static void eval_gives_the_reference_numbers_of_mnist(void **state)
{
    struct fixture_site *site = *state;

    assert_int_equal(eval_json(site, MLP, "digits"), 0);
    json_t *json = out_json(site);
    assert_string_equal(json_string_value(json_object_get(json, "checkpoint")), MLP);
    assert_near(metric_of(json, "digits", "accuracy"), 0.9849, 1e-12);
    assert_near(metric_of(json, "digits", "cross_entropy"), 0.39055169, 1e-6);
    const json_t *task = json_object_get(json_object_get(json, "tasks"), "digits");
    assert_int_equal(json_integer_value(json_object_get(task, "n")), 10000);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(task, "sums"), "correct")),
                     9849);
    assert_true(json_number_value(json_object_get(task, "seconds")) > 0);
    json_decref(json);
}

static void eval_runs_programs_and_tells_them_the_job(void **state)
{
    struct fixture_site *site = *state;
    char path[256];
    size_t bytes = 0;

    assert_int_equal(eval_json(site, "ckpt/a.safetensors", "sh"), 0);
    json_t *json = out_json(site);
    assert_near(metric_of(json, "t", "accuracy"), 0.5, 0.0);
    json_decref(json);
    (void)snprintf(path, sizeof(path), "%s/job.json", site->dir);
    uint8_t *text = fixture_file_load(path, &bytes);
    json = json_loadb((const char *)text, bytes, 0, NULL);
    free(text);
    assert_non_null(json);
    (void)snprintf(path, sizeof(path), "%s/ckpt/a.safetensors", site->dir);
    assert_string_equal(json_string_value(json_object_get(json, "checkpoint")), path);
    assert_string_equal(json_string_value(json_object_get(json, "suite")), "sh");
    const json_t *task = json_array_get(json_object_get(json, "tasks"), 0);
    assert_string_equal(json_string_value(json_object_get(task, "name")), "t");
    assert_string_equal(json_string_value(json_object_get(json_object_get(task, "data"), "format")),
                        "mine");
    json_decref(json);
    assert_int_equal(eval_json(site, "ckpt/a.safetensors", "harness"), 0);
    json = out_json(site);
    assert_near(metric_of(json, "a", "acc,none"), 0.25, 0.0);
    json_decref(json);
    assert_int_equal(eval_json(site, "ckpt/a.safetensors", "py"), 0);
    json = out_json(site);
    assert_true(metric_of(json, "a", "pid") > 1);
    assert_near(metric_of(json, "a", "pid"), metric_of(json, "b", "pid"), 0.0);
    json_decref(json);
}

/* If a program does not report its number of samples, no number is shown, not -1. */
static void eval_shows_no_sample_count_that_was_not_reported(void **state)
{
    struct fixture_site *site = *state;

    assert_int_equal(fixture_site_run(site, "out", "eval", "ckpt/a.safetensors", "--suite", "sh",
                                      "--config", site->config, NULL),
                     0);
    assert_non_null(strstr(fixture_site_text(site, "out").text, " 4 samples, "));
    assert_int_equal(fixture_site_run(site, "out", "eval", "ckpt/a.safetensors", "--suite",
                                      "harness", "--config", site->config, NULL),
                     0);
    assert_null(strstr(fixture_site_text(site, "out").text, "samples"));
}

static void eval_takes_the_weights_that_are_named(void **state)
{
    struct fixture_site *site = *state;
    static const char regular_only[] = EVQ_TEST_DATA "/checkpoints/made/wrapped.pth";

    assert_int_equal(fixture_site_run(site, "out", "eval", "ckpt/a.safetensors", "--suite", "sh",
                                      "--variant", "ema", "--config", site->config, NULL),
                     0);
    assert_true(fixture_site_holds(site, "job.json", "\"variant\": \"ema\""));
    assert_int_equal(fixture_site_run(site, "out", "eval", regular_only, "--suite", "digits",
                                      "--variant", "ema", "--config", site->config, NULL),
                     EVQ_EXIT_NOT_FOUND);
    assert_true(fixture_site_holds(site, "out", "no EMA weights"));
    assert_int_equal(fixture_site_run(site, "out", "eval", "ckpt/a.safetensors", "--suite", "sh",
                                      "--variant", "../ema", "--config", site->config, NULL),
                     EVQ_EXIT_USAGE);
    assert_true(fixture_site_holds(site, "out", "--variant "));
}

static void eval_says_what_is_wrong_with_an_exit_code(void **state)
{
    struct fixture_site *site = *state;

    assert_int_equal(eval_json(site, "ckpt/none.safetensors", "sh"), EVQ_EXIT_BAD_INPUT);
    assert_true(fixture_site_holds(site, "out", "none.safetensors"));
    assert_int_equal(eval_json(site, "ckpt/a.safetensors", "nosuch"), EVQ_EXIT_CONFIG);
    assert_true(fixture_site_holds(site, "out", "no suite 'nosuch'"));
    // All evaluators are named; "sh" is one of them.
    assert_true(fixture_site_holds(site, "out", ": there are "));
    assert_int_equal(eval_json(site, "ckpt/a.safetensors", "digit"), EVQ_EXIT_CONFIG);
    assert_true(fixture_site_holds(site, "out", "did you mean 'digits'? There are "));
    assert_int_equal(eval_json(site, "ckpt/a.safetensors", "slow"), EVQ_EXIT_TIMEOUT);
    assert_true(fixture_site_holds(site, "out", "limit of 1 s"));
    assert_int_equal(eval_json(site, "ckpt/a.safetensors", "unprepared"), EVQ_EXIT_JOB_FAILED);
    const struct fixture_text said = fixture_site_text(site, "out");
    const char *reason = strstr(said.text, "cannot be executed");
    assert_non_null(reason);
    assert_null(strstr(reason + 1, "cannot be executed")); // The message appears once.
    assert_int_equal(eval_json(site, "ckpt/a.safetensors", "split"), EVQ_EXIT_CONFIG);
    assert_true(fixture_site_holds(site, "out", "remove shards"));
    fixture_site_write(site, "ckpt/cut.safetensors", "", "too short");
    assert_int_equal(eval_json(site, "ckpt/cut.safetensors", "digits"), EVQ_EXIT_BAD_INPUT);
    assert_int_equal(fixture_site_run(site, "out", "eval", "x", NULL), EVQ_EXIT_USAGE);
}

static void inspect_prints_what_a_checkpoint_holds(void **state)
{
    struct fixture_site *site = *state;

    assert_int_equal(fixture_site_run(site, "out", "inspect", MLP, "--json", "--digest", NULL), 0);
    json_t *json = out_json(site);
    assert_string_equal(json_string_value(json_object_get(json, "format")), "safetensors");
    assert_int_equal(json_integer_value(json_object_get(json, "parameters")), 472042);
    assert_int_equal(json_array_size(json_object_get(json, "tensors")), 8);
    assert_int_equal(strlen(json_string_value(json_object_get(json, "digest"))), 32);
    assert_int_equal(strlen(json_string_value(json_object_get(json, "fingerprint"))), 32);
    assert_true(json_is_true(json_object_get(json, "complete")));
    json_decref(json);
    assert_int_equal(fixture_site_run(site, "out", "inspect", MLP, NULL), 0);
    assert_true(fixture_site_holds(site, "out", "0.0.weight  [512, 784]"));
    assert_int_equal(fixture_site_run(site, "out", "inspect",
                                      EVQ_TEST_DATA "/checkpoints/torch_zip/broken.pt", NULL),
                     EVQ_EXIT_BAD_INPUT);
    assert_int_equal(fixture_site_run(site, "out", "inspect", "nothing", NULL), EVQ_EXIT_BAD_INPUT);
}

#define LORA EVQ_TEST_DATA "/checkpoints/made/lora"

/* Copies the adapter `plain` to ckpt/adapter, without its base. */
static void put_adapter(const struct fixture_site *site)
{
    static const char *const names[] = {"", "/adapter_config.json", "/adapter_model.safetensors"};
    char path[256];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/ckpt/adapter%s", site->dir, names[i]);
        if (names[i][0] == '\0') {
            assert_int_equal(mkdir(path, 0755), 0);
            continue;
        }
        char from[256];
        size_t bytes = 0;
        (void)snprintf(from, sizeof(from), LORA "/plain%s", names[i]);
        uint8_t *data = fixture_file_load(from, &bytes);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(data, 1, bytes, file), bytes);
        assert_int_equal(fclose(file), 0);
        free(data);
    }
}

static void inspect_takes_the_base_of_an_adapter(void **state)
{
    static const char *const bases[] = {LORA "/gpt2", LORA "/gpt2/model.safetensors"};
    struct fixture_site *site = *state;

    put_adapter(site);
    assert_int_equal(fixture_site_run(site, "out", "inspect", "ckpt/adapter", NULL),
                     EVQ_EXIT_NOT_FOUND);
    assert_true(fixture_site_holds(site, "out", "name the folder of the base with --base PATH"));
    for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
        assert_int_equal(fixture_site_run(site, "out", "inspect", "ckpt/adapter", "--base",
                                          bases[i], "--json", NULL),
                         0);
        json_t *json = out_json(site);
        assert_true(json_array_size(json_object_get(json, "tensors")) > 2);
        json_decref(json);
    }
    assert_int_equal(
        fixture_site_run(site, "out", "inspect", "ckpt/adapter", "--base", LORA "/nowhere", NULL),
        EVQ_EXIT_BAD_INPUT);
    assert_true(fixture_site_holds(site, "out", "lora/nowhere"));
}

static void help_and_version_need_nothing(void **state)
{
    struct fixture_site *site = *state;

    assert_int_equal(fixture_site_run(site, "out", "--help", NULL), 0);
    assert_true(fixture_site_holds(site, "out", "--idle-exit SECONDS"));
    assert_int_equal(fixture_site_run(site, "out", "--version", NULL), 0);
    assert_true(fixture_site_holds(site, "out", "evalq-worker 0"));
    assert_int_equal(fixture_site_run(site, "out", "--nonsense", NULL), EVQ_EXIT_USAGE);
    assert_int_equal(fixture_site_run(site, "out", "dance", NULL), EVQ_EXIT_USAGE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_site_teardown)
    const struct CMUnitTest tests[] = {
        TEST(eval_gives_the_reference_numbers_of_mnist),
        TEST(eval_runs_programs_and_tells_them_the_job),
        TEST(eval_shows_no_sample_count_that_was_not_reported),
        TEST(eval_takes_the_weights_that_are_named),
        TEST(eval_says_what_is_wrong_with_an_exit_code),
        TEST(inspect_prints_what_a_checkpoint_holds),
        TEST(inspect_takes_the_base_of_an_adapter),
        TEST(help_and_version_need_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
