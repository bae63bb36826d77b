/*
 * Tests the encoding of the results stream for sinks, and of the best of a run that they store.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "tests/fixture/queue.h"

static uint32_t read_sink(struct fixture *fx, const char *sink, bool pending,
                          struct evq_entry *entries, uint32_t max)
{
    struct evq_error err = {EVQ_OK, ""};
    uint32_t count = 0;
    assert_status_err(evq_queue_sink_read(fx->queue, sink, pending ? "0" : NULL, true, 1, entries,
                                          max, &count, &err),
                      EVQ_OK, &err);
    return count;
}

static void free_entries(struct evq_entry *entries, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        evq_result_free(entries[i].result);
        entries[i].result = NULL;
    }
}

/* text has EVQ_RESULT_ID_BYTES_MAX bytes, and gets the id of the last one. */
static void keep_id(void *text, const struct evq_result *result)
{
    evq_result_id(result, text);
}

/* Sinks identify results by their ids. They would drop the second of two ends with one id. */
static void queue_ends_of_a_retried_job_have_ids_of_their_own(void **state)
{
    static const char *const expected[] = {"r/1/regular/quick#=cancelled.0",
                                           "r/1/regular/quick#=cancelled.0.1",
                                           "r/1/regular/quick#=done.1"};
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_entry entries[16];
    char last[EVQ_RESULT_ID_BYTES_MAX];
    int64_t cursor = 0;
    char id[EVQ_RESULT_ID_BYTES_MAX];

    assert_status_err(evq_queue_sink_open(fx->queue, "s", &err), EVQ_OK, &err);
    (void)fixture_submit(fx, "r/1/regular/quick");
    for (int i = 0; i < 2; i++) {
        enum evq_job_state now = EVQ_JOB_DONE;
        assert_status_err(evq_queue_cancel(fx->queue, "r/1/regular/quick", "unwanted", &now, &err),
                          EVQ_OK, &err);
        assert_status_err(evq_queue_run_results(fx->queue, "r", &cursor, keep_id, last, &err),
                          EVQ_OK, &err);
        assert_string_equal(last, expected[i]); // This holds for the index and for the stream.
        assert_status_err(evq_queue_retry(fx->queue, "r/1/regular/quick", "", id, &err), EVQ_OK,
                          &err);
    }
    struct evq_claim *claim = fixture_claim(fx);
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    evq_claim_free(claim);
    const uint32_t count = read_sink(fx, "s", false, entries, 16);
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < count; i++) {
        evq_result_id(entries[i].result, id);
        assert_string_equal(id, expected[i]);
    }
    free_entries(entries, count);
    fixture_audit(fx);
}

static void queue_sink_reads_acknowledges_and_replays(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_entry entries[16];
    uint32_t count = 0;

    assert_status(evq_queue_sink_read(fx->queue, "none", NULL, true, 1, entries, 16, &count, &err),
                  EVQ_E_NOT_FOUND);
    assert_status_err(evq_queue_sink_open(fx->queue, "a", &err), EVQ_OK, &err);
    assert_status_err(evq_queue_sink_open(fx->queue, "a", &err), EVQ_OK, &err);
    assert_status_err(evq_queue_sink_open(fx->queue, "b", &err), EVQ_OK, &err);
    assert_int_equal(read_sink(fx, "a", false, entries, 16), 0);
    fixture_finish(fx, "r/1/regular/quick", 0.5);
    assert_int_equal(read_sink(fx, "a", true, entries, 16), 0);
    assert_int_equal(read_sink(fx, "a", false, entries, 1), 1); // These are read one at a time.
    assert_string_equal(entries[0].result->task, "t");
    assert_true(llabs(entries[0].result->finished_ms - evq_clock_unix_ms()) < 60000);
    free_entries(entries, 1);
    assert_int_equal(read_sink(fx, "a", false, entries, 16), 1);
    assert_int_equal(entries[0].result->state, EVQ_JOB_DONE);
    assert_string_equal(entries[0].result->task, "");
    free_entries(entries, 1);
    count = read_sink(fx, "a", true, entries, 16); // Neither of them is acknowledged.
    assert_int_equal(count, 2);
    free_entries(entries, count);
    assert_status_err(evq_queue_sink_ack(fx->queue, "a", entries, 2, "", &err), EVQ_OK, &err);
    assert_int_equal(read_sink(fx, "a", true, entries, 16), 0);
    assert_int_equal(fixture_entries(fx), 2); // It is kept because of b.
    assert_status_err(evq_queue_sink_replay(fx->queue, "a", &err), EVQ_OK, &err);
    count = read_sink(fx, "a", false, entries, 16);
    assert_int_equal(count, 2);
    free_entries(entries, count);
    assert_status_err(evq_queue_sink_ack(fx->queue, "a", entries, 2, "disk full", &err), EVQ_OK,
                      &err);
    fixture_sink_remove(fx, "b");
    assert_status_err(evq_queue_sink_ack(fx->queue, "a", entries, 0, "", &err), EVQ_OK, &err);
    assert_int_equal(fixture_entries(fx), 0);
    assert_status(evq_queue_sink_ack(fx->queue, "b", entries, 0, "", &err), EVQ_E_NOT_FOUND);
}

