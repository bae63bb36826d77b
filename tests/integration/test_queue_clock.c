/*
 * Tests times that the server wrote while its clock was ahead. Leases and delays are reduced to
 * what the present clock allows, and a jump of weeks makes no sink silent.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/fixture/check.h"
#include "tests/fixture/queue.h"

#define ID       "digits/100/regular/quick"
#define AHEAD_MS 7200000

static void lease_scores_from_a_clock_that_was_ahead_are_pulled_back(void **state)
{
    struct fixture *fx = *state;
    struct evq_queue_info info;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    evq_reply_free(
        fixture_call(fx->raw, "ZADD", fixture_key(fx, "leases"), "9999999999999", ID, NULL));
    assert_status(evq_queue_heartbeat(fx->queue, "other", "{}", 15000, NULL, 0, NULL, NULL),
                  EVQ_OK);
    assert_status(evq_queue_info(fx->queue, &info, NULL), EVQ_OK);
    double score = strtod(
        fixture_call_text(fx->raw, "ZSCORE", fixture_key(fx, "leases"), ID, NULL).text, NULL);
    // The limit is the job's own lease, not the longest possible one.
    assert_true(score <= (double)info.now_ms + 15000.0);
    evq_claim_free(claim);
}

/* Writes a time as a clock that is ahead would: the job's field, and the time when it is due. */
static void set_ahead(struct fixture *fx, const char *field, int64_t ahead_ms, int64_t wait_ms)
{
    struct evq_queue_info info;
    char ahead[32];
    char due[32];

    assert_status(evq_queue_info(fx->queue, &info, NULL), EVQ_OK);
    (void)snprintf(ahead, sizeof(ahead), "%lld", (long long)(info.now_ms + ahead_ms));
    (void)snprintf(due, sizeof(due), "%lld", (long long)(info.now_ms + ahead_ms + wait_ms));
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "job:" ID), field, ahead, NULL));
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "job:" ID), "due", due, NULL));
    evq_reply_free(fixture_call(fx->raw, "ZADD", fixture_key(fx, "delayed"), due, ID, NULL));
}

/* Returns how long the job must still wait after a worker's heartbeat. */
static double wait_ms_after_heartbeat(struct fixture *fx)
{
    struct evq_queue_info info;

    assert_status(evq_queue_heartbeat(fx->queue, "other", "{}", 15000, NULL, 0, NULL, NULL),
                  EVQ_OK);
    assert_status(evq_queue_info(fx->queue, &info, NULL), EVQ_OK);
    const double score = strtod(
        fixture_call_text(fx->raw, "ZSCORE", fixture_key(fx, "delayed"), ID, NULL).text, NULL);
    assert_true(score > 0);
    return score - (double)info.now_ms;
}

static void submit_delayed(struct fixture *fx, int64_t delay_ms)
{
    struct evq_job *job = fixture_job(ID);
    struct evq_submitted submitted;

    assert_status(evq_queue_submit(fx->queue, job, delay_ms, &submitted, NULL), EVQ_OK);
    evq_job_free(job);
}

static void delay_from_a_clock_that_was_ahead_is_pulled_back(void **state)
{
    struct fixture *fx = *state;

    submit_delayed(fx, 5000);
    set_ahead(fx, "submitted", AHEAD_MS, 5000);
    assert_true(wait_ms_after_heartbeat(fx) <= 5000.0);
}

static void delay_of_hours_that_a_submit_asked_for_is_kept(void **state)
{
    struct fixture *fx = *state;

    submit_delayed(fx, AHEAD_MS);
    assert_true(wait_ms_after_heartbeat(fx) > AHEAD_MS - 600000.0);
}

/*
 * The clock is set back by two hours while a job waits for its retry. The job waits seconds, not
 * two hours.
 */
static void retry_put_off_by_a_clock_that_was_ahead_is_pulled_back(void **state)
{
    struct fixture *fx = *state;

    enum evq_job_state after = EVQ_JOB_STATE_COUNT;
    submit_delayed(fx, 0);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_RETRY, "why", "tail",
                                 &after, NULL),
                  EVQ_OK);
    assert_int_equal(after, EVQ_JOB_DELAYED);
    set_ahead(fx, "queued", AHEAD_MS, 2000); // This field does not contain the wait.
    assert_true(wait_ms_after_heartbeat(fx) <= 2400.0);
    set_ahead(fx, "started", 60000, 2000);
    assert_true(wait_ms_after_heartbeat(fx) <= 2400.0);
    // If the wait is unknown, it is that of the longest retry.
    evq_reply_free(fixture_call(fx->raw, "HDEL", fixture_key(fx, "job:" ID), "last", NULL));
    set_ahead(fx, "queued", AHEAD_MS, 2000);
    assert_true(wait_ms_after_heartbeat(fx) <= 720000.0);
    evq_claim_free(claim);
}

#define HOUR_MS  INT64_C(3600000)
#define MONTH_MS (30 * 24 * HOUR_MS)

