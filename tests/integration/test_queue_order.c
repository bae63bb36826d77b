#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/queue.h"

/* Tests which job is claimed first: bands, fairness between runs, and the policy of the flow. */

static struct evq_submitted submit_with(struct fixture *fx, const char *id,
                                        enum evq_job_policy policy, int band, bool keep,
                                        int64_t session)
{
    struct evq_job *job = fixture_job(id);
    job->policy = policy;
    job->priority = band;
    job->keep = keep;
    job->session_ms = session;
    struct evq_submitted submitted = fixture_submit_job(fx, job);
    evq_job_free(job);
    return submitted;
}

static struct evq_submitted submit_step(struct fixture *fx, const char *run, int64_t step,
                                        enum evq_job_policy policy)
{
    char id[EVQ_JOB_ID_BYTES_MAX];
    (void)snprintf(id, sizeof id, "%s/%lld/regular/quick", run, (long long)step);
    return submit_with(fx, id, policy, 2, false, 1);
}

/* Claims and completes one job. Returns the first letter of its run; *ret_step gets its step. */
static char next(struct fixture *fx, int64_t *ret_step)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *claim = fixture_claim(fx);
    char run = claim->id[0];
    if (ret_step != NULL) {
        *ret_step = claim->job->step;
    }
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    evq_claim_free(claim);
    return run;
}

static void set_meta(struct fixture *fx, const char *field, const char *value)
{
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "meta"), field, value, NULL));
}

static void order_is_by_step_for_all(void **state)
{
    struct fixture *fx = *state;
    static const int64_t steps[] = {500, 30, 1000, 7, 200};
    static const int64_t want[] = {7, 30, 200, 500, 1000};

    for (size_t i = 0; i < 5; i++) {
        (void)submit_step(fx, "a", steps[i], EVQ_POLICY_ALL);
    }
    for (size_t i = 0; i < 5; i++) {
        int64_t step = -1;
        (void)next(fx, &step);
        assert_int_equal(step, want[i]);
    }
}

static void order_takes_bands_strictly_but_every_sixteenth_lowest_first(void **state)
{
    struct fixture *fx = *state;
    char id[EVQ_JOB_ID_BYTES_MAX];

    for (int i = 0; i < 40; i++) {
        (void)snprintf(id, sizeof id, "%c/%d/regular/quick", i % 2 == 0 ? 'h' : 'l', i);
        (void)submit_with(fx, id, EVQ_POLICY_ALL, i % 2 == 0 ? 1 : 3, false, 1);
    }
    set_meta(fx, "served", "0");
    for (int served = 1; served <= 40; served++) {
        char run = next(fx, NULL);
        // There are 20 of each. The high band is empty after its 20 and the one low job at 16 (21
        // were served).
        char want = served <= 21 && served != 16 ? 'h' : 'l';
        if (run != want) {
            fail_msg("claim %d went to %c", served, run);
        }
    }
}

static void order_is_fair_between_runs_and_heeds_weights(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    int count[3] = {0};

    // One run submits very many jobs, then two others follow.
    for (int64_t step = 0; step < 60; step++) {
        (void)submit_step(fx, "a", step, EVQ_POLICY_ALL);
    }
    for (int64_t step = 0; step < 30; step++) {
        (void)submit_step(fx, "b", step, EVQ_POLICY_ALL);
        (void)submit_step(fx, "c", step, EVQ_POLICY_ALL);
    }
    for (int i = 0; i < 30; i++) {
        count[next(fx, NULL) - 'a']++;
    }
    assert_int_equal(count[0], 10);
    assert_int_equal(count[1], 10);
    assert_int_equal(count[2], 10);
    assert_status_err(evq_queue_limit(fx->queue, "weight", "b", 200, &err), EVQ_OK, &err);
    memset(count, 0, sizeof count);
    for (int i = 0; i < 32; i++) {
        count[next(fx, NULL) - 'a']++;
    }
    assert_true(count[1] >= 15 && count[1] <= 17);
    assert_true(count[0] >= 7 && count[0] <= 9);
    fixture_audit(fx);
}

