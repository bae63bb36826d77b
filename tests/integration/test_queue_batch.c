#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/keyspace.h"
#include "tests/fixture/random.h"

/*
 * Tests calls with many submits. Shared data are read and written once, and this must not be
 * visible from outside.
 */

enum { BATCH = 40, ROUNDS = 24 };

static uint64_t random_state;

static unsigned draw(unsigned below)
{
    return (unsigned)(fixture_random(&random_state) % below);
}

/*
 * Draws mostly what a training submits, which is rising steps of one run and two suites, and now
 * and then something else.
 */
static struct evq_job *job_draw(int at)
{
    static const char *const prints[] = {"", "11111111111111111111111111111111",
                                         "22222222222222222222222222222222"};
    char id[EVQ_JOB_ID_BYTES_MAX];
    int step = draw(6) == 0 ? (int)draw(BATCH) : at / 2;

    (void)snprintf(id, sizeof id, "%s/%d/%s/%s", draw(8) == 0 ? "other" : "run", step,
                   draw(12) == 0 ? "ema" : "regular", at % 2 == 0 ? "quick" : "rare");
    struct evq_job *job = fixture_job(id);
    job->fingerprint = prints[draw(10) < 8 ? 1 : draw(3)];
    job->policy = draw(16) == 0 ? (enum evq_job_policy)draw(EVQ_POLICY_COUNT) : EVQ_POLICY_ALL;
    job->session_ms = draw(20) == 0 ? 2 : 1;
    job->keep = draw(12) == 0;
    job->priority = draw(16) == 0 ? 1 : 2;
    return job;
}

/* Makes the odd steps of a suite not due. */
static void suite_rare(struct fixture *fx)
{
    (void)fixture_suite(fx, "rare");
    evq_reply_free(
        fixture_call(fx->raw, "HSET", fixture_key(fx, "class"), "every:rare", "2", NULL));
}

/* Submits one by one, or in calls of `most`. */
static char *submit_all(struct fixture *fx, struct evq_job *const *jobs, size_t most,
                        struct evq_submitted *ret_submitted)
{
    struct evq_error err = {EVQ_OK, ""};

    fixture_reset(fx);
    suite_rare(fx);
    for (size_t at = 0; at < BATCH; at += most) {
        if (most == 1) {
            ret_submitted[at] = fixture_submit_job(fx, jobs[at]);
        } else {
            assert_status_err(evq_queue_submit_batch(fx->queue,
                                                     (const struct evq_job *const *)jobs + at, most,
                                                     ret_submitted + at, NULL, &err),
                              EVQ_OK, &err);
        }
    }
    fixture_audit(fx);
    return fixture_keyspace(fx);
}

static void batch_leaves_what_single_submits_leave(void **state)
{
    struct fixture *fx = *state;
    struct evq_job *jobs[BATCH];
    struct evq_submitted single[BATCH], batch[BATCH];
    int queued = 0;

    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BATCH; i++) {
            jobs[i] = job_draw(i);
        }
        char *before = submit_all(fx, jobs, 1, single);
        char *after = submit_all(fx, jobs, round % 2 == 0 ? BATCH : BATCH / 4, batch);
        for (int i = 0; i < BATCH; i++) {
            queued += single[i].answer == EVQ_SUBMIT_QUEUED;
            assert_int_equal(single[i].answer, batch[i].answer);
            assert_int_equal(single[i].state, batch[i].state);
            assert_string_equal(single[i].id, batch[i].id);
            assert_string_equal(single[i].reason, batch[i].reason);
            evq_job_free(jobs[i]);
        }
        assert_string_equal(before, after);
        free(before);
        free(after);
    }
    // There are plain submits and others.
    assert_true(queued > 2 * ROUNDS && queued < BATCH * ROUNDS);
}

/* Submits the jobs of these steps to the flow r/regular/quick; counts those that were queued. */
static int submit_steps(struct fixture *fx, const int *steps, size_t count,
                        enum evq_status *statuses)
{
    struct evq_job *jobs[8] = {NULL};
    struct evq_submitted submitted[8];
    char id[EVQ_JOB_ID_BYTES_MAX];
    int queued = 0;

