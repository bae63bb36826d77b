#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/keyspace.h"

/* Tests who may write a job: tokens, leases, repeated calls, and failing jobs. */

#define ID "r/100/regular/quick"

static enum evq_status publish(struct fixture *fx, const struct evq_claim *claim,
                               bool *ret_duplicate)
{
    struct evq_result *result = fixture_result(claim, "t", 0.5);
    enum evq_status status =
        evq_queue_publish(fx->queue, claim->id, claim->token, result, ret_duplicate, NULL);
    evq_result_free(result);
    return status;
}

static enum evq_beat_answer beat(struct fixture *fx, const struct evq_claim *claim)
{
    struct evq_beat beats[] = {{.id = claim->id, .token = claim->token, .done = -1, .total = -1}};
    assert_status(evq_queue_heartbeat(fx->queue, "worker-1", "{}", 15000, beats, 1, NULL, NULL),
                  EVQ_OK);
    return beats[0].answer;
}

static enum evq_job_state fail_as(struct fixture *fx, const struct evq_claim *claim,
                                  enum evq_fail_kind kind)
{
    struct evq_error err = {EVQ_OK, ""};
    enum evq_job_state state = EVQ_JOB_STATE_COUNT;
    assert_status_err(
        evq_queue_fail(fx->queue, claim->id, claim->token, kind, "why", "tail", &state, &err),
        EVQ_OK, &err);
    return state;
}

/*
 * Asserts that every write with this claim's token is rejected and changes only the worker's own
 * record.
 */
static void assert_fenced(struct fixture *fx, const struct evq_claim *claim)
{
    bool duplicate = false;
    char *before = fixture_keyspace(fx);

    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_E_LEASE_LOST);
    assert_status(publish(fx, claim, &duplicate), EVQ_E_LEASE_LOST);
    assert_status(
        evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_FATAL, "x", "y", NULL, NULL),
        EVQ_E_LEASE_LOST);
    assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_E_LEASE_LOST);
    assert_status(evq_queue_split(fx->queue, claim->id, claim->token, 2, NULL), EVQ_E_LEASE_LOST);
    assert_status(evq_queue_adopt(fx->queue, "worker-2", claim, 15000, NULL), EVQ_E_LEASE_LOST);
    char *after = fixture_keyspace(fx);
    assert_string_equal(before, after);
    assert_int_equal(beat(fx, claim), EVQ_BEAT_STALE);
    free(before);
    free(after);
}

static void fence_refuses_every_verb_of_an_older_attempt(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, ID);
    struct evq_claim *late = fixture_claim(fx);
    fixture_lapse_lease(fx, late);
    struct evq_claim *held = fixture_claim_as(fx, "worker-2");
    assert_int_equal(held->attempt, 2);
    (void)beat(fx, held);
    assert_fenced(fx, late);
    fixture_publish(fx, held, "t", 0.5);
    assert_status(evq_queue_complete(fx->queue, held->id, held->token, NULL), EVQ_OK);
    assert_fenced(fx, late); // The same holds after the end.
    assert_int_equal(fixture_results_published(fx), 1);
    assert_int_equal(fixture_ends(fx, NULL), 1);
    evq_claim_free(late);
    evq_claim_free(held);
    fixture_audit(fx);
}

/* Tokens rise, and no two claims have the same token, even with repeated calls. */
static void fence_tokens_rise_with_every_claim(void **state)
{
    struct fixture *fx = *state;
    long long last = 0;

    (void)fixture_submit(fx, ID);
    for (int i = 0; i < 50; i++) {
        struct evq_claim *claim = fixture_claim(fx);
        long long number = strtoll(claim->token, NULL, 10);
        assert_true(number > last);
        last = number;
        assert_int_equal(claim->attempt, 1); // A release does not charge the attempt.
        assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
        evq_claim_free(claim);
    }
}

