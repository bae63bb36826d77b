/*
 * What a user's program may leave behind or say that is no result: files in tests/bad/results.txt
 * (form, part of the sentence, text), lines of a persistent evaluator in tests/bad/lines.txt (part
 * of the sentence, lines).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fixture/bad.h"
#include "tests/fixture/folder.h"
#include "worker/evaluators/program_lines.h"
#include "worker/evaluators/result_files.h"

static const struct evq_task_config tasks[] = {{.name = "a"}, {.name = "b"}};
static const struct evq_pair every[] = {{"source", "*"}};
static const struct evq_task_config any_task[] = {
    {.name = "a", .options = every, .option_count = 1}};
static const struct {
    const char *word; // In the row.
    const char *form;
    struct evq_suite suite;
} forms[] = {
    {"one", "", {.name = "one", .tasks = tasks, .task_count = 1}},
    {"two", "", {.name = "two", .tasks = tasks, .task_count = 2}},
    {"any", "", {.name = "any", .tasks = any_task, .task_count = 1}},
    {"lm", "lm-eval", {.name = "two", .tasks = tasks, .task_count = 2}},
    {"lmms", "lmms-eval", {.name = "two", .tasks = tasks, .task_count = 2}},
};

static bool file_refused(void *context, const struct fixture_bad *row)
{
    const struct fixture_folder *folder = context;
    struct evq_results results = {0};
    struct evq_error err = {EVQ_OK, ""};
    char path[256];
    size_t at = 0;

    while (at < sizeof(forms) / sizeof(forms[0]) && strcmp(forms[at].word, row->fields[0]) != 0) {
        at++;
    }
    assert_true(at < sizeof(forms) / sizeof(forms[0]));
    fixture_folder_write(folder, "results_1.json", row->fields[2], row->bytes[2]);
    (void)snprintf(path, sizeof(path), "%s%s", folder->path,
                   forms[at].form[0] == '\0' ? "/results_1.json" : "");
    const enum evq_status status =
        evq_result_files_read(&forms[at].suite, NULL, 0, forms[at].form, path, &results, &err);
    const size_t count = results.count;
    evq_results_free(&results);
    return (status != EVQ_OK && count == 0 &&
            fixture_bad_holds(err.message, folder->path, "$DIR", row->fields[1])) ||
           fixture_bad_wrong(row, status == EVQ_OK ? "it was taken" : err.message);
}

static void files_that_are_no_results_are_refused(void **state)
{
    fixture_bad_each("results.txt", 3, "files of results", file_refused, *state);
}

static enum evq_status on_progress(void *context, int64_t done, int64_t total, const char *status)
{
    (void)context, (void)done, (void)total, (void)status;
    return EVQ_OK;
}

static enum evq_status on_task(void *context, const struct evq_result *result,
                               struct evq_error *err)
{
    (void)context, (void)result, (void)err;
    return EVQ_OK;
}

/* All lines but the last are taken. */
static bool line_refused(void *context, const struct fixture_bad *row)
{
    bool given[2] = {false, false};
    struct evq_program_job job = {
        .evaluator = "mine", .device = "cpu", .turn = 2, .tasks_given = given};
    const struct evq_eval_request request = {.suite = &forms[1].suite};
    const struct evq_eval_report report = {.progress = on_progress, .task = on_task};
    const char *text = row->fields[1];
    const char *end = text + row->bytes[1];
    struct evq_error err = {EVQ_OK, ""};

    (void)context;
    for (;;) {
        const char *line = memchr(text, '\n', (size_t)(end - text));
        const size_t bytes = (size_t)((line != NULL ? line : end) - text);
        enum evq_program_line said = EVQ_PROGRAM_LINE_NONE;
        const enum evq_status status =
            evq_program_lines_take(&job, text, bytes, &request, &report, &said, &err);
        if ((status == EVQ_OK) != (line != NULL)) {
            return fixture_bad_wrong(row, status == EVQ_OK ? "it was taken" : err.message);
        }
        if (line == NULL) {
            return strstr(err.message, row->fields[0]) != NULL ||
                   fixture_bad_wrong(row, err.message);
        }
        text = line + 1;
    }
}

static void lines_that_break_the_protocol_are_refused(void **state)
{
    fixture_bad_each("lines.txt", 2, "lines of evaluators", line_refused, *state);
}

int main(void)
{
    const struct CMUnitTest tests_of[] = {
        cmocka_unit_test_setup_teardown(files_that_are_no_results_are_refused, fixture_folder_setup,
                                        fixture_folder_teardown),
        cmocka_unit_test(lines_that_break_the_protocol_are_refused),
    };
    return cmocka_run_group_tests(tests_of, NULL, NULL);
}