/* A run with two suites is still one run, so it gets no second share. */
static void order_is_fair_between_runs_whatever_their_flows(void **state)
{
    struct fixture *fx = *state;
    int count[2] = {0};
    char id[EVQ_JOB_ID_BYTES_MAX];

    (void)fixture_suite(fx, "deep");
    for (int step = 0; step < 20; step++) {
        (void)submit_step(fx, "a", step, EVQ_POLICY_ALL);
        (void)submit_step(fx, "b", step, EVQ_POLICY_ALL);
        (void)snprintf(id, sizeof id, "b/%d/regular/deep", step);
        (void)submit_with(fx, id, EVQ_POLICY_ALL, 2, false, 1);
        (void)snprintf(id, sizeof id, "b/%d/ema/deep", step);
        (void)submit_with(fx, id, EVQ_POLICY_ALL, 2, false, 1);
    }
    for (int i = 0; i < 20; i++) {
        count[next(fx, NULL) - 'a']++;
    }
    assert_int_equal(count[0], 10);
    assert_int_equal(count[1], 10);
}

static void order_gives_no_credit_for_idleness(void **state)
{
    struct fixture *fx = *state;
    int count[2] = {0};

    for (int64_t step = 0; step < 40; step++) {
        (void)submit_step(fx, "a", step, EVQ_POLICY_ALL);
    }
    for (int i = 0; i < 20; i++) {
        assert_int_equal(next(fx, NULL), 'a');
    }
    for (int64_t step = 0; step < 20; step++) {
        (void)submit_step(fx, "b", step, EVQ_POLICY_ALL);
    }
    for (int i = 0; i < 20; i++) {
        count[next(fx, NULL) - 'a']++;
    }
    assert_int_equal(count[0], 10);
    assert_int_equal(count[1], 10);
}

static void order_skips_older_queued_steps_under_latest(void **state)
{
    struct fixture *fx = *state;
    int64_t step = -1;

    (void)submit_step(fx, "a", 100, EVQ_POLICY_LATEST);
    (void)submit_with(fx, "a/200/regular/quick", EVQ_POLICY_LATEST, 2, true, 1);
    (void)submit_step(fx, "a", 300, EVQ_POLICY_LATEST);
    fixture_assert_state(fx, "a/100/regular/quick", "skipped");
    fixture_assert_state(fx, "a/200/regular/quick", "queued"); // This step is kept.
    assert_string_equal(fixture_job_field(fx, "a/100/regular/quick", "reason").text,
                        "superseded by step 200");
    assert_int_equal(submit_step(fx, "a", 250, EVQ_POLICY_LATEST).answer, EVQ_SUBMIT_SKIPPED);
    // A newer session counts as newer even with a lower step. A late call of the old session is
    // stale.
    assert_int_equal(submit_with(fx, "a/50/regular/quick", EVQ_POLICY_LATEST, 2, false, 2).answer,
                     EVQ_SUBMIT_QUEUED);
    fixture_assert_state(fx, "a/300/regular/quick", "skipped");
    assert_int_equal(submit_step(fx, "a", 900, EVQ_POLICY_LATEST).answer, EVQ_SUBMIT_SKIPPED);
    assert_int_equal(fixture_ends(fx, "skipped"), 4);
    (void)next(fx, &step);
    assert_int_equal(step, 50);
    (void)next(fx, &step);
    assert_int_equal(step, 200);
    fixture_claim_none(fx);
    fixture_audit(fx);
}

static void order_leaves_the_running_one_alone_under_latest(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};

    (void)submit_step(fx, "a", 100, EVQ_POLICY_LATEST);
    struct evq_claim *claim = fixture_claim(fx);
    (void)submit_step(fx, "a", 200, EVQ_POLICY_LATEST);
    fixture_assert_state(fx, "a/100/regular/quick", "running");
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    evq_claim_free(claim);
    fixture_assert_state(fx, "a/200/regular/quick", "queued");
}

