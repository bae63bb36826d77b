#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/lmms/lmms_job.h"
#include "producer/gateway/lmms/lmms_paths.h"
#include "producer/gateway/lmms/lmms_result.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"

/* Requests of LMMS-Eval's clients without HTTP and without a queue. */

static struct evq_lmms_request *read_text(const char *body)
{
    struct evq_lmms_request *request = NULL;
    json_t *fault = NULL;

    const enum evq_status status = evq_lmms_request_read(body, strlen(body), &request, &fault);
    if (status != EVQ_OK) {
        char *text = json_dumps(fault, 0);
        fail_msg("%s: %s", body, text);
    }
    return request;
}

static void model_dir_is_named_as_lmms_eval_names_it(void **state)
{
    static const char *const pairs[][2] = {
        {"/x/out/run7/checkpoint-500", "run7__checkpoint-500"},
        {"/x/out/run7/checkpoint-500/", "run7__checkpoint-500"},
        {"Qwen/Qwen2-VL-7B-Instruct", "Qwen__Qwen2-VL-7B-Instruct"},
        {"gpt2", "gpt2"},
        {"/a", "__a"},
        {"a/b:c*?d", "a__b__c__d"},
        {"", ""}};
    char out[EVQ_LMMS_NAME_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        evq_lmms_model_dir(pairs[i][0], out);
        assert_string_equal(out, pairs[i][1]);
    }
    char longest[2000];
    memset(longest, '/', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    evq_lmms_model_dir(longest, out);
    memset(longest, ':', sizeof longest - 1);
    evq_lmms_model_dir(longest, out);
    assert_string_equal(out, "__");
    memset(longest, 'a', sizeof longest - 1);
    evq_lmms_model_dir(longest, out);
    assert_true(strlen(out) < sizeof out);
}

static void num_gpus_and_batch_size_are_taken_from_where_they_stand(void **state)
{
    static const struct {
        const char *body;
        int gpus;
        const char *batch;
    } cases[] = {
        {"{\"model\":\"m\",\"tasks\":[]}", 1, "null"},
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":4,\"batch_size\":\"auto\"}", 4, "\"auto\""},
        {"{\"model\":\"m\",\"tasks\":[],\"model_args\":{\"num_gpus\":8,\"batch_size\":256}}", 8,
         "256"},
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":2,\"model_args\":{\"num_gpus\":8}}", 2,
         "null"},
        {"{\"model\":\"m\",\"tasks\":[],\"model_args\":\"num_gpus=8,batch_size=2\"}", 8, "\"2\""},
        // As released clients send it: 1 at the top level says nothing.
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":1,\"batch_size\":1,"
         "\"model_args\":{\"num_gpus\":8,\"batch_size\":256}}",
         8, "256"},
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":1,\"batch_size\":\"1\","
         "\"model_args\":\"num_gpus=4,batch_size=auto\"}",
         4, "\"auto\""},
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":1,\"batch_size\":1}", 1, "1"},
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":2,\"batch_size\":16,"
         "\"model_args\":{\"num_gpus\":8,\"batch_size\":256}}",
         2, "16"},
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":-3}", 1, "null"},
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":\" 3.0 \"}", 3, "null"},
        {"{\"model\":\"m\",\"tasks\":[],\"num_gpus\":2.0}", 2, "null"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_lmms_request *request = read_text(cases[i].body);
        assert_int_equal(request->gpus, cases[i].gpus);
        char *batch = json_dumps(request->batch, JSON_ENCODE_ANY);
        assert_string_equal(batch, cases[i].batch);
        free(batch);
        assert_null(json_object_get(request->args, "num_gpus"));
        assert_null(json_object_get(request->args, "batch_size"));
        evq_lmms_request_free(request);
    }
}