/* Returns the number of changes that Redis must store. */
static long long changes(struct fixture *fx)
{
    static const char name[] = "rdb_changes_since_last_save:";
    struct evq_reply *reply = fixture_call(fx->raw, "INFO", "persistence", NULL);
    const char *at = strstr(reply->text, name);
    assert_non_null(at);
    const long long count = strtoll(at + strlen(name), NULL, 10);

    evq_reply_free(reply);
    return count;
}

/* The reply names the other process that served the sink last. A long name is cut. */
static void queue_sink_tells_who_serves_it(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    char other[EVQ_SINK_PLACE_BYTES_MAX] = "x";
    char place[2000];

    assert_status_err(evq_queue_sink_open(fx->queue, "served", &err), EVQ_OK, &err);
    assert_status_err(evq_queue_sink_serve(fx->queue, "served", "a", "host:/a", other, &err),
                      EVQ_OK, &err);
    assert_string_equal(other, "");
    const long long before = changes(fx);
    assert_status_err(evq_queue_sink_serve(fx->queue, "served", "a", "host:/a", other, &err),
                      EVQ_OK, &err);
    assert_string_equal(other, "");
    assert_int_equal(changes(fx), before); // An idle queue gets no writes.
    memset(place, 'p', sizeof place);
    place[sizeof place - 1] = '\0';
    assert_status_err(evq_queue_sink_serve(fx->queue, "served", "b", place, other, &err), EVQ_OK,
                      &err);
    assert_string_equal(other, "host:/a");
    assert_status_err(evq_queue_sink_serve(fx->queue, "served", "a", "host:/a", other, &err),
                      EVQ_OK, &err);
    assert_int_equal(strlen(other), EVQ_SINK_PLACE_BYTES_MAX - 1);
    assert_status(evq_queue_sink_serve(fx->queue, "served", "a b", "", other, &err), EVQ_E_INVALID);
    assert_status(evq_queue_sink_serve(fx->queue, "none", "a", "", other, &err), EVQ_E_NOT_FOUND);
    fixture_sink_remove(fx, "served");
}

static void queue_sink_read_sets_aside_what_is_no_result(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_entry entries[16];

    assert_status_err(evq_queue_sink_open(fx->queue, "a", &err), EVQ_OK, &err);
    assert_status_err(evq_queue_sink_open(fx->queue, "b", &err), EVQ_OK, &err);
    evq_reply_free(
        fixture_call(fx->raw, "XADD", fixture_key(fx, "results"), "*", "some", "thing", NULL));
    evq_reply_free(fixture_call(fx->raw, "XADD", fixture_key(fx, "results"), "*", "record",
                                "\xdf\xff\xff\xff\xff", NULL));
    fixture_finish(fx, "r/1/regular/quick", 0.5);
    uint32_t count = read_sink(fx, "a", false, entries, 16);
    assert_int_equal(count, 4);
    assert_null(entries[0].result);
    assert_null(entries[1].result);
    assert_non_null(entries[2].result);
    assert_non_null(entries[3].result);
    free_entries(entries, count);
    assert_int_equal(fixture_bad_entries(fx), 2);
    count = read_sink(fx, "b", false, entries, 16); // Another sink reads the same.
    free_entries(entries, count);
    assert_int_equal(fixture_bad_entries(fx), 2);
    count = read_sink(fx, "a", true, entries, 16); // These two are not delivered again.
    assert_int_equal(count, 2);
    // An entry that is trimmed while it is pending is delivered once without fields.
    evq_reply_free(fixture_call(fx->raw, "XDEL", fixture_key(fx, "results"), entries[0].id, NULL));
    free_entries(entries, count);
    count = read_sink(fx, "a", true, entries, 16);
    assert_int_equal(count, 2);
    assert_null(entries[0].result);
    free_entries(entries, count);
    assert_int_equal(fixture_bad_entries(fx), 2);
    count = read_sink(fx, "a", true, entries, 16);
    assert_int_equal(count, 1);
    free_entries(entries, count);
}