static void fence_keeps_the_first_result_of_a_task(void **state)
{
    struct fixture *fx = *state;
    bool duplicate = false;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    fixture_publish(fx, claim, "t", 0.5);
    struct evq_reply *first = fixture_call(fx->raw, "HGET", fixture_key(fx, "res:" ID), "t", NULL);
    struct evq_result *other = fixture_result(claim, "t", 0.75);
    assert_status(evq_queue_publish(fx->queue, claim->id, claim->token, other, &duplicate, NULL),
                  EVQ_OK);
    assert_true(duplicate);
    struct evq_reply *kept = fixture_call(fx->raw, "HGET", fixture_key(fx, "res:" ID), "t", NULL);
    assert_int_equal(kept->bytes, first->bytes);
    assert_memory_equal(kept->text, first->text, first->bytes);
    assert_int_equal(fixture_entries(fx), 1);
    evq_reply_free(first);
    evq_reply_free(kept);
    evq_result_free(other);
    evq_claim_free(claim);
}

static void fence_answers_repeated_calls_as_the_first_time(void **state)
{
    struct fixture *fx = *state;
    bool duplicate = false;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(publish(fx, claim, &duplicate), EVQ_OK);
    assert_status(publish(fx, claim, &duplicate), EVQ_OK);
    assert_true(duplicate);
    assert_int_equal(fail_as(fx, claim, EVQ_FAIL_RETRY), EVQ_JOB_DELAYED);
    char *before = fixture_keyspace(fx);
    assert_int_equal(fail_as(fx, claim, EVQ_FAIL_RETRY), EVQ_JOB_DELAYED);
    char *again = fixture_keyspace(fx);
    assert_string_equal(before, again);
    free(again);
    free(before);
    evq_claim_free(claim);
    fixture_due(fx, ID);
    claim = fixture_claim(fx);
    assert_int_equal(claim->attempt, 2);
    assert_int_equal(claim->task_done_count, 1);
    assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    claim = fixture_claim(fx);
    assert_int_equal(claim->attempt, 2);
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    assert_int_equal(fixture_entries(fx), 2);
    assert_status(evq_queue_cancel(fx->queue, ID, "", &after, NULL), EVQ_OK);
    assert_int_equal(after, EVQ_JOB_DONE); // A finished task stays finished.
    evq_claim_free(claim);
    fixture_audit(fx);
}

static void lease_is_kept_by_a_heartbeat_between_two_looks(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    for (int i = 0; i < 5; i++) {
        fixture_look(fx, ID);
        fixture_assert_state(fx, ID, "running");
        assert_int_equal(beat(fx, claim), EVQ_BEAT_OK);
    }
    fixture_look(fx, ID);
    fixture_look(fx, ID);
    fixture_assert_state(fx, ID, "queued");
    evq_claim_free(claim);
}

/*
 * Only the score changed, as after a jump of the server's clock. A heartbeat that was only counted
 * still saves the job.
 */
static void lease_look_that_finds_the_count_moved_waits_a_whole_lease(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    fixture_look(fx, ID);
    evq_reply_free(fixture_call(fx->raw, "HINCRBY", fixture_key(fx, "job:" ID), "hb", "1", NULL));
    fixture_look(fx, ID);
    fixture_assert_state(fx, ID, "running");
    assert_string_equal(fixture_job_field(fx, ID, "suspect").text, "");
    fixture_look(fx, ID);
    fixture_look(fx, ID);
    fixture_assert_state(fx, ID, "queued");
    evq_claim_free(claim);
}

/*
 * An attempt was suspect when it ended without a charge. The next attempt must get its own check
 * before it is taken away.
 */
static void fence_next_attempt_is_not_suspect_for_the_one_before(void **state)
{
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    fixture_look(fx, ID);
    assert_status(evq_queue_fail(fx->queue, claim->id, claim->token, EVQ_FAIL_INCOMPLETE, "", "",
                                 &after, NULL),
                  EVQ_OK);
    evq_claim_free(claim);
    fixture_due(fx, ID);
    claim = fixture_claim(fx);
    assert_int_equal(claim->attempt, 1);
    fixture_look(fx, ID);
    fixture_assert_state(fx, ID, "running");
    evq_claim_free(claim);
}

