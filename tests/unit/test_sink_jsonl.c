/* The JSONL sink: each result once, whatever is delivered again and wherever a line was torn. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "logger/sinks/sink.h"
#include "tests/fixture/check.h"
#include "tests/fixture/limit.h"
#include "tests/fixture/memory.h"
#include "tests/fixture/redis.h"

static const struct evq_sink_config sink_config = {"jsonl", "jsonl", NULL, 0, false};

static void *opened(const char *directory, struct evq_sink_context *context)
{
    void *state = NULL;
    struct evq_error err;

    *context = (struct evq_sink_context){.sink = &sink_config, .directory = directory};
    assert_status_err(evq_sink_jsonl.open(context, &state, &err), EVQ_OK, &err);
    return state;
}

static enum evq_status give_as(void *state, int step, double value, const char *reason,
                               struct evq_error *err)
{
    char job[64];
    struct evq_metric metric = {.name = "accuracy", .value = value, .higher_is_better = 1};
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    (void)snprintf(job, sizeof(job), "digits/%d/regular/quick", step);
    result->job = job;
    result->run = "digits";
    result->step = step;
    result->variant = "regular";
    result->suite = "quick";
    result->task = "t";
    result->state = EVQ_JOB_DONE;
    result->reason = reason;
    result->metrics = &metric;
    result->metric_count = 1;
    const enum evq_status status = evq_sink_jsonl.write(state, result, err);
    evq_result_free(result);
    return status;
}

static enum evq_status give_reason(void *state, int step, const char *reason, struct evq_error *err)
{
    return give_as(state, step, 0.1 + step, reason, err);
}

static enum evq_status give_try(void *state, int step, struct evq_error *err)
{
    return give_reason(state, step, "", err);
}

static void give(void *state, int step)
{
    struct evq_error err;

    assert_status_err(give_try(state, step, &err), EVQ_OK, &err);
}

static void flush(void *state)
{
    struct evq_error err;

    assert_status_err(evq_sink_jsonl.flush(state, &err), EVQ_OK, &err);
}

/* Every line parses; steps 0 to count - 1 are there once, in order. */
static void assert_lines(const char *directory, int count)
{
    char path[128];
    char line[4096];
    int seen = 0;

    (void)snprintf(path, sizeof(path), "%s/digits/results.jsonl", directory);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        assert_int_equal(json_integer_value(json_object_get(object, "step")), seen);
        json_decref(object);
        seen++;
    }
    (void)fclose(file);
    assert_int_equal(seen, count);
}

static void sink_jsonl_writes_each_result_once_when_delivered_again(void **state)
{
    (void)state;
    char directory[64];
    struct evq_sink_context context;

    fixture_dir_make(directory);
    void *sink = opened(directory, &context);
    give(sink, 0);
    give(sink, 0); // In the same batch,
    flush(sink);
    give(sink, 0); // after a flush,
    give(sink, 1);
    flush(sink);
    evq_sink_jsonl.close(sink);
    sink = opened(directory, &context);
    give(sink, 1); // and after a restart.
    give(sink, 2);
    flush(sink);
    evq_sink_jsonl.close(sink);
    assert_lines(directory, 3);
    fixture_dir_remove(directory);
}

/* After `evalq forget` the ids of a run come again; what was evaluated anew is not what is there.
 */
static void sink_jsonl_records_other_numbers_of_the_same_id(void **state)
{
    static const double values[] = {0.5, 0.25, NAN};
    (void)state;
    char directory[64];
    char path[128];
    char line[4096];
    struct evq_sink_context context;
    struct evq_error err;
    size_t count = 0;

    fixture_dir_make(directory);
    for (int life = 0; life < 2; life++) {
        void *sink = opened(directory, &context);
        for (size_t i = 0; i < 6; i++) { // Each of them twice.
            assert_status_err(give_as(sink, 0, values[i % 3], "", &err), EVQ_OK, &err);
        }
        flush(sink);
        evq_sink_jsonl.close(sink);
    }
    (void)snprintf(path, sizeof(path), "%s/digits/results.jsonl", directory);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (; fgets(line, sizeof(line), file) != NULL; count++) {
        json_t *object = json_loads(line, 0, NULL);
        const json_t *value = json_object_get(json_object_get(object, "metrics"), "accuracy");
        assert_true(count < 3);
        assert_true(isnan(values[count]) ? json_is_string(value)
                                         : json_number_value(value) == values[count]);
        json_decref(object);
    }
    (void)fclose(file);
    assert_int_equal(count, 3);
    fixture_dir_remove(directory);
}