static void order_supersedes_in_slices(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    int calls = 0;

    for (int64_t step = 1; step <= 350; step++) {
        (void)submit_step(fx, "a", step, EVQ_POLICY_ALL);
    }
    (void)submit_step(fx, "a", 1000, EVQ_POLICY_LATEST);
    assert_int_equal(fixture_ends(fx, "skipped"), 100);
    while (fixture_ends(fx, "skipped") < 350) {
        assert_status_err(evq_queue_heartbeat(fx->queue, "w", "{}", 15000, NULL, 0, NULL, &err),
                          EVQ_OK, &err);
        assert_true(++calls <= 4);
    }
    int64_t step = -1;
    (void)next(fx, &step);
    assert_int_equal(step, 1000);
    fixture_claim_none(fx);
    fixture_audit(fx);
}

/* Computes which waiting step backfill must take, by checking all of them. */
static int64_t backfill_choice(const bool *waiting, const bool *taken, int64_t steps)
{
    int64_t newest = -1;
    int64_t top = -1;
    for (int64_t i = 0; i < steps; i++) {
        newest = waiting[i] ? i : newest;
        top = taken[i] ? i : top;
    }
    if (newest > top) {
        return newest;
    }
    int64_t best_width = -1;
    int64_t choice = -1;
    for (int64_t low = 0; low < steps; low++) {
        if (low > 0 && !taken[low]) {
            continue;
        }
        int64_t high = low + 1;
        while (high < steps && !taken[high]) {
            high++;
        }
        int64_t middle = low + (high - low) / 2;
        int64_t nearest = -1;
        for (int64_t i = low; i <= high && i < steps; i++) {
            if (waiting[i] && (nearest < 0 || llabs(i - middle) < llabs(nearest - middle))) {
                nearest = i;
            }
        }
        // Among equal gaps, the last one counts, as in the order of the set.
        if (nearest >= 0 && high - low >= best_width) {
            best_width = high - low;
            choice = nearest;
        }
    }
    return choice;
}

static void order_halves_the_widest_gap_under_backfill(void **state)
{
    enum { STEPS = 400 };
    struct fixture *fx = *state;
    bool waiting[STEPS] = {false};
    bool taken[STEPS] = {false};
    int64_t submitted = 1;
    int older = 0;

    // The training continues while jobs are claimed: three submits for each claim, then only
    // claims.
    for (int turn = 0; turn < 500; turn++) {
        for (int i = 0; i < 3 && submitted < STEPS; i++, submitted++) {
            (void)submit_step(fx, "a", submitted, EVQ_POLICY_BACKFILL);
            waiting[submitted] = true;
        }
        int64_t want = backfill_choice(waiting, taken, STEPS);
        if (want < 0) {
            break;
        }
        int64_t step = -1;
        (void)next(fx, &step);
        // Gaps of the same width may come in any order, but the choice must be as good as the best
        // one.
        if (step != want) {
            int64_t low = step;
            int64_t high = step;
            while (low > 0 && !taken[low]) {
                low--;
            }
            while (high < STEPS && !taken[high]) {
                high++;
            }
            int64_t want_low = want;
            int64_t want_high = want;
            while (want_low > 0 && !taken[want_low]) {
                want_low--;
            }
            while (want_high < STEPS && !taken[want_high]) {
                want_high++;
            }
            if (high - low != want_high - want_low) {
                fail_msg("turn %d: took %lld (gap %lld), the best is %lld (gap %lld)", turn,
                         (long long)step, (long long)(high - low), (long long)want,
                         (long long)(want_high - want_low));
            }
        }
        older += step < submitted - 1;
        waiting[step] = false;
        taken[step] = true;
    }
    for (int64_t i = 1; i < STEPS; i++) {
        assert_true(taken[i]);
    }
    assert_true(older > 200);
    fixture_audit(fx);
}

