/*
 * What a user's program leaves behind or says: its file of results in each form, and the lines of a
 * persistent evaluator. The first byte chooses. A result that is taken is one of the suite and can
 * be written to the queue; what is refused has a sentence.
 */
// fuzz: worker engine
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/queue/codec.h"
#include "tests/fuzz/file.h"
#include "worker/evaluators/program_lines.h"
#include "worker/evaluators/result_files.h"

static const struct evq_task_config two[] = {{.name = "a"}, {.name = "b"}};
static const struct evq_pair any[] = {{"source", "*"}};
static const struct evq_task_config all[] = {{.name = "a", .options = any, .option_count = 1}};
static const struct evq_suite suites[] = {{.name = "one", .tasks = two, .task_count = 1},
                                          {.name = "two", .tasks = two, .task_count = 2},
                                          {.name = "any", .tasks = all, .task_count = 1}};

static void check_result(const struct evq_result *result)
{
    struct evq_buffer out;

    check(evq_job_name_valid(result->task, EVQ_JOB_NAME_BYTES_MAX));
    check(result->metric_count > 0 && result->n >= -1);
    struct evq_result whole = *result;
    whole.job = "r/1/regular/s";
    evq_buffer_init(&out, 0);
    const enum evq_status status = evq_codec_result_encode(&whole, &out, NULL);
    check(status == EVQ_OK || status == EVQ_E_LIMIT);
    evq_buffer_free(&out);
}

static void check_refusal(enum evq_status status, const struct evq_error *err)
{
    check(status != EVQ_E_BUG && err->message[0] != '\0');
    for (const char *c = err->message; *c != '\0'; c++) {
        check((unsigned char)*c >= 0x20 && *c != 0x7f);
    }
}

static void try_file(const struct evq_suite *suite, const char *form, const char *path)
{
    struct evq_results results = {NULL, 0};
    struct evq_error err = {EVQ_OK, ""};
    const enum evq_status status =
        evq_result_files_read(suite, NULL, 0, form, path, &results, &err);

    if (status != EVQ_OK) {
        check_refusal(status, &err);
    }
    for (size_t i = 0; i < results.count; i++) {
        check_result(results.items[i]);
    }
    evq_results_free(&results);
}

static enum evq_status on_progress(void *context, int64_t done, int64_t total, const char *status)
{
    (void)context;
    check(done >= -1 && total >= -1 && status != NULL);
    return EVQ_OK;
}

static enum evq_status on_task(void *context, const struct evq_result *result,
                               struct evq_error *err)
{
    (void)context, (void)err;
    check_result(result);
    return EVQ_OK;
}

static void try_lines(const struct evq_suite *suite, const char *text, size_t bytes)
{
    bool given[2] = {false, false};
    struct evq_program_job job = {
        .evaluator = "e", .device = "cpu", .turn = 2, .tasks_given = given};
    const struct evq_eval_request request = {.suite = suite};
    const struct evq_eval_report report = {.progress = on_progress, .task = on_task};

    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        enum evq_program_line said = EVQ_PROGRAM_LINE_NONE;
        struct evq_error err = {EVQ_OK, ""};
        const enum evq_status status =
            evq_program_lines_take(&job, text + at, length, &request, &report, &said, &err);
        if (status != EVQ_OK) {
            check_refusal(status, &err);
        }
        at += length + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char folder[96];
    char path[128];

    if (bytes == 0) {
        return 0;
    }
    const struct evq_suite *suite = &suites[data[0] / 4 % 3];
    if (data[0] % 4 == 3) {
        try_lines(suite, (const char *)data + 1, bytes - 1);
        return 0;
    }
    (void)fuzz_file(data + 1, bytes - 1);
    if (data[0] % 4 == 0) {
        try_file(suite, "", fuzz_path);
        return 0;
    }
    (void)snprintf(folder, sizeof(folder), "%s.d", fuzz_path);
    (void)snprintf(path, sizeof(path), "%s/results_1.json", folder);
    check(mkdir(folder, 0700) == 0 && rename(fuzz_path, path) == 0);
    try_file(suite, data[0] % 4 == 1 ? "lm-eval" : "lmms-eval", folder);
    check(unlink(path) == 0 && rmdir(folder) == 0);
    return 0;
}