static void lease_lost_thrice_ends_the_job(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, ID);
    for (int attempt = 1; attempt <= 3; attempt++) {
        fixture_due(fx, ID);
        struct evq_claim *claim = fixture_claim(fx);
        assert_int_equal(claim->attempt, attempt);
        fixture_lapse_lease(fx, claim);
        evq_claim_free(claim);
    }
    fixture_assert_state(fx, ID, "dead");
    assert_holds(fixture_job_field(fx, ID, "reason").text, "lost");
    assert_string_equal(fixture_job_field(fx, ID, "token").text, "");
    assert_int_equal(fixture_ends(fx, "dead"), 1);
    fixture_audit(fx);
}

static void lease_reclaimed_job_completes_with_its_old_token(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    fixture_lapse_lease(fx, claim);
    fixture_assert_state(fx, ID, "queued");
    fixture_publish(fx, claim, "t", 0.5);
    fixture_assert_state(fx, ID, "running");
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    assert_string_equal(fixture_job_field(fx, ID, "attempts").text, "1");
    fixture_claim_none(fx);
    evq_claim_free(claim);
    fixture_audit(fx);
}

static void crash_on_two_workers_runs_alone_next_then_ends(void **state)
{
    struct fixture *fx = *state;
    static const char *const workers[] = {"worker-1", "worker-2", "worker-3"};

    (void)fixture_submit(fx, ID);
    (void)fixture_submit(fx, "r/200/regular/quick");
    for (int i = 0; i < 3; i++) {
        struct evq_claim *claim = fixture_claim_as(fx, workers[i]);
        assert_string_equal(claim->id, ID);
        assert_int_equal(claim->alone, i == 2);
        assert_int_equal(fail_as(fx, claim, EVQ_FAIL_CRASH),
                         i == 2 ? EVQ_JOB_DEAD : EVQ_JOB_DELAYED);
        evq_claim_free(claim);
        if (i < 2) {
            fixture_due(fx, ID);
        }
    }
    assert_string_equal(fixture_call_text(fx->raw, "GET", fixture_key(fx, "log:" ID), NULL).text,
                        "tail");
    struct evq_claim *good = fixture_claim(fx); // The good job continues.
    assert_string_equal(good->id, "r/200/regular/quick");
    evq_claim_free(good);
    fixture_audit(fx);
}

static void fail_incomplete_is_not_charged_and_bounded(void **state)
{
    struct fixture *fx = *state;
    int times = 0;

    (void)fixture_submit(fx, ID);
    evq_reply_free(
        fixture_call(fx->raw, "HSET", fixture_key(fx, "meta"), "incomplete_max", "7", NULL));
    for (;;) {
        struct evq_claim *claim = fixture_claim(fx);
        assert_int_equal(claim->attempt, 1);
        enum evq_job_state after = fail_as(fx, claim, EVQ_FAIL_INCOMPLETE);
        evq_claim_free(claim);
        if (after == EVQ_JOB_DEAD) {
            break;
        }
        assert_true(++times <= 7);
        fixture_due(fx, ID);
    }
    assert_int_equal(times, 7);
}

static void fail_of_each_kind_ends_as_designed(void **state)
{
    struct fixture *fx = *state;
    static const struct {
        enum evq_fail_kind kind;
        enum evq_job_state want;
    } rows[] = {{EVQ_FAIL_FATAL, EVQ_JOB_DEAD},        {EVQ_FAIL_VANISHED, EVQ_JOB_SKIPPED},
                {EVQ_FAIL_CHANGED, EVQ_JOB_SKIPPED},   {EVQ_FAIL_RETRY, EVQ_JOB_DELAYED},
                {EVQ_FAIL_TIMEOUT, EVQ_JOB_DELAYED},   {EVQ_FAIL_CRASH, EVQ_JOB_DELAYED},
                {EVQ_FAIL_INCOMPLETE, EVQ_JOB_DELAYED}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        (void)snprintf(id, sizeof id, "run%zu/1/regular/quick", i);
        (void)fixture_submit(fx, id);
        struct evq_claim *claim = fixture_claim(fx);
        assert_string_equal(claim->id, id);
        assert_int_equal(fail_as(fx, claim, rows[i].kind), rows[i].want);
        assert_int_equal(beat(fx, claim), EVQ_BEAT_STALE);
        assert_status(evq_queue_complete(fx->queue, id, claim->token, NULL), EVQ_E_LEASE_LOST);
        assert_status(evq_queue_release(fx->queue, id, claim->token, NULL), EVQ_E_LEASE_LOST);
        evq_claim_free(claim);
    }
    fixture_audit(fx);
}

