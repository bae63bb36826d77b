#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/keyspace.h"
#include "tests/fixture/random.h"

/* Tests the preview of the next claim: it equals the real claim, and writes nothing. */

#define JOBS 400

static const char *const runs[] = {"a", "b", "c", "d"};
static const char *const suites[] = {"quick", "deep", "slow"};

/* Returns the id of the preview; "" for none. */
static void look(struct fixture *fx, char ret_id[EVQ_JOB_ID_BYTES_MAX])
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_next_job peeked;
    char id[EVQ_JOB_ID_BYTES_MAX];

    assert_status_err(evq_queue_next_job(fx->queue, fx->classes, fx->class_count, &peeked, &err),
                      EVQ_OK, &err);
    ret_id[0] = '\0';
    if (peeked.job != NULL) {
        const struct evq_job *job = peeked.job;
        (void)snprintf(ret_id, EVQ_JOB_ID_BYTES_MAX, "%s", peeked.id);
        (void)snprintf(id, sizeof id, "%s/%lld/%s/%s", job->run, (long long)job->step, job->variant,
                       job->suite);
        assert_int_equal(strncmp(id, ret_id, strlen(id)), 0); // A generation may follow.
    }
    evq_job_free(peeked.job);
}

/* Returns the same, and asserts that the keyspace has not changed. */
static void peek(struct fixture *fx, char ret_id[EVQ_JOB_ID_BYTES_MAX])
{
    char *before = fixture_keyspace(fx);
    look(fx, ret_id);
    char *after = fixture_keyspace(fx);
    assert_string_equal(after, before);
    free(before);
    free(after);
}

static void submit_some(struct fixture *fx, uint64_t *seed, int count)
{
    char id[EVQ_JOB_ID_BYTES_MAX];

    for (int i = 0; i < count; i++) {
        const uint64_t run = fixture_random(seed) % 4;
        (void)snprintf(id, sizeof id, "%s/%llu/regular/%s", runs[run],
                       (unsigned long long)(fixture_random(seed) % 1000),
                       suites[fixture_random(seed) % 3]);
        struct evq_job *job = fixture_job(id);
        // Each run has one policy, so each keeps its own order.
        job->policy = run == 0   ? EVQ_POLICY_LATEST
                      : run == 1 ? EVQ_POLICY_BACKFILL
                                 : EVQ_POLICY_ALL;
        job->priority = (int32_t)(fixture_random(seed) % 4);
        (void)fixture_submit_job(fx, job);
        evq_job_free(job);
    }
}

