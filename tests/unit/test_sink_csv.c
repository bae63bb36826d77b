/* The CSV sink: one table a run, each number once whatever is given again and whenever it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "logger/sinks/sink.h"
#include "tests/fixture/memory.h"
#include "tests/fixture/redis.h"

struct scene {
    char directory[64];
    char path[96];
    struct evq_sink_config config;
    struct evq_sink_context context;
    void *sink;
};

static struct scene scene;

static int setup(void **state)
{
    (void)state;
    memset(&scene, 0, sizeof scene);
    fixture_dir_make(scene.directory);
    (void)snprintf(scene.path, sizeof scene.path, "%s/digits/results.csv", scene.directory);
    scene.config = (struct evq_sink_config){"csv", "csv", NULL, 0, false};
    scene.context = (struct evq_sink_context){.sink = &scene.config, .directory = scene.directory};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    evq_sink_csv.close(scene.sink);
    fixture_dir_remove(scene.directory);
    return 0;
}

static void open_again(void)
{
    struct evq_error err;

    evq_sink_csv.close(scene.sink);
    assert_status_err(evq_sink_csv.open(&scene.context, &scene.sink, &err), EVQ_OK, &err);
}

static enum evq_status give(int64_t step, const char *task, double value, struct evq_error *err)
{
    const struct evq_metric metric = {.name = "acc,none", .value = value};
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    result->job = "digits/1/regular/quick";
    result->run = "digits";
    result->task = task;
    result->step = step;
    result->metrics = &metric;
    result->metric_count = 1;
    enum evq_status status = evq_sink_csv.write(scene.sink, result, err);
    evq_result_free(result);
    return status;
}

static void keep(int64_t step, const char *task, double value)
{
    struct evq_error err;

    assert_status_err(give(step, task, value, &err), EVQ_OK, &err);
    assert_status_err(evq_sink_csv.flush(scene.sink, &err), EVQ_OK, &err);
}

static void assert_file(const char *want)
{
    char text[4096];
    FILE *file = fopen(scene.path, "r");

    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    assert_string_equal(text, want);
}

static void sink_csv_holds_each_number_once_when_it_is_given_again_and_reopened(void **state)
{
    struct stat before;
    struct stat after;

    (void)state;
    open_again();
    keep(200, "a", 0.5);
    keep(100, "a", 0.25);
    open_again(); // As after a kill: nothing is left to be done at the end.
    keep(100, "b", 1.0 / 3);
    keep(200, "a", 0.5);
    assert_file("step,\"eval/a/acc,none\",\"eval/b/"
                "acc,none\"\r\n100,0.25,0.33333333333333331\r\n200,0.5,\r\n");
    assert_int_equal(stat(scene.path, &before), 0);
    keep(200, "a", 0.5); // Nothing new: the file is not touched.
    assert_int_equal(stat(scene.path, &after), 0);
    assert_true(before.st_ino == after.st_ino);
}

static void sink_csv_leaves_alone_a_file_that_is_not_its_own(void **state)
{
    char path[96];
    struct evq_error err;

    (void)state;
    (void)snprintf(path, sizeof path, "%s/digits", scene.directory);
    assert_int_equal(mkdir(path, 0755), 0);
    FILE *file = fopen(scene.path, "w");
    assert_true(file != NULL && fputs("name;value\n", file) >= 0 && fclose(file) == 0);
    open_again();
    assert_status(give(1, "a", 1, &err),
                  EVQ_E_IO); // Down, not refused: it goes on once it is away.
    assert_holds(err.message, "move it away");
    assert_file("name;value\n");
    assert_int_equal(unlink(scene.path), 0);
    keep(1, "a", 1);
    assert_file("step,\"eval/a/acc,none\"\r\n1,1\r\n");
}

static void sink_csv_writes_again_what_a_failure_left(void **state)
{
    char path[96];
    struct evq_error err;

    (void)state;
    open_again();
    keep(1, "a", 1);
    (void)snprintf(path, sizeof path, "%s/digits/.results.csv.new", scene.directory);
    assert_int_equal(mkdir(path, 0755), 0); // In the way of the new file.
    assert_status_err(give(2, "a", 2, &err), EVQ_OK, &err);
    assert_status(evq_sink_csv.flush(scene.sink, &err), EVQ_E_IO);
    assert_file("step,\"eval/a/acc,none\"\r\n1,1\r\n");
    assert_int_equal(rmdir(path), 0);
    keep(2, "a", 2);
    assert_file("step,\"eval/a/acc,none\"\r\n1,1\r\n2,2\r\n");
}

static void sink_csv_refuses_a_second_one_of_the_same_directory(void **state)
{
    const struct evq_sink_config other = {"other", "csv", NULL, 0, false};
    const struct evq_sink_context context = {.sink = &other, .directory = scene.directory};
    struct evq_error err;
    void *sink = NULL;

    (void)state;
    open_again();
    assert_status(evq_sink_csv.open(&context, &sink, &err), EVQ_E_CONFLICT);
    assert_null(sink);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* What a run's table itself needs is the largest piece here. */
static void sink_csv_goes_on_when_a_run_could_not_be_opened_for_want_of_memory(void **state)
{
    struct evq_error err;

    (void)state;
    open_again();
    fixture_memory_refuse(4096, 64 * 1024);
    assert_int_equal(give(1, "t", 0.5, &err), EVQ_E_NOMEM);
    assert_true(fixture_memory_give() > 0);
    assert_status_err(give(1, "t", 0.5, &err), EVQ_OK, &err);
    assert_status_err(evq_sink_csv.flush(scene.sink, &err), EVQ_OK, &err);
    assert_int_equal(access(scene.path, R_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sink_csv_holds_each_number_once_when_it_is_given_again_and_reopened),
        TEST(sink_csv_leaves_alone_a_file_that_is_not_its_own),
        TEST(sink_csv_writes_again_what_a_failure_left),
        TEST(sink_csv_refuses_a_second_one_of_the_same_directory),
        TEST(sink_csv_goes_on_when_a_run_could_not_be_opened_for_want_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