/* The kind of the last failure does not matter. */
static void fail_of_the_last_attempt_ends_in_dead(void **state)
{
    struct fixture *fx = *state;
    static const enum evq_fail_kind kinds[] = {EVQ_FAIL_RETRY, EVQ_FAIL_TIMEOUT, EVQ_FAIL_CRASH};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char id[EVQ_JOB_ID_BYTES_MAX];
        (void)snprintf(id, sizeof id, "run%zu/1/regular/quick", i);
        (void)fixture_submit(fx, id);
        for (int attempt = 1; attempt <= 3; attempt++) {
            struct evq_claim *claim = fixture_claim(fx);
            assert_int_equal(fail_as(fx, claim, attempt < 3 ? EVQ_FAIL_RETRY : kinds[i]),
                             attempt < 3 ? EVQ_JOB_DELAYED : EVQ_JOB_DEAD);
            evq_claim_free(claim);
            if (attempt < 3) {
                fixture_due(fx, id);
            }
        }
    }
    assert_int_equal(fixture_ends(fx, "dead"), 3);
    fixture_audit(fx);
}

static void cancel_reaches_the_holder_and_outruns_its_release(void **state)
{
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_cancel(fx->queue, ID, "enough", &after, NULL), EVQ_OK);
    assert_int_equal(after, EVQ_JOB_RUNNING);
    assert_int_equal(beat(fx, claim), EVQ_BEAT_CANCEL);
    // The call is repeated, because the first answer may have been lost.
    assert_int_equal(beat(fx, claim), EVQ_BEAT_CANCEL);
    fixture_assert_state(fx, ID, "cancelled");
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_E_LEASE_LOST);
    evq_claim_free(claim);

    (void)fixture_submit(fx, "r/200/regular/quick");
    claim = fixture_claim(fx);
    assert_status(evq_queue_cancel(fx->queue, claim->id, "enough", &after, NULL), EVQ_OK);
    assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    fixture_assert_state(fx, claim->id, "cancelled");
    evq_claim_free(claim);

    (void)fixture_submit(fx, "r/300/regular/quick"); // Otherwise its shards would never know.
    claim = fixture_claim(fx);
    assert_status(evq_queue_cancel(fx->queue, claim->id, "enough", &after, NULL), EVQ_OK);
    assert_status(evq_queue_split(fx->queue, claim->id, claim->token, 4, NULL), EVQ_E_LEASE_LOST);
    fixture_assert_state(fx, claim->id, "cancelled");
    fixture_claim_none(fx);
    evq_claim_free(claim);
    fixture_audit(fx);
}

static void withdraw_ends_only_what_nobody_has_begun(void **state)
{
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    assert_status(evq_queue_withdraw(fx->queue, ID, "no room", &after, NULL), EVQ_OK);
    assert_int_equal(after, EVQ_JOB_RUNNING);
    assert_int_equal(beat(fx, claim), EVQ_BEAT_OK); // It is not even reported.
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);

    (void)fixture_submit(fx, "r/200/regular/quick");
    assert_status(evq_queue_withdraw(fx->queue, "r/200/regular/quick", "no room", &after, NULL),
                  EVQ_OK);
    assert_int_equal(after, EVQ_JOB_SKIPPED);
    fixture_assert_state(fx, "r/200/regular/quick", "skipped");
    assert_status(evq_queue_withdraw(fx->queue, "r/300/regular/quick", "", &after, NULL),
                  EVQ_E_NOT_FOUND);
    fixture_audit(fx);
}

