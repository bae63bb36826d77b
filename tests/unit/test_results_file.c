#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/evaluators/result_files.h"

static const struct evq_task_config one_task[] = {{.name = "t"}};
static const struct evq_pair renamed[] = {{"source", "mmlu_abstract_algebra"}};
static const struct evq_task_config two_tasks[] = {
    {.name = "a"}, {.name = "b", .options = renamed, .option_count = 1}};
static const struct evq_suite one = {.name = "one", .tasks = one_task, .task_count = 1};
static const struct evq_suite two = {.name = "two", .tasks = two_tasks, .task_count = 2};

static enum evq_status read_text(const struct fixture_folder *folder, const struct evq_suite *suite,
                                 const char *text, struct evq_results *results,
                                 struct evq_error *err)
{
    char path[256];

    fixture_folder_write(folder, "result.json", text, strlen(text));
    (void)snprintf(path, sizeof(path), "%s/result.json", folder->path);
    return evq_result_files_read(suite, NULL, 0, "", path, results, err);
}

static const struct evq_metric *metric(const struct evq_result *result, const char *name)
{
    for (size_t i = 0; i < result->metric_count; i++) {
        if (strcmp(result->metrics[i].name, name) == 0) {
            return &result->metrics[i];
        }
    }
    fail_msg("no metric '%s'", name);
    return NULL;
}

static void results_reads_flat_metrics_of_the_only_task(void **state)
{
    struct evq_results results = {0};
    struct evq_error err;

    assert_status_err(read_text(*state, &one,
                                "{\"acc\": 0.75, \"acc_stderr\": 0.02, \"n\": 1000, \"loss\": 1}",
                                &results, &err),
                      EVQ_OK, &err);
    assert_int_equal(results.count, 1);
    assert_string_equal(results.items[0]->task, "t");
    assert_int_equal(results.items[0]->n, 1000);
    assert_int_equal(results.items[0]->metric_count, 2);
    assert_near(metric(results.items[0], "acc")->value, 0.75, 0.0);
    assert_near(metric(results.items[0], "acc")->std_error, 0.02, 0.0);
    assert_true(isnan(metric(results.items[0], "loss")->std_error));
    evq_results_free(&results);
}

static void results_takes_no_standard_error_for_a_metric(void **state)
{
    struct evq_results results = {0};
    struct evq_error err;

    assert_status_err(read_text(*state, &one,
                                "{\"acc,none\": 0.5, \"acc_stderr_clustered,none\": 0.3, "
                                "\"acc_stderr_clt,none\": 0.1, \"acc_stderr,none\": \"N/A\", "
                                "\"acc,strict\": 0.4, \"acc_stderr_bootstrap,strict\": 0.2, "
                                "\"f1\": 0.9, \"f1_stderr_\": 0.05, \"gone_stderr_x\": 7, "
                                "\"_stderr\": 3, \"my_stderror\": 4, \"a,b_stderr\": 5}",
                                &results, &err),
                      EVQ_OK, &err);
    const struct evq_result *result = results.items[0];
    assert_int_equal(result->metric_count, 6);
    assert_near(metric(result, "acc,none")->std_error, 0.1, 0.0); // The shortest that is a number.
    assert_near(metric(result, "acc,strict")->std_error, 0.2, 0.0);
    assert_near(metric(result, "f1")->std_error, 0.05, 0.0);
    assert_near(metric(result, "_stderr")->value, 3, 0.0);
    assert_near(metric(result, "my_stderror")->value, 4, 0.0);
    assert_near(metric(result, "a,b_stderr")->value, 5, 0.0); // Behind the comma is a filter.
    evq_results_free(&results);
}

static void results_reads_python_words_for_what_is_no_number(void **state)
{
    struct evq_results results = {0};
    struct evq_error err;

    assert_status_err(read_text(*state, &one,
                                "{\"a\": NaN, \"b\": -Infinity, \"c\": Infinity, \"NaN of it\": 2, "
                                "\"d\": \"NaN\", \"e\\\"NaN\": -1}",
                                &results, &err),
                      EVQ_OK, &err);
    assert_true(isnan(metric(results.items[0], "a")->value));
    assert_true(metric(results.items[0], "b")->value < 0 &&
                isinf(metric(results.items[0], "b")->value));
    assert_true(isinf(metric(results.items[0], "c")->value));
    assert_near(metric(results.items[0], "NaN of it")->value, 2, 0.0);
    assert_true(isnan(metric(results.items[0], "d")->value));
    assert_near(metric(results.items[0], "e\"NaN")->value, -1, 0.0);
    evq_results_free(&results);
}