    for (size_t i = 0; i < count; i++) {
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", steps[i]);
        jobs[i] = fixture_job(id);
    }
    assert_status(evq_queue_submit_batch(fx->queue, (const struct evq_job *const *)jobs, count,
                                         submitted, statuses, NULL),
                  EVQ_OK);
    for (size_t i = 0; i < count; i++) {
        queued += statuses[i] == EVQ_OK && submitted[i].answer == EVQ_SUBMIT_QUEUED;
        evq_job_free(jobs[i]);
    }
    return queued;
}

/*
 * One submit of a call fails. Those before and after it are complete, and it leaves nothing behind.
 */
static void batch_is_whole_where_one_of_it_fails(void **state)
{
    struct fixture *fx = *state;
    static const int steps[] = {10, 20, 30, 40, 50};
    static const char *const spoiled[] = {"job:r/30/regular/quick", "open:r/regular/quick"};
    static const int queued[] = {4, 0};
    enum evq_status statuses[8];

    for (int i = 0; i < 2; i++) {
        fixture_reset(fx);
        evq_reply_free(fixture_call(fx->raw, "SET", fixture_key(fx, spoiled[i]), "rubbish", NULL));
        assert_int_equal(submit_steps(fx, steps, 5, statuses), queued[i]);
        assert_int_not_equal(statuses[2], EVQ_OK);
        evq_reply_free(fixture_call(fx->raw, "DEL", fixture_key(fx, spoiled[i]), NULL));
        fixture_audit(fx);
        assert_int_equal(submit_steps(fx, steps, 5, statuses), 5 - queued[i]);
        fixture_audit(fx);
        for (int at = 0; at < 5; at++) {
            char id[EVQ_JOB_ID_BYTES_MAX];
            struct evq_claim *claim = fixture_claim(fx);
            (void)snprintf(id, sizeof id, "r/%d/regular/quick", steps[at]);
            assert_string_equal(claim->id, id);
            evq_claim_free(claim);
        }
    }
}

/*
 * Step 0 runs when it is submitted again, before new steps of its flow. The running job does not
 * change.
 */
static void batch_leaves_a_running_first_step_alone(void **state)
{
    struct fixture *fx = *state;
    static const int again[] = {0, 1, 2};
    enum evq_status statuses[8];

    (void)fixture_submit(fx, "r/0/regular/quick");
    struct evq_claim *claim = fixture_claim(fx);
    assert_int_equal(submit_steps(fx, again, 3, statuses), 2);
    assert_status(statuses[0], EVQ_OK); // This is a duplicate.
    fixture_audit(fx);
    fixture_assert_state(fx, claim->id, "running");
    fixture_publish(fx, claim, "t", 0.5);
    evq_claim_free(claim);
}

/* A class that the same call has begun to use cannot be given to another suite. */
static void batch_keeps_the_class_that_it_uses(void **state)
{
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;
    enum evq_status statuses[2];
    struct evq_submitted submitted[2];
    char id[EVQ_JOB_ID_BYTES_MAX];

    for (int i = 0; i < 63; i++) { // "quick" is the first class.
        (void)snprintf(id, sizeof id, "r/1/regular/unknown%d", i);
        (void)fixture_submit(fx, id);
    }
    assert_status(evq_queue_cancel(fx->queue, "r/1/regular/unknown7", "", &after, NULL), EVQ_OK);
    struct evq_job *jobs[] = {fixture_job("r/2/regular/unknown7"), fixture_job("r/2/regular/more")};
    assert_status(evq_queue_submit_batch(fx->queue, (const struct evq_job *const *)jobs, 2,
                                         submitted, statuses, NULL),
                  EVQ_OK);
    assert_status(statuses[0], EVQ_OK);
    assert_status(statuses[1], EVQ_E_INVALID);
    evq_job_free(jobs[0]);
    evq_job_free(jobs[1]);
    fixture_audit(fx);
}

static int seed(void **state)
{
    (void)state;
    random_state = fixture_seed();
    return 0;
}

int main(void)
{
#define BATCH_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        BATCH_TEST(batch_leaves_what_single_submits_leave),
        BATCH_TEST(batch_is_whole_where_one_of_it_fails),
        BATCH_TEST(batch_leaves_a_running_first_step_alone),
        BATCH_TEST(batch_keeps_the_class_that_it_uses),
    };
    return cmocka_run_group_tests(tests, seed, NULL);
}