static void adopt_makes_a_forgotten_job_run_again(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, ID);
    struct evq_claim *claim = fixture_claim(fx);
    struct evq_queue_info before;
    struct evq_queue_info after;
    assert_status(evq_queue_info(fx->queue, &before, NULL), EVQ_OK);
    fixture_reset(fx); // This is FLUSHALL.
    assert_status(evq_queue_info(fx->queue, &after, NULL), EVQ_OK);
    assert_string_not_equal(before.epoch, after.epoch);
    assert_int_equal(beat(fx, claim), EVQ_BEAT_STALE);
    assert_status(evq_queue_adopt(fx->queue, "worker-1", claim, 15000, NULL), EVQ_OK);
    assert_status(evq_queue_adopt(fx->queue, "worker-1", claim, 15000, NULL), EVQ_OK);
    assert_int_equal(beat(fx, claim), EVQ_BEAT_OK);
    // The training submits the job again.
    assert_int_equal(fixture_submit(fx, ID).answer, EVQ_SUBMIT_DUPLICATE);
    fixture_publish(fx, claim, "t", 0.5);
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);

    (void)fixture_submit(fx, "r/200/regular/quick");
    struct evq_claim *old = fixture_claim(fx);
    fixture_reset(fx);
    // The training's submit and another worker came first.
    (void)fixture_submit(fx, "r/200/regular/quick");
    struct evq_claim *other = fixture_claim_as(fx, "worker-2");
    assert_string_not_equal(old->token, other->token);
    assert_status(evq_queue_adopt(fx->queue, "worker-1", old, 15000, NULL), EVQ_E_LEASE_LOST);
    assert_int_equal(beat(fx, other), EVQ_BEAT_OK);
    evq_claim_free(old);
    evq_claim_free(other);
    fixture_audit(fx);
}

static void submit_again_while_reclaimed_takes_the_old_token_away(void **state)
{
    struct fixture *fx = *state;

    (void)fixture_submit(fx, ID);
    struct evq_claim *late = fixture_claim(fx);
    fixture_lapse_lease(fx, late);
    assert_int_equal(fixture_submit_print(fx, ID, '2').answer, EVQ_SUBMIT_REPLACED);
    assert_fenced(fx, late); // It evaluates weights that no longer exist.
    evq_claim_free(late);
    struct evq_claim *claim = fixture_claim(fx);
    assert_int_equal(claim->attempt, 1);
    evq_claim_free(claim);
}

/* Each complete in a call is handled by itself: it is fenced, can be repeated, and is counted. */
static void complete_many_judges_each_attempt_by_itself(void **state)
{
    struct fixture *fx = *state;
    struct evq_claim *claims[3];
    struct evq_error err = {EVQ_OK, ""};

    (void)fixture_submit(fx, "many/1/regular/quick");
    (void)fixture_submit(fx, "many/2/regular/quick");
    for (int i = 0; i < 2; i++) {
        claims[i] = fixture_claim(fx);
    }
    fixture_lapse_lease(fx, claims[0]);
    claims[2] = fixture_claim(fx); // This is the first job again, for another attempt.
    assert_string_equal(claims[2]->id, claims[0]->id);
    struct evq_completion done[] = {{claims[0]->id, claims[0]->token, EVQ_E_BUG},
                                    {claims[1]->id, claims[1]->token, EVQ_E_BUG},
                                    {claims[2]->id, claims[2]->token, EVQ_E_BUG}};
    for (int turn = 0; turn < 2; turn++) { // The second one is repeated, as after a lost reply.
        assert_status(evq_queue_complete_many(fx->queue, done, 3, &err), EVQ_OK);
        assert_status(done[0].status, EVQ_E_LEASE_LOST);
        assert_status(done[1].status, EVQ_OK);
        assert_status(done[2].status, EVQ_OK);
        assert_status(err.status, EVQ_E_LEASE_LOST);
    }
    assert_int_equal(fixture_ends(fx, "done"), 2);
    assert_int_equal(fixture_ends(fx, NULL), 2);
    assert_status(evq_queue_complete_many(fx->queue, done, 0, NULL), EVQ_E_INVALID);
    assert_status(evq_queue_complete_many(fx->queue, done, EVQ_QUEUE_COMPLETIONS_MAX + 1, NULL),
                  EVQ_E_INVALID);
    fixture_audit(fx);
    for (int i = 0; i < 3; i++) {
        evq_claim_free(claims[i]);
    }
}