static void checkpoint_is_found_among_model_args(void **state)
{
    static const struct {
        const char *body;
        const char *path;
        const char *key;
        bool merge;
        const char *variant;
    } cases[] = {
        {"{\"model\":\"m\",\"tasks\":[],\"model_args\":{\"base_model\":\"/b\",\"model\":\"/r/"
         "c-1\"}}",
         "/r/c-1", "model", false, "regular"},
        {"{\"model\":\"m\",\"tasks\":[],\"model_args\":{\"my_key\":\"/r/c-1\"}}", "/r/c-1",
         "my_key", false, "regular"},
        {"{\"model\":\"m\",\"tasks\":[],\"model_args\":{\"pretrained\":\"Qwen/x\"}}", "", "", false,
         "regular"},
        {"{\"model\":\"m\",\"tasks\":[],\"model_args\":{\"model\":\"/r/c-1\"},"
         "\"lmms_engine_kwargs\":{\"model_path\":\"/r/c-1\",\"checkpoint_type\":\"ema\"}}",
         "/r/c-1", "model", true, "ema"},
        {"{\"model\":\"m\",\"tasks\":[],\"lmms_engine_kwargs\":{\"model_path\":\"/r/c-1\"}}",
         "/r/c-1", "", true, "regular"},
        {"{\"model\":\"m\",\"tasks\":[],\"lmms_engine_kwargs\":null,\"unknown\":[{}]}", "", "",
         false, "regular"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_lmms_request *request = read_text(cases[i].body);
        assert_string_equal(request->path, cases[i].path);
        assert_string_equal(request->key, cases[i].key);
        assert_int_equal(request->merge, cases[i].merge);
        assert_string_equal(request->variant, cases[i].variant);
        evq_lmms_request_free(request);
    }
}

static void requests_beyond_what_a_job_carries_are_refused(void **state)
{
    const size_t bytes = EVQ_LMMS_REQUEST_BYTES_MAX + 100;
    struct evq_lmms_request *request = NULL;
    json_t *fault = NULL;
    char *body = malloc(bytes + 1);

    (void)state;
    assert_non_null(body);
    memset(body, ' ', bytes);
    memcpy(body, "{\"model\":\"m\",\"tasks\":[]}", 24);
    body[bytes] = '\0';
    assert_status(evq_lmms_request_read(body, bytes, &request, &fault), EVQ_E_INVALID);
    json_decref(fault);
    free(body);
    static const char gpus[] = "{\"model\":\"m\",\"tasks\":[],\"num_gpus\":65}";
    assert_status(evq_lmms_request_read(gpus, sizeof gpus - 1, &request, &fault), EVQ_E_INVALID);
    json_decref(fault);
    static const char zero[] = "{\"model\":\"\\u0000\",\"tasks\":[]}";
    assert_status(evq_lmms_request_read(zero, sizeof zero - 1, &request, &fault), EVQ_E_INVALID);
    json_decref(fault);
}

static void output_goes_beneath_a_root_and_into_no_checkpoint(void **state)
{
    static const struct evq_root roots[] = {{.name = "data", .path = "/data"}};
    static const struct evq_config config = {.roots = roots, .root_count = 1};
    static const struct evq_lmms_paths place = {.run = "r-1", .absolute = "/data/r/step_5"};
    static const char *const pairs[][2] = {
        {"/data/out", "/data/out"},
        {"/data/out//x/", "/data/out/x"},
        {"/results/mine", "/results/mine"},
        {"", "/results/r-1/step_5"},
        {"relative", "/results/r-1/step_5"},
        {"/etc", "/results/r-1/step_5"},
        {"/database", "/results/r-1/step_5"},
        {"/data/../etc", "/results/r-1/step_5"},
        {"/data/r/step_5", "/results/r-1/step_5"},
        {"/data/r/step_5/eval", "/results/r-1/step_5"},
        {"/data/r/step_50/eval", "/data/r/step_50/eval"},
        {"/data/other/checkpoint-9/eval", "/results/r-1/step_5"}};
    char out[PATH_MAX];
    struct evq_error err;

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_status_err(
            evq_lmms_paths_output(&config, "/results", &place, pairs[i][0], "", out, &err), EVQ_OK,
            &err);
        assert_string_equal(out, pairs[i][1]);
    }
}

/* The same training asked for the same is one run; anything else is another. */
static void run_is_named_for_the_training_and_what_is_asked(void **state)
{
    const struct fixture_folder *folder = *state;
    const struct evq_root roots[] = {{.name = "data", .path = folder->path}};
    const struct evq_config config = {.roots = roots, .root_count = 1};
    struct evq_lmms_paths places[4];
    static const char *const names[] = {"a b/checkpoint-100", "a b/checkpoint-200",
                                        "a b/checkpoint-100", "c/checkpoint-100"};
    static const char *const settings[] = {"{1}", "{1}", "{2}", "{1}"};
    char body[1200];
    struct evq_error err;

    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(body, sizeof body,
                       "{\"model\":\"m\",\"tasks\":[],\"model_args\":{\"model\":\"%s/%s\"}}",
                       folder->path, names[i]);
        struct evq_lmms_request *request = read_text(body);
        assert_status_err(
            evq_lmms_paths_find(&config, "/results", request, settings[i], &places[i], &err),
            EVQ_OK, &err);
        assert_true(evq_job_name_valid(places[i].run, EVQ_JOB_RUN_BYTES_MAX));
        assert_string_equal(places[i].root, "data");
        assert_string_equal(places[i].path, names[i]);
        assert_string_equal(places[i].fingerprint, ""); // Nothing is there yet.
        evq_lmms_request_free(request);
    }
    assert_int_equal(places[0].step, 100);
    assert_int_equal(places[1].step, 200);
    assert_string_equal(places[0].run, places[1].run);
    assert_string_not_equal(places[0].run, places[2].run);
    assert_string_not_equal(places[0].run, places[3].run);
}

