#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/fixture/queue.h"

/* A claim that names the jobs of the checkpoint that a model server has loaded. */

static const char *const suites[] = {"quick", "chat", "code", "math", "safety"};
enum { SUITES = sizeof suites / sizeof suites[0] };

static int setup(void **state)
{
    const int result = fixture_setup(state);

    for (size_t i = 1; i < SUITES && result == 0; i++) {
        (void)fixture_suite(*state, suites[i]);
    }
    return result;
}

static void submit(struct fixture *fx, const char *run, int step, size_t suite_count,
                   enum evq_job_policy policy, int band)
{
    char id[EVQ_JOB_ID_BYTES_MAX];

    for (size_t i = 0; i < suite_count; i++) {
        (void)snprintf(id, sizeof id, "%s/%d/regular/%s", run, step, suites[i]);
        struct evq_job *job = fixture_job(id);
        job->policy = policy;
        job->priority = band;
        (void)fixture_submit_job(fx, job);
        evq_job_free(job);
    }
}

/* Claims and completes a job, and prefers those of the checkpoint "RUN/STEP" (NULL: no preference).
 * Returns "RUN/STEP" of the claimed job, "" if there was none. */
static const char *next(struct fixture *fx, const char *loaded)
{
    static char found[EVQ_JOB_ID_BYTES_MAX];
    char ids[EVQ_QUEUE_PREFERRED_MAX][EVQ_JOB_ID_BYTES_MAX];
    char name[32];
    struct evq_error err = {EVQ_OK, ""};
    struct evq_claim *claim = NULL;
    struct evq_claimed claimed;

    for (size_t i = 0; i < SUITES && loaded != NULL; i++) {
        (void)snprintf(ids[i], sizeof ids[i], "%s/regular/%s", loaded, suites[i]);
    }
    (void)snprintf(name, sizeof name, "p%llu", (unsigned long long)++fx->request);
    const struct evq_claim_request request = {.worker = fx->worker,
                                              .request = name,
                                              .lease_ms = 15000,
                                              .claims_max = 1,
                                              .classes = fx->classes,
                                              .class_count = fx->class_count,
                                              .preferred = ids,
                                              .preferred_count = loaded != NULL ? SUITES : 0};
    assert_status_err(evq_queue_claim(fx->queue, &request, &claim, &claimed, &err), EVQ_OK, &err);
    if (claimed.count == 0) {
        return "";
    }
    (void)snprintf(found, sizeof found, "%s/%lld", claim->job->run, (long long)claim->job->step);
    assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK, &err);
    evq_claim_free(claim);
    return found;
}

/* The cost of a job of every suite, which is what a run pays for it. */
static void cost_set(struct fixture *fx, const char *seconds)
{
    for (size_t i = 0; i < SUITES; i++) {
        evq_reply_free(
            fixture_call(fx->raw, "HSET", fixture_key(fx, "cost"), suites[i], seconds, NULL));
    }
}

static void claim_takes_the_preferred_jobs_first(void **state)
{
    struct fixture *fx = *state;

    for (int step = 1; step <= 3; step++) {
        submit(fx, "a", step, 3, EVQ_POLICY_ALL, 2);
    }
    for (int i = 0; i < 3; i++) {
        assert_string_equal(next(fx, "a/2"), "a/2");
    }
    assert_string_equal(next(fx, NULL), "a/1"); // Without a preference it goes by flow and step.
    assert_string_equal(next(fx, NULL), "a/3");
    assert_string_equal(next(fx, "a/3"), "a/3");
    assert_string_equal(next(fx, "a/9"), "a/1"); // There is no such job.
    fixture_audit(fx);
}

/* A preferred run may be 600 s of evaluation ahead, and no more. The other run then catches up. */
static void claim_prefers_no_run_for_long(void **state)
{
    struct fixture *fx = *state;
    static const char *const want[] = {"a/1", "a/1", "a/1", "b/1", "c/1", "a/1"};

    submit(fx, "a", 1, 5, EVQ_POLICY_ALL, 2);
    submit(fx, "b", 1, 2, EVQ_POLICY_ALL, 2);
    for (int i = 0; i < 6; i++) {
        if (i == 3) { // A run that comes now does not wait for what `a` took out of turn.
            submit(fx, "c", 1, 2, EVQ_POLICY_ALL, 2);
        }
        cost_set(fx, "250"); // Each end of a job changes it.
        const char *got = next(fx, "a/1");
        if (strcmp(got, want[i]) != 0) {
            fail_msg("claim %d went to %s", i, got);
        }
    }
    fixture_audit(fx);
}

static void claim_prefers_within_a_band_and_within_what_is_allowed(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};

    submit(fx, "a", 1, 2, EVQ_POLICY_ALL, 2);
    submit(fx, "b", 1, 1, EVQ_POLICY_ALL, 1);
    assert_string_equal(next(fx, "a/1"), "b/1");
    submit(fx, "b", 2, 1, EVQ_POLICY_ALL, 2);
    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_RUN, "a", true, &err), EVQ_OK, &err);
    assert_string_equal(next(fx, "a/1"), "b/2");
    assert_string_equal(next(fx, "a/1"), "");
    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_RUN, "a", false, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "chat", true, &err), EVQ_OK,
                      &err);
    submit(fx, "b", 3, 1, EVQ_POLICY_ALL, 2);
    assert_string_equal(next(fx, "a/1"), "a/1");
    assert_string_equal(next(fx, "a/1"), "b/3");
    assert_string_equal(next(fx, "a/1"), "");
    fixture_audit(fx);
}

static void claim_prefers_as_the_policy_allows(void **state)
{
    struct fixture *fx = *state;

    for (int step = 1; step <= 9; step++) {
        submit(fx, "back", step, 1, EVQ_POLICY_BACKFILL, 2);
    }
    assert_string_equal(next(fx, "back/3"), "back/3"); // Now 3 is the newest that was taken,
    assert_string_equal(next(fx, NULL), "back/9");
    assert_string_equal(next(fx, NULL), "back/6"); // and the gap from 3 to 9 is the widest.
    fixture_audit(fx);
    fixture_reset(fx);
    struct evq_job *job = fixture_job("new/1/regular/quick");
    job->policy = EVQ_POLICY_LATEST;
    job->keep = true;
    (void)fixture_submit_job(fx, job);
    evq_job_free(job);
    submit(fx, "new", 2, 1, EVQ_POLICY_LATEST, 2);
    assert_string_equal(next(fx, "new/1"), "new/2");
    assert_string_equal(next(fx, "new/1"), "new/1");
    fixture_audit(fx);
}

int main(void)
{
#define PREFER_TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        PREFER_TEST(claim_takes_the_preferred_jobs_first),
        PREFER_TEST(claim_prefers_no_run_for_long),
        PREFER_TEST(claim_prefers_within_a_band_and_within_what_is_allowed),
        PREFER_TEST(claim_prefers_as_the_policy_allows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