/* Python's integers have no end, and a harness writes those of its configuration down, too. */
static void results_reads_integers_that_no_64_bits_hold(void **state)
{
    static const char harness[] =
        "{\"results\": {\"t\": {\"acc,none\": 0.5}}, \"n-samples\": {\"t\": "
        "{\"effective\": 20}}, \"config\": {\"max_length\": 1000000000000000019884624838656}}";
    const struct fixture_folder *folder = *state;
    struct evq_results results = {0};
    struct evq_error err;

    assert_status_err(read_text(folder, &one,
                                "{\"flops\": 100000000000000000000, \"least\": "
                                "-9223372036854775809, \"n\": 1000}",
                                &results, &err),
                      EVQ_OK, &err);
    assert_near(metric(results.items[0], "flops")->value, 1e20, 0.0);
    assert_near(metric(results.items[0], "least")->value, -9223372036854775808.0, 0.0);
    assert_int_equal(results.items[0]->n, 1000);
    evq_results_free(&results);
    fixture_folder_write(folder, "results_1.json", harness, strlen(harness));
    assert_status_err(evq_result_files_read(&one, NULL, 0, "lm-eval", folder->path, &results, &err),
                      EVQ_OK, &err);
    assert_int_equal(results.items[0]->n, 20);
    evq_results_free(&results);
}

static void results_reads_tasks_by_name_and_leaves_out_what_was_done(void **state)
{
    const struct fixture_folder *folder = *state;
    static const char *const done[] = {"a"};
    struct evq_results results = {0};
    struct evq_error err;
    char path[256];

    assert_status_err(
        read_text(folder, &two,
                  "{\"mmlu_abstract_algebra\": {\"acc\": 0.5}, \"a\": {\"acc\": 0.25}}", &results,
                  &err),
        EVQ_OK, &err);
    assert_int_equal(results.count, 2);
    assert_string_equal(results.items[0]->task, "a");
    assert_string_equal(results.items[1]->task, "b");
    assert_near(metric(results.items[1], "acc")->value, 0.5, 0.0);
    evq_results_free(&results);
    fixture_folder_write(folder, "rest.json", "{\"mmlu_abstract_algebra\": {\"acc\": 1}}", 37);
    (void)snprintf(path, sizeof(path), "%s/rest.json", folder->path);
    assert_status_err(evq_result_files_read(&two, done, 1, "", path, &results, &err), EVQ_OK, &err);
    assert_int_equal(results.count, 1);
    assert_string_equal(results.items[0]->task, "b");
    evq_results_free(&results);
}

/* A suite that does not know beforehand what it will be asked for: each task of the file is one. */
static void results_takes_every_task_of_a_suite_that_names_none(void **state)
{
    static const struct evq_pair any[] = {{"source", "*"}};
    static const struct evq_task_config task = {.name = "all", .options = any, .option_count = 1};
    static const struct evq_suite open = {.name = "open", .tasks = &task, .task_count = 1};
    const char *const done[] = {"mmmu_val"};
    struct evq_results results = {0};
    struct evq_error err;
    char path[256];

    assert_status_err(read_text(*state, &open,
                                "{\"mmmu_val\": {\"acc\": 0.5}, \"a group\": {\"acc\": 1}, "
                                "\"empty\": {}}",
                                &results, &err),
                      EVQ_OK, &err);
    assert_int_equal(results.count, 2);
    assert_string_equal(results.items[0]->task, "mmmu_val");
    assert_int_equal(strncmp(results.items[1]->task, "a-group-", 8), 0); // Mapped, with a hash.
    assert_string_equal(evq_suite_task(&open, "mmmu_val")->name, "all");
    assert_null(evq_suite_task(&two, "mmmu_val"));
    evq_results_free(&results);
    (void)snprintf(path, sizeof(path), "%s/result.json",
                   ((const struct fixture_folder *)*state)->path);
    assert_status_err(evq_result_files_read(&open, done, 1, "", path, &results, &err), EVQ_OK,
                      &err);
    assert_int_equal(results.count, 1);
    evq_results_free(&results);
    assert_status(read_text(*state, &open, "{\"empty\": {}}", &results, &err), EVQ_E_INVALID);
}