static void sink_jsonl_cuts_a_torn_line_at_every_byte(void **state)
{
    (void)state;
    char directory[64];
    char path[128];
    struct evq_sink_context context;
    struct stat info;
    size_t cuts = 0;

    fixture_dir_make(directory);
    (void)snprintf(path, sizeof(path), "%s/digits/results.jsonl", directory);
    void *sink = opened(directory, &context);
    give(sink, 0);
    flush(sink);
    assert_int_equal(stat(path, &info), 0);
    off_t first = info.st_size;
    give(sink, 1);
    flush(sink);
    evq_sink_jsonl.close(sink);
    assert_int_equal(stat(path, &info), 0);
    for (off_t bytes = info.st_size - 1; bytes >= first; bytes--) {
        assert_int_equal(truncate(path, bytes), 0);
        sink = opened(directory, &context);
        give(sink, 0); // There already: nothing is written.
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_size, first); // Whatever shorter line is to follow.
        give(sink, 1);                         // Not acknowledged, so it comes again.
        flush(sink);
        evq_sink_jsonl.close(sink);
        assert_lines(directory, 2);
        cuts++;
    }
    assert_true(cuts > 50);
    fixture_dir_remove(directory);
}

static void sink_jsonl_records_what_a_full_disk_refused_when_it_comes_again(void **state)
{
    (void)state;
    char directory[64];
    struct evq_sink_context context;
    struct evq_error err;

    fixture_dir_make(directory);
    void *sink = opened(directory, &context);
    give(sink, 0);
    flush(sink);
    fixture_limit_files(1000); // Of two lines, the second is torn.
    give(sink, 1);
    give(sink, 2);
    assert_status(evq_sink_jsonl.flush(sink, &err), EVQ_E_IO);
    assert_lines(directory, 1);
    give(sink, 1); // Neither was acknowledged.
    give(sink, 2);
    assert_status(evq_sink_jsonl.flush(sink, &err), EVQ_E_IO);
    fixture_limit_files(UINT64_MAX);
    give(sink, 1);
    give(sink, 2);
    give(sink, 3);
    flush(sink);
    assert_lines(directory, 4);
    evq_sink_jsonl.close(sink);
    sink = opened(directory, &context);
    give(sink, 2);
    flush(sink);
    evq_sink_jsonl.close(sink);
    assert_lines(directory, 4);
    fixture_dir_remove(directory);
}

static void sink_jsonl_refuses_a_directory_that_another_holds(void **state)
{
    (void)state;
    char directory[64];
    struct evq_sink_context context;
    struct evq_error err;
    void *second = NULL;

    fixture_dir_make(directory);
    void *sink = opened(directory, &context);
    assert_status(evq_sink_jsonl.open(&context, &second, &err), EVQ_E_CONFLICT);
    assert_holds(err.message, "locked by another logger");
    evq_sink_jsonl.close(sink);
    fixture_dir_remove(directory);
}

/* Somebody removed the directory: what nobody would ever find is not taken for recorded, and what
 * comes next is in a new file, whose lock others meet. */