/* Where the evaluator left no file, one is written of what the queue holds: once, and only of
 * numbers. */
static void results_file_is_written_once(void **state)
{
    const struct fixture_folder *folder = *state;
    char directory[512];
    struct evq_metric metrics[] = {
        {.name = "acc,none", .value = 0.25, .std_error = 0.5, .higher_is_better = -1},
        {.name = "loss,none",
         .value = (double)NAN,
         .std_error = (double)NAN,
         .higher_is_better = 0}};
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    (void)snprintf(directory, sizeof directory, "%s/a/b", folder->path);
    result->task = "mmmu_val";
    result->metrics = metrics;
    result->metric_count = 2;
    result->n = 7;
    result->finished_ms = 1700000000000; // 2023-11-15 06:13:20 in Singapore.
    const struct evq_lmms_output output = {.directory = directory,
                                           .job = "r/1/ema/lmms",
                                           .variant = "ema",
                                           .suffix = "__ema",
                                           .model = "m"};
    json_t *first = evq_lmms_result(&output, &result, 1);
    json_t *second = evq_lmms_result(&output, &result, 1);
    const char *path = json_string_value(json_object_get(first, "results"));
    assert_non_null(path);
    assert_non_null(strstr(path, "/a/b/20231115_061320_results.json"));
    assert_true(json_equal(first, second));
    json_t *file = json_load_file(path, 0, NULL);
    json_t *task = json_object_get(json_object_get(file, "results"), "mmmu_val__ema");
    assert_true(json_real_value(json_object_get(task, "acc,none")) == 0.25);
    assert_true(json_real_value(json_object_get(task, "acc_stderr,none")) == 0.5);
    assert_string_equal(json_string_value(json_object_get(task, "loss,none")), "N/A");
    assert_null(json_object_get(task, "loss_stderr,none"));
    json_decref(file);
    json_decref(first);
    json_decref(second);

    const struct evq_lmms_output nowhere = {
        .directory = "/proc/none", .job = "j", .variant = "ema", .suffix = "", .model = "m"};
    json_t *entry = evq_lmms_result(&nowhere, &result, 1);
    assert_true(json_is_null(json_object_get(entry, "results")));
    assert_non_null(strstr(json_string_value(json_object_get(entry, "note")), "/proc/none"));
    json_decref(entry);
    evq_result_free(result);
}

static void status_words_are_the_servers(void **state)
{
    static const struct {
        enum evq_ticket_state state;
        const char *reason;
        const char *word;
    } cases[] = {{EVQ_TICKET_QUEUED, "", "queued"},
                 {EVQ_TICKET_RUNNING, "", "running"},
                 {EVQ_TICKET_DONE, "", "completed"},
                 {EVQ_TICKET_DEAD, "exit status 1", "failed"},
                 {EVQ_TICKET_CANCELLED, "", "cancelled"},
                 {EVQ_TICKET_SKIPPED, "superseded by step 5", "cancelled"},
                 {EVQ_TICKET_SKIPPED, "checkpoint vanished", "failed"},
                 {EVQ_TICKET_GONE, "", "failed"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct evq_ticket ticket = {.state = cases[i].state, .reason = cases[i].reason};
        assert_string_equal(evq_lmms_status(&ticket), cases[i].word);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_dir_is_named_as_lmms_eval_names_it),
        cmocka_unit_test(num_gpus_and_batch_size_are_taken_from_where_they_stand),
        cmocka_unit_test(checkpoint_is_found_among_model_args),
        cmocka_unit_test(requests_beyond_what_a_job_carries_are_refused),
        cmocka_unit_test(output_goes_beneath_a_root_and_into_no_checkpoint),
        cmocka_unit_test_setup_teardown(run_is_named_for_the_training_and_what_is_asked,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(results_file_is_written_once, fixture_folder_setup,
                                        fixture_folder_teardown),
        cmocka_unit_test(status_words_are_the_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