/* Makes the last check of the sink's silence so old by the server's clock. */
static void set_looked(struct fixture *fx, const char *sink, int64_t ago_ms)
{
    struct evq_queue_info info;
    char name[80];
    char looked[32];

    assert_status(evq_queue_info(fx->queue, &info, NULL), EVQ_OK);
    (void)snprintf(name, sizeof(name), "sink:%s", sink);
    (void)snprintf(looked, sizeof(looked), "%lld", (long long)(info.now_ms - ago_ms));
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, name), "looked", looked, NULL));
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, name), "seen", looked, NULL));
}

static void sink_take(struct fixture *fx, const char *sink)
{
    struct evq_entry entries[8];
    uint32_t count = 0;

    assert_status(evq_queue_sink_read(fx->queue, sink, NULL, true, 0, entries, 8, &count, NULL),
                  EVQ_OK);
    assert_status(evq_queue_sink_ack(fx->queue, sink, entries, count, "", NULL), EVQ_OK);
    for (uint32_t i = 0; i < count; i++) {
        evq_result_free(entries[i].result);
    }
}

static int64_t losses(struct fixture *fx)
{
    return fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "loss"), NULL);
}

static void sinks_open(struct fixture *fx)
{
    assert_status(evq_queue_sink_open(fx->queue, "fast", NULL), EVQ_OK);
    assert_status(evq_queue_sink_open(fx->queue, "slow", NULL), EVQ_OK);
}

/*
 * Nothing was published for a month, or the clock jumped by a month and back. The sink was not
 * silent.
 */
static void sink_is_not_silent_for_a_month_that_nobody_saw(void **state)
{
    struct fixture *fx = *state;

    sinks_open(fx);
    set_looked(fx, "fast", MONTH_MS);
    set_looked(fx, "slow", MONTH_MS);
    fixture_finish(fx, ID, 0.5);
    sink_take(fx, "fast");
    assert_int_equal(fixture_entries(fx), 2);
    set_looked(fx, "slow", -MONTH_MS);
    sink_take(fx, "fast");
    set_looked(fx, "slow", MONTH_MS);
    sink_take(fx, "fast");
    assert_int_equal(fixture_entries(fx), 2);
    evq_reply_free(fixture_call(fx->raw, "HDEL", fixture_key(fx, "sink:slow"), "looked", NULL));
    sink_take(fx, "fast"); // This is the form of an earlier build.
    assert_int_equal(fixture_entries(fx), 2);
    sink_take(fx, "slow");
    assert_int_equal(fixture_entries(fx), 0);
    assert_int_equal(losses(fx), 0);
}

/*
 * During seven days, other sinks took results in every hour. A call of this sink starts the count
 * again.
 */
static void sink_is_silent_after_a_week_of_looks(void **state)
{
    struct fixture *fx = *state;

    sinks_open(fx);
    for (int hour = 1; hour <= 100; hour++) {
        set_looked(fx, "slow", HOUR_MS);
        sink_take(fx, "fast");
    }
    sink_take(fx, "slow");
    fixture_finish(fx, ID, 0.5);
    set_looked(fx, "slow", -MONTH_MS); // A clock that is set back subtracts nothing.
    sink_take(fx, "fast");
    for (int hour = 1; hour <= 168; hour++) {
        assert_int_equal(losses(fx), 0);
        set_looked(fx, "slow", HOUR_MS);
        sink_take(fx, "fast");
    }
    assert_int_equal(losses(fx), 1);
    assert_int_equal(fixture_entries(fx), 0);
}

/*
 * Another sink reports for weeks that it tries to store its last results. Then new results arrive.
 */
static void sink_that_has_taken_all_is_not_silent(void **state)
{
    struct fixture *fx = *state;

    sinks_open(fx);
    assert_status(evq_queue_sink_open(fx->queue, "stuck", NULL), EVQ_OK);
    fixture_finish(fx, ID, 0.5);
    sink_take(fx, "fast");
    sink_take(fx, "slow");
    for (int hour = 1; hour <= 200; hour++) {
        set_looked(fx, "fast", HOUR_MS);
        set_looked(fx, "slow", HOUR_MS);
        assert_status(evq_queue_sink_ack(fx->queue, "stuck", NULL, 0, "it is away", NULL), EVQ_OK);
    }
    fixture_finish(fx, "digits/200/regular/quick", 0.5);
    sink_take(fx, "stuck");
    assert_int_equal(fixture_entries(fx), 2);
    sink_take(fx, "fast");
    assert_int_equal(fixture_entries(fx), 2);
    sink_take(fx, "slow");
    assert_int_equal(fixture_entries(fx), 0);
    assert_int_equal(losses(fx), 0);
}

int main(void)
{
#define CLOCK_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        CLOCK_TEST(lease_scores_from_a_clock_that_was_ahead_are_pulled_back),
        CLOCK_TEST(delay_from_a_clock_that_was_ahead_is_pulled_back),
        CLOCK_TEST(delay_of_hours_that_a_submit_asked_for_is_kept),
        CLOCK_TEST(retry_put_off_by_a_clock_that_was_ahead_is_pulled_back),
        CLOCK_TEST(sink_is_not_silent_for_a_month_that_nobody_saw),
        CLOCK_TEST(sink_is_silent_after_a_week_of_looks),
        CLOCK_TEST(sink_that_has_taken_all_is_not_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