/*
 * A batch must not use data that it read for one submit for the next one. The answers must equal
 * those of single calls.
 */
static void submit_batch_answers_as_single_submits_do(void **state)
{
    enum { COUNT = 9 };
    static const int64_t steps[COUNT] = {10, 10, 10, 20, 5, 10, 30, 30, 15};
    static const int64_t sessions[COUNT] = {1, 1, 1, 2, 1, 2, 2, 2, 3};
    static const char *const prints[] = {"11111111111111111111111111111111",
                                         "22222222222222222222222222222222",
                                         "33333333333333333333333333333333"};
    static const int print[COUNT] = {0, 0, 1, 0, 0, 2, 0, 0, 0};
    struct fixture *fx = *state;
    struct evq_job *jobs[COUNT];
    struct evq_submitted single[COUNT], batch[COUNT];
    struct evq_error err = {EVQ_OK, ""};

    for (int policy = 0; policy < EVQ_POLICY_COUNT; policy++) {
        for (int i = 0; i < COUNT; i++) {
            jobs[i] = fixture_job("b/1/regular/quick");
            jobs[i]->step = steps[i];
            jobs[i]->session_ms = sessions[i];
            jobs[i]->fingerprint = prints[print[i]];
            jobs[i]->policy = (enum evq_job_policy)policy;
        }
        fixture_reset(fx);
        for (int i = 0; i < COUNT; i++) {
            single[i] = fixture_submit_job(fx, jobs[i]);
        }
        char *before = fixture_keyspace(fx);
        fixture_audit(fx);
        fixture_reset(fx);
        assert_status_err(evq_queue_submit_batch(fx->queue, (const struct evq_job *const *)jobs,
                                                 COUNT, batch, NULL, &err),
                          EVQ_OK, &err);
        char *after = fixture_keyspace(fx);
        fixture_audit(fx);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(single[i].answer, batch[i].answer);
            assert_int_equal(single[i].state, batch[i].state);
            assert_string_equal(single[i].id, batch[i].id);
            evq_job_free(jobs[i]);
        }
        assert_string_equal(before, after);
        free(before);
        free(after);
    }
}

int main(void)
{
#define FENCE_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        FENCE_TEST(fence_refuses_every_verb_of_an_older_attempt),
        FENCE_TEST(fence_tokens_rise_with_every_claim),
        FENCE_TEST(fence_keeps_the_first_result_of_a_task),
        FENCE_TEST(fence_answers_repeated_calls_as_the_first_time),
        FENCE_TEST(lease_is_kept_by_a_heartbeat_between_two_looks),
        FENCE_TEST(lease_look_that_finds_the_count_moved_waits_a_whole_lease),
        FENCE_TEST(fence_next_attempt_is_not_suspect_for_the_one_before),
        FENCE_TEST(lease_lost_thrice_ends_the_job),
        FENCE_TEST(lease_reclaimed_job_completes_with_its_old_token),
        FENCE_TEST(crash_on_two_workers_runs_alone_next_then_ends),
        FENCE_TEST(fail_incomplete_is_not_charged_and_bounded),
        FENCE_TEST(fail_of_each_kind_ends_as_designed),
        FENCE_TEST(fail_of_the_last_attempt_ends_in_dead),
        FENCE_TEST(cancel_reaches_the_holder_and_outruns_its_release),
        FENCE_TEST(withdraw_ends_only_what_nobody_has_begun),
        FENCE_TEST(adopt_makes_a_forgotten_job_run_again),
        FENCE_TEST(submit_again_while_reclaimed_takes_the_old_token_away),
        FENCE_TEST(complete_many_judges_each_attempt_by_itself),
        FENCE_TEST(submit_batch_answers_as_single_submits_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