static void queue_best_keeps_seventeen_digits(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_best best = {.run = "r",
                            .metric = "eval/t/accuracy",
                            .value = 0.1 + 0.2,
                            .step = 42,
                            .job = "r/42/regular/quick",
                            .checkpoint = "ckpt:r/step-42"};
    struct evq_best got;

    assert_status(evq_queue_best_get(fx->queue, "r", NULL, &got, &err), EVQ_E_NOT_FOUND);
    assert_holds(err.message, "run 'r' has no best checkpoint");
    assert_status_err(evq_queue_best_put(fx->queue, &best, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_best_get(fx->queue, "r", "eval/t/accuracy", &got, &err), EVQ_OK,
                      &err);
    assert_near(got.value, 0.1 + 0.2, 0.0);
    assert_int_equal(got.step, 42);
    assert_string_equal(got.run, "r");
    assert_string_equal(got.job, best.job);
    assert_string_equal(got.checkpoint, best.checkpoint);
    assert_status_err(evq_queue_best_get(fx->queue, "r", "", &got, &err), EVQ_OK, &err);
    assert_string_equal(got.metric, "eval/t/accuracy");
}

static void says_why(struct fixture *fx, const char *metric, const char *why)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_best got;

    assert_status(evq_queue_best_find(fx->queue, "r", metric, &got, &err), EVQ_E_NOT_FOUND);
    assert_string_equal(err.message, why);
}

static void queue_best_find_takes_a_part_of_a_name_and_says_why_there_is_none(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_best best = {.run = "r", .value = 1.0, .step = 1, .job = "r/1/regular/quick"};
    struct evq_best got;

    says_why(fx, "", "queue 'main' has no run 'r'");
    (void)fixture_submit(fx, "r/1/regular/quick");
    says_why(fx, "",
             "no logger of queue 'main' ever had a sink `best`, which keeps the best checkpoints: "
             "start evalq-logger, without `enabled: false` for it");
    assert_status_err(evq_queue_sink_open(fx->queue, "best", &err), EVQ_OK, &err);
    says_why(fx, "", "no result of run 'r' has reached a logger's sink `best` yet");
    static const char *const names[] = {"eval/a/accuracy", "eval/a/loss", "eval/b/loss"};
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(best.metric, sizeof best.metric, "%s", names[i]);
        assert_status_err(evq_queue_best_put(fx->queue, &best, &err), EVQ_OK, &err);
    }
    says_why(fx, "acc",
             "run 'r' has no best by 'acc', only by: eval/a/accuracy, eval/a/loss, eval/b/loss");
    says_why(fx, "loss",
             "'loss' is part of several metrics of run 'r', name one: eval/a/loss, eval/b/loss");
    static const char *const given[] = {"accuracy", "a/accuracy", "eval/a/accuracy", ""};
    for (size_t i = 0; i < 4; i++) {
        assert_status_err(evq_queue_best_find(fx->queue, "r", given[i], &got, &err), EVQ_OK, &err);
        assert_string_equal(got.metric, "eval/a/accuracy");
    }
    assert_status_err(evq_queue_best_find(fx->queue, "r", "b", &got, &err), EVQ_OK, &err);
    assert_string_equal(got.metric, "eval/b/loss");
}

/* Finds or creates a locale with a decimal comma. false: that is impossible here. */
static bool take_comma(const char *directory)
{
    char command[512];

    (void)snprintf(command, sizeof command,
                   "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", directory);
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) {
        (void)!system(command); // The created files show whether it succeeded.
        (void)setenv("LOCPATH", directory, 1);
    }
    return setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL &&
           strcmp(localeconv()->decimal_point, ",") == 0;
}

/* libevalq runs in processes that set their own locale. */
static void queue_best_reads_the_same_whatever_the_locale(void **state)
{
    struct fixture *fx = *state;
    struct evq_best best = {.run = "r", .metric = "eval/t/accuracy", .value = 0.1 + 0.2};
    struct evq_best got;
    struct evq_error err = {EVQ_OK, ""};
    char directory[64];

    assert_status_err(evq_queue_best_put(fx->queue, &best, &err), EVQ_OK, &err);
    fixture_dir_make(directory);
    const bool taken = take_comma(directory);
    fixture_dir_remove(directory);
    if (!taken) {
        skip();
    }
    assert_status_err(evq_queue_best_get(fx->queue, "r", "", &got, &err), EVQ_OK, &err);
    assert_near(got.value, 0.1 + 0.2, 0.0);
    (void)setlocale(LC_NUMERIC, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(queue_ends_of_a_retried_job_have_ids_of_their_own, fixture_fresh),
        cmocka_unit_test_setup(queue_sink_reads_acknowledges_and_replays, fixture_fresh),
        cmocka_unit_test(queue_sink_tells_who_serves_it),
        cmocka_unit_test_setup(queue_sink_read_sets_aside_what_is_no_result, fixture_fresh),
        cmocka_unit_test_setup(queue_best_find_takes_a_part_of_a_name_and_says_why_there_is_none,
                               fixture_fresh),
        cmocka_unit_test_setup(queue_best_keeps_seventeen_digits, fixture_fresh),
        cmocka_unit_test_setup(queue_best_reads_the_same_whatever_the_locale, fixture_fresh),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