static void peek_agrees_with_the_next_claim(void **state)
{
    struct fixture *fx = *state;
    uint64_t seed = fixture_seed();
    struct evq_error err = {EVQ_OK, ""};
    char id[EVQ_JOB_ID_BYTES_MAX];
    int claimed = 0;
    int untold = 0;

    (void)fixture_suite(fx, "deep");
    (void)fixture_suite(fx, "slow");
    assert_status_err(evq_queue_limit(fx->queue, "weight", "c", 300, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_limit(fx->queue, "cap_run", "d", 2, &err), EVQ_OK, &err);
    submit_some(fx, &seed, JOBS / 4);
    for (int i = 0; i < JOBS; i++) {
        submit_some(fx, &seed, (int)(fixture_random(&seed) % 2));
        if (i % 32 == 0) { // The check reads every key.
            peek(fx, id);
        } else {
            look(fx, id);
        }
        struct evq_claim *claim = fixture_claim_try(fx);
        if (claim == NULL) {
            assert_string_equal(id, "");
            continue;
        }
        claimed++;
        // This happens only if a gap must be corrected before the order is known.
        if (id[0] == '\0') {
            assert_int_equal(claim->id[0], 'b');
            untold++;
        } else if (strcmp(id, claim->id) != 0) {
            fail_msg("claim %d gave %s where %s was told", claimed, claim->id, id);
        }
        // The other jobs continue to run, and count for the cap.
        if (fixture_random(&seed) % 4 > 0) {
            assert_status_err(evq_queue_complete(fx->queue, claim->id, claim->token, &err), EVQ_OK,
                              &err);
        }
        evq_claim_free(claim);
    }
    print_message("%d claims, %d of them untold\n", claimed, untold);
    assert_true(claimed > JOBS / 4);
    assert_true(untold * 4 < claimed);
}

static void peek_tells_none_where_a_claim_gives_none(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    char id[EVQ_JOB_ID_BYTES_MAX];
    static const enum evq_pause_kind kinds[] = {EVQ_PAUSE_QUEUE, EVQ_PAUSE_SUITE, EVQ_PAUSE_RUN};
    static const char *const names[] = {"", "quick", "a"};

    peek(fx, id);
    assert_string_equal(id, "");
    (void)fixture_submit(fx, "a/1/regular/quick");
    for (size_t i = 0; i < 3; i++) {
        assert_status_err(evq_queue_pause(fx->queue, kinds[i], names[i], true, &err), EVQ_OK, &err);
        peek(fx, id);
        assert_string_equal(id, "");
        fixture_claim_none(fx);
        assert_status_err(evq_queue_pause(fx->queue, kinds[i], names[i], false, &err), EVQ_OK,
                          &err);
        peek(fx, id);
        assert_string_equal(id, "a/1/regular/quick");
    }
    evq_claim_free(fixture_claim(fx));
    peek(fx, id);
    assert_string_equal(id, "");
}

static void peek_tells_how_many_attempts_run(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_next_job peeked;

    (void)fixture_submit(fx, "a/1/regular/quick");
    (void)fixture_submit(fx, "a/2/regular/quick");
    (void)fixture_submit(fx, "a/3/regular/quick");
    evq_claim_free(fixture_claim(fx));
    evq_claim_free(fixture_claim_as(fx, "another"));
    assert_status_err(evq_queue_next_job(fx->queue, fx->classes, fx->class_count, &peeked, &err),
                      EVQ_OK, &err);
    assert_string_equal(peeked.id, "a/3/regular/quick");
    assert_int_equal(peeked.running, 2);
    evq_job_free(peeked.job);
}

/* Only a claim sets garbage aside. The preview neither fails nor changes it. */
static void peek_tells_none_of_rubbish(void **state)
{
    struct fixture *fx = *state;
    char id[EVQ_JOB_ID_BYTES_MAX];

    (void)fixture_submit(fx, "a/1/regular/quick");
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "job:a/1/regular/quick"),
                                "priority", "x", NULL));
    peek(fx, id);
    assert_string_equal(id, "");
    evq_reply_free(fixture_call(fx->raw, "DEL", fixture_key(fx, "job:a/1/regular/quick"), NULL));
    evq_reply_free(
        fixture_call(fx->raw, "SET", fixture_key(fx, "job:a/1/regular/quick"), "x", NULL));
    peek(fx, id);
    assert_string_equal(id, "");
}

static void peek_refuses_wrong_arguments(void **state)
{
    struct fixture *fx = *state;
    const char *prefix = evq_queue_prefix(fx->queue);

    fixture_call_fails(EVQ_E_INVALID, fx->raw, "FCALL_RO", "evalq_v1_peek", "1", prefix, NULL);
    fixture_call_fails(EVQ_E_INVALID, fx->raw, "FCALL_RO", "evalq_v1_peek", "1", prefix, "2", "1",
                       NULL);
    fixture_call_fails(EVQ_E_INVALID, fx->raw, "FCALL_RO", "evalq_v1_peek", "1", prefix, "1", "65",
                       NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(peek_agrees_with_the_next_claim, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(peek_tells_none_where_a_claim_gives_none, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(peek_tells_how_many_attempts_run, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(peek_tells_none_of_rubbish, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(peek_refuses_wrong_arguments, fixture_setup,
                                        fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