static void results_refuses_each_fault_with_its_sentence(void **state)
{
    static const struct {
        const struct evq_suite *suite;
        const char *text;
        enum evq_status status;
        const char *words;
    } rows[] = {
        {&one, "{\"acc\": 0.5", EVQ_E_CORRUPT, "line 1"},
        {&one, "[0.5]", EVQ_E_CORRUPT, "expected a JSON object"},
        {&one, "{\"acc\": 1} trailing", EVQ_E_CORRUPT, "line 1"},
        {&one, "{\"acc\": 1, \"acc\": 2}", EVQ_E_CORRUPT, "duplicate"},
        {&one, "{}", EVQ_E_INVALID, "no metric of task 't'"},
        {&one, "{\"acc\": \"high\"}", EVQ_E_INVALID, "'acc' of task 't' is not a number"},
        {&one, "{\"acc\": true}", EVQ_E_INVALID, "'acc' of task 't' is not a number"},
        {&one, "{\"acc\": null}", EVQ_E_INVALID, "'acc' of task 't' is not a number"},
        {&one, "{\"acc\": 1, \"n\": -3}", EVQ_E_INVALID, "count of samples"},
        {&one, "{\"n\": 3}", EVQ_E_INVALID, "no metric"},
        {&one, "{\"a\\u0007b\": 1}", EVQ_E_INVALID, "control characters"},
        {&one, "{\"a\\u0086b\": 1}", EVQ_E_INVALID, "control characters"}, // A terminal's, too.
        {&one, "{\"\": 1}", EVQ_E_INVALID, "control characters"},
        {&one, "{\"tt\": {\"acc\": 1}}", EVQ_E_INVALID, "'tt' is not a task of suite 'one'"},
        {&two, "{\"acc\": 1}", EVQ_E_INVALID, "has 2 tasks"},
        {&two, "{\"a\": {\"acc\": 1}}", EVQ_E_INVALID,
         "no metrics of task 'mmlu_abstract_algebra'"},
        {&two, "{\"a\": {\"acc\": {}}, \"mmlu_abstract_algebra\": {\"acc\": 1}}", EVQ_E_INVALID,
         "not a number"},
        {&two, "{\"a\": {\"acc\": 1}, \"mmlu_abstract_algebra\": 3}", EVQ_E_INVALID,
         "no metrics of task"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct evq_results results = {0};
        struct evq_error err;
        assert_status_err(read_text(*state, rows[i].suite, rows[i].text, &results, &err),
                          rows[i].status, &err);
        assert_holds(err.message, rows[i].words);
        assert_null(results.items);
    }
}

static void results_refuses_what_is_no_plain_small_file(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_results results = {0};
    struct evq_error err;
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/none.json", folder->path);
    assert_status(evq_result_files_read(&one, NULL, 0, "", path, &results, &err), EVQ_E_NOT_FOUND);
    assert_status(read_text(folder, &one, "", &results, &err), EVQ_E_LIMIT);
    assert_int_equal(symlinkat("result.json", folder->fd, "link.json"), 0);
    (void)snprintf(path, sizeof(path), "%s/link.json", folder->path);
    assert_status(evq_result_files_read(&one, NULL, 0, "", path, &results, &err), EVQ_E_IO);
    assert_int_equal(mkfifoat(folder->fd, "fifo.json", 0600), 0); // Must not be waited for.
    (void)snprintf(path, sizeof(path), "%s/fifo.json", folder->path);
    assert_status(evq_result_files_read(&one, NULL, 0, "", path, &results, &err), EVQ_E_INVALID);
    assert_status(evq_result_files_read(&one, NULL, 0, "", folder->path, &results, &err),
                  EVQ_E_INVALID);
}

static void results_limits_the_number_of_metrics(void **state)
{
    struct evq_results results = {0};
    struct evq_error err;
    struct evq_buffer text;

    evq_buffer_init(&text, 0);
    for (int i = 0; i <= EVQ_RESULT_METRICS_MAX; i++) {
        evq_buffer_printf(&text, "%s\"m%d\": %d", i > 0 ? ", " : "{", i, i);
    }
    evq_buffer_text(&text, "}");
    assert_status(read_text(*state, &one, evq_buffer_string(&text), &results, &err), EVQ_E_LIMIT);
    evq_buffer_free(&text);
}

static void file_date(const struct fixture_folder *folder, const char *name, int64_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};

    assert_int_equal(utimensat(folder->fd, name, times, 0), 0);
}