static void order_keeps_caps_of_runs_and_suites(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *claims[3];

    assert_status_err(evq_queue_limit(fx->queue, "cap_run", "a", 2, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_limit(fx->queue, "cap_suite", "quick", 3, &err), EVQ_OK, &err);
    for (int64_t step = 0; step < 5; step++) {
        (void)submit_step(fx, "a", step, EVQ_POLICY_ALL);
        (void)submit_step(fx, "b", step, EVQ_POLICY_ALL);
    }
    int of_a = 0;
    for (int i = 0; i < 3; i++) {
        claims[i] = fixture_claim(fx);
        of_a += claims[i]->id[0] == 'a';
    }
    assert_true(of_a <= 2);
    fixture_claim_none(fx); // This is the cap of the suite.
    assert_status_err(evq_queue_limit(fx->queue, "cap_suite", "quick", 0, &err), EVQ_OK, &err);
    for (int i = 0; i < 4; i++) { // These are all five of b and two of a.
        struct evq_claim *claim = fixture_claim(fx);
        of_a += claim->id[0] == 'a';
        evq_claim_free(claim);
    }
    fixture_claim_none(fx);
    assert_int_equal(of_a, 2);
    fixture_audit(fx);
    for (int i = 0; i < 3; i++) {
        if (claims[i]->id[0] == 'a') {
            assert_status_err(evq_queue_complete(fx->queue, claims[i]->id, claims[i]->token, &err),
                              EVQ_OK, &err);
            struct evq_claim *claim = fixture_claim(fx); // The flow has returned.
            assert_int_equal(claim->id[0], 'a');
            evq_claim_free(claim);
        }
        evq_claim_free(claims[i]);
    }
    fixture_audit(fx);
}

/* Otherwise the attempts would be charged, and held by a worker that does not know about them. */
static void claim_tells_what_it_took_before_it_met_a_key_in_the_way(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *claims[4] = {NULL};
    struct evq_claimed claimed = {0};
    struct evq_claim_request request = {.worker = fx->worker,
                                        .request = "some",
                                        .lease_ms = 15000,
                                        .claims_max = 4,
                                        .classes = fx->classes,
                                        .class_count = fx->class_count};

    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "s/1/regular/quick");
    evq_reply_free( // These come from the next band.
        fixture_call(fx->raw, "SET", fixture_key(fx, "ready:1:3"), "rubbish", NULL));
    assert_status_err(evq_queue_claim(fx->queue, &request, claims, &claimed, &err), EVQ_OK, &err);
    assert_int_equal(claimed.count, 2);
    request.request = "more";
    assert_status(evq_queue_claim(fx->queue, &request, claims + 2, &claimed, &err), EVQ_E_CORRUPT);
    assert_holds(err.message, "the key evalq:{main}:ready:1:3 is a string");
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, "ready:1:3"), NULL));
    for (int i = 0; i < 2; i++) {
        assert_status(evq_queue_complete(fx->queue, claims[i]->id, claims[i]->token, NULL), EVQ_OK);
        evq_claim_free(claims[i]);
    }
    fixture_audit(fx);
}

int main(void)
{
#define ORDER_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        ORDER_TEST(order_is_by_step_for_all),
        ORDER_TEST(order_takes_bands_strictly_but_every_sixteenth_lowest_first),
        ORDER_TEST(order_is_fair_between_runs_and_heeds_weights),
        ORDER_TEST(order_is_fair_between_runs_whatever_their_flows),
        ORDER_TEST(order_gives_no_credit_for_idleness),
        ORDER_TEST(order_skips_older_queued_steps_under_latest),
        ORDER_TEST(order_leaves_the_running_one_alone_under_latest),
        ORDER_TEST(order_supersedes_in_slices),
        ORDER_TEST(order_halves_the_widest_gap_under_backfill),
        ORDER_TEST(order_keeps_caps_of_runs_and_suites),
        ORDER_TEST(claim_tells_what_it_took_before_it_met_a_key_in_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