static void sink_jsonl_begins_anew_when_its_directory_was_removed(void **state)
{
    (void)state;
    char directory[64];
    struct evq_sink_context context;
    struct evq_error err;
    void *second = NULL;

    fixture_dir_make(directory);
    void *sink = opened(directory, &context);
    give(sink, 0);
    flush(sink);
    fixture_dir_remove(directory);
    give(sink, 1);
    assert_status(evq_sink_jsonl.flush(sink, &err), EVQ_E_GONE);
    assert_holds(err.message, "removed");
    give(sink, 0);
    give(sink, 1); // As all that was not acknowledged, it is given again.
    flush(sink);
    assert_lines(directory, 2);
    assert_status(evq_sink_jsonl.open(&context, &second, &err), EVQ_E_CONFLICT);
    evq_sink_jsonl.close(sink);
    fixture_dir_remove(directory);
}

/* The same where the write itself fails first, because there is no memory for its id. */
static void sink_jsonl_begins_anew_when_a_write_misses_its_directory(void **state)
{
    (void)state;
    enum { STEPS = 48 }; // The next id needs a set of 128 slots.
    char directory[64];
    struct evq_sink_context context;
    struct evq_error err;

    fixture_dir_make(directory);
    void *sink = opened(directory, &context);
    for (int step = 0; step < STEPS; step++) {
        give(sink, step);
    }
    flush(sink);
    fixture_dir_remove(directory);
    fixture_memory_refuse(128 * sizeof(uint64_t), 128 * sizeof(uint64_t));
    assert_status(give_try(sink, STEPS, &err), EVQ_E_NOMEM);
    assert_int_equal(fixture_memory_give(), 1);
    assert_holds(err.message, "result ids");
    for (int again = 0; again <= STEPS; again++) { // As all that was not acknowledged.
        give(sink, again);
    }
    flush(sink);
    assert_lines(directory, STEPS + 1);
    evq_sink_jsonl.close(sink);
    fixture_dir_remove(directory);
}

/* It comes again; a result that is really too long would not, and is told apart. */
static void sink_jsonl_tells_want_of_memory_from_a_long_result(void **state)
{
    static char reason[2 << 20];
    char directory[64];
    struct evq_sink_context context;
    struct evq_error err;

    (void)state;
    memset(reason, 'x', sizeof(reason) - 1);
    fixture_dir_make(directory);
    void *sink = opened(directory, &context);
    give(sink, 0);
    assert_status(give_reason(sink, 1, reason, &err), EVQ_E_LIMIT);
    reason[8000] = '\0';
    fixture_memory_refuse(8000, 32000);
    assert_status(give_reason(sink, 1, reason, &err), EVQ_E_NOMEM);
    assert_int_equal(fixture_memory_give(), 1); // The line; its run holds more than that.
    assert_status_err(give_reason(sink, 1, reason, &err), EVQ_OK, &err);
    evq_sink_jsonl.close(sink);
    fixture_dir_remove(directory);
}

/* What sinks tell of ends would be missed by nobody here: a sink's flag alone has them read. */
static void sinks_that_tell_of_ends_are_given_them(void **state)
{
    static const char *const telling[] = {"jsonl", "exec", "webhook"};

    (void)state;
    for (size_t i = 0; i < sizeof telling / sizeof telling[0]; i++) {
        const struct evq_sink_ops *ops = evq_sink_find(telling[i]);
        assert_true(ops == NULL || ops->ends); // A build without libcurl has no webhook.
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sink_jsonl_writes_each_result_once_when_delivered_again),
        cmocka_unit_test(sink_jsonl_records_other_numbers_of_the_same_id),
        cmocka_unit_test(sink_jsonl_cuts_a_torn_line_at_every_byte),
        cmocka_unit_test(sink_jsonl_records_what_a_full_disk_refused_when_it_comes_again),
        cmocka_unit_test(sink_jsonl_refuses_a_directory_that_another_holds),
        cmocka_unit_test(sink_jsonl_begins_anew_when_its_directory_was_removed),
        cmocka_unit_test(sink_jsonl_begins_anew_when_a_write_misses_its_directory),
        cmocka_unit_test(sink_jsonl_tells_want_of_memory_from_a_long_result),
        cmocka_unit_test(sinks_that_tell_of_ends_are_given_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