static void results_reads_the_newest_file_of_a_harness(void **state)
{
    static const char older[] = "{\"results\": {\"a\": {\"acc,none\": 0.1}, "
                                "\"mmlu_abstract_algebra\": {\"acc,none\": 0.1}}}";
    static const char newer[] = "{\"results\": {\"a\": {\"alias\": \"a\", \"acc,none\": 0.5, "
                                "\"acc_stderr,none\": 0.01, \"acc_norm,none\": 0.6, "
                                "\"acc_norm_stderr,none\": \"N/A\", \" \": \" \"}, "
                                "\"mmlu_abstract_algebra\": {\"exact_match,strict-match\": 0.25}, "
                                "\"mmlu_part\": {\"acc,none\": 0.9}}, "
                                "\"n-samples\": {\"a\": {\"original\": 1000, \"effective\": 20}}, "
                                "\"config\": {\"seed\": NaN}}";
    const struct fixture_folder *folder = *state;
    struct evq_results results = {0};
    struct evq_error err;

    assert_status(evq_result_files_read(&two, NULL, 0, "lm-eval", folder->path, &results, &err),
                  EVQ_E_NOT_FOUND);
    fixture_folder_mkdir(folder, "model");
    fixture_folder_write(folder, "model/results_2026-11-21T01.json", older, strlen(older));
    fixture_folder_write(folder, "model/results_2026-11-21T02.json", newer, strlen(newer));
    fixture_folder_write(folder, "model/samples_a.json", "not json", 8);
    file_date(folder, "model/results_2026-11-21T01.json", 1000);
    file_date(folder, "model/results_2026-11-21T02.json", 2000);
    assert_status_err(evq_result_files_read(&two, NULL, 0, "lm-eval", folder->path, &results, &err),
                      EVQ_OK, &err);
    assert_int_equal(results.count, 2);
    assert_near(metric(results.items[0], "acc,none")->value, 0.5, 0.0);
    assert_near(metric(results.items[0], "acc,none")->std_error, 0.01, 0.0);
    assert_int_equal(results.items[0]->n, 20);
    assert_int_equal(results.items[0]->metric_count, 2);
    assert_near(metric(results.items[1], "exact_match,strict-match")->value, 0.25, 0.0);
    evq_results_free(&results);
    // lmms-eval puts the time first.
    fixture_folder_write(folder, "model/20261121_0300_results.json", older, strlen(older));
    file_date(folder, "model/20261121_0300_results.json", 3000);
    assert_status_err(
        evq_result_files_read(&two, NULL, 0, "lmms-eval", folder->path, &results, &err), EVQ_OK,
        &err);
    assert_near(metric(results.items[0], "acc,none")->value, 0.1, 0.0);
    evq_results_free(&results);
}

int main(void)
{
#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, fixture_folder_setup, fixture_folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(results_reads_flat_metrics_of_the_only_task),
        TEST(results_takes_no_standard_error_for_a_metric),
        TEST(results_reads_python_words_for_what_is_no_number),
        TEST(results_reads_integers_that_no_64_bits_hold),
        TEST(results_reads_tasks_by_name_and_leaves_out_what_was_done),
        TEST(results_takes_every_task_of_a_suite_that_names_none),
        TEST(results_refuses_each_fault_with_its_sentence),
        TEST(results_refuses_what_is_no_plain_small_file),
        TEST(results_limits_the_number_of_metrics),
        TEST(results_reads_the_newest_file_of_a_harness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
