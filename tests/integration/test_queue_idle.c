#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "shared/base/clock.h"
#include "tests/fixture/queue.h"

/* Tests idle workers, and the clients that ask for them. */

static uint64_t ask(struct fixture *fx, const char *needs, const char *first, const char *second)
{
    const char *const suites[] = {first, second};
    struct evq_error err = {EVQ_OK, ""};
    uint64_t found = UINT64_MAX;

    assert_status_err(evq_queue_free_workers_take(fx->queue, "r", needs, suites,
                                                  second != NULL ? 2 : 1, &found, &err),
                      EVQ_OK, &err);
    return found;
}

/* Claims up to claims_max jobs of all classes; returns how many it got. */
static uint32_t claim_many(struct fixture *fx, uint32_t claims_max)
{
    char request[32];
    (void)snprintf(request, sizeof(request), "many-%llu", (unsigned long long)++fx->request);
    const struct evq_claim_request words = {.worker = fx->worker,
                                            .request = request,
                                            .lease_ms = 15000,
                                            .claims_max = claims_max,
                                            .classes = fx->classes,
                                            .class_count = fx->class_count};
    struct evq_claim *claims[64];
    struct evq_claimed claimed;
    struct evq_error err = {EVQ_OK, ""};

    assert_status_err(evq_queue_claim(fx->queue, &words, claims, &claimed, &err), EVQ_OK, &err);
    for (uint32_t i = 0; i < claimed.count; i++) {
        evq_claim_free(claims[i]);
    }
    return claimed.count;
}

static void mark_is_left_only_for_those_who_asked(void **state)
{
    struct fixture *fx = *state;

    fixture_claim_none(fx);
    assert_int_equal(fixture_call_integer(fx->raw, "EXISTS", fixture_key(fx, "idle"), NULL), 0);
    assert_int_equal(ask(fx, NULL, "quick", NULL), 0);
    fixture_claim_none(fx);
    assert_int_equal(fixture_call_integer(fx->raw, "EXISTS", fixture_key(fx, "idle"), NULL), 1);
    assert_int_equal(ask(fx, NULL, "quick", NULL), 1);
    fixture_audit(fx);
}

/* A blocked worker must not have to wait for its time-out to report that it is idle. */
static void first_question_wakes_who_is_blocked(void **state)
{
    struct fixture *fx = *state;
    char wake[32];

    (void)snprintf(wake, sizeof(wake), "wake:%u", (unsigned)fx->classes[0]);
    evq_reply_free(fixture_call(fx->raw, "DEL", fixture_key(fx, wake), NULL));
    (void)ask(fx, NULL, "quick", NULL);
    assert_int_equal(fixture_call_integer(fx->raw, "EXISTS", fixture_key(fx, wake), NULL), 1);
    evq_reply_free(fixture_call(fx->raw, "DEL", fixture_key(fx, wake), NULL));
    (void)ask(fx, NULL, "quick", NULL);
    assert_int_equal(fixture_call_integer(fx->raw, "EXISTS", fixture_key(fx, wake), NULL), 0);
}

static void free_worker_is_given_to_one_asker(void **state)
{
    struct fixture *fx = *state;

    (void)ask(fx, NULL, "quick", NULL);
    fixture_claim_none(fx);
    assert_int_equal(ask(fx, NULL, "quick", NULL), 1);
    assert_int_equal(ask(fx, NULL, "quick", NULL), 0);
    fixture_claim_none(fx); // It is still idle.
    assert_int_equal(ask(fx, NULL, "quick", NULL), 1);
}

static void worker_that_took_a_job_is_not_free(void **state)
{
    struct fixture *fx = *state;

    (void)ask(fx, NULL, "quick", NULL);
    fixture_claim_none(fx);
    (void)fixture_submit(fx, "r/1/regular/quick");
    assert_int_equal(ask(fx, NULL, "quick", NULL), 0); // It will claim this job.
    assert_int_equal(claim_many(fx, 1), 1);
    assert_int_equal(ask(fx, NULL, "quick", NULL), 0);
    (void)fixture_submit(fx, "r/2/regular/quick");
    assert_int_equal(claim_many(fx, 2), 1); // One of two slots is idle.
    assert_int_equal(ask(fx, NULL, "quick", NULL), 1);
}

static void worker_that_left_is_not_free(void **state)
{
    struct fixture *fx = *state;

    (void)ask(fx, NULL, "quick", NULL);
    fixture_claim_none(fx);
    assert_status(evq_queue_worker_leave(fx->queue, fx->worker, NULL), EVQ_OK);
    assert_int_equal(ask(fx, NULL, "quick", NULL), 0);
}

static void suites_are_answered_each_for_itself(void **state)
{
    struct fixture *fx = *state;

    (void)ask(fx, NULL, "quick", "other");
    fixture_claim_none(fx);
    assert_int_equal(ask(fx, NULL, "other", "quick"), 2);
    (void)fixture_suite(fx, "other");
    fixture_claim_none(fx);
    assert_int_equal(ask(fx, NULL, "other", "quick"), 3);
}

/* A submit with its own needs makes a class. Workers learn of it, and claim it if they fit. */
static void needs_of_ones_own_are_a_class_of_their_own(void **state)
{
    struct fixture *fx = *state;
    struct evq_class classes[EVQ_QUEUE_CLASSES_MAX];
    uint32_t count = 0;
    int64_t version = 0;

    (void)ask(fx, "gpus=1", "quick", NULL);
    assert_status(evq_queue_classes(fx->queue, classes, &count, &version, NULL), EVQ_OK);
    assert_int_equal(count, 2);
    fixture_claim_none(fx);
    assert_int_equal(ask(fx, "gpus=1", "quick", NULL), 0); // The suite has another class.
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(classes[i].needs, "gpus=1") == 0) {
            fx->classes[fx->class_count++] = classes[i].number;
        }
    }
    fixture_claim_none(fx);
    assert_int_equal(ask(fx, "gpus=1", "quick", NULL), 1);
}

static void nothing_is_free_for_what_may_not_run(void **state)
{
    struct fixture *fx = *state;
    const struct {
        enum evq_pause_kind kind;
        const char *name;
    } pauses[] = {{EVQ_PAUSE_QUEUE, ""}, {EVQ_PAUSE_SUITE, "quick"}, {EVQ_PAUSE_RUN, "r"}};

    (void)ask(fx, NULL, "quick", NULL);
    for (size_t i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++) {
        fixture_claim_none(fx);
        assert_status(evq_queue_pause(fx->queue, pauses[i].kind, pauses[i].name, true, NULL),
                      EVQ_OK);
        assert_int_equal(ask(fx, NULL, "quick", NULL), 0);
        assert_status(evq_queue_pause(fx->queue, pauses[i].kind, pauses[i].name, false, NULL),
                      EVQ_OK);
        assert_int_equal(ask(fx, NULL, "quick", NULL), 1);
    }
}

static void old_mark_is_none(void **state)
{
    struct fixture *fx = *state;
    char class[16];
    char old[32];

    (void)ask(fx, NULL, "quick", NULL);
    (void)snprintf(class, sizeof(class), "%u", (unsigned)fx->classes[0]);
    (void)snprintf(old, sizeof(old), "%lld", (long long)evq_clock_unix_ms() - 16000);
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "idle"), class, old, NULL));
    assert_int_equal(ask(fx, NULL, "quick", NULL), 0);
    (void)snprintf(old, sizeof(old), "%lld", (long long)evq_clock_unix_ms() - 1000);
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "idle"), class, old, NULL));
    assert_int_equal(ask(fx, NULL, "quick", NULL), 1);
}

static void wrong_questions_are_refused(void **state)
{
    struct fixture *fx = *state;
    const char *const suites[] = {"no/name"};
    uint64_t found = 0;

    assert_status(evq_queue_free_workers_take(fx->queue, "r", NULL, suites, 1, &found, NULL),
                  EVQ_E_INVALID);
    assert_status(evq_queue_free_workers_take(fx->queue, "r", NULL, suites, 0, &found, NULL),
                  EVQ_E_INVALID);
    assert_status(evq_queue_free_workers_take(fx->queue, "a b", NULL, suites, 1, &found, NULL),
                  EVQ_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(mark_is_left_only_for_those_who_asked, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(first_question_wakes_who_is_blocked, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(free_worker_is_given_to_one_asker, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(worker_that_took_a_job_is_not_free, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(worker_that_left_is_not_free, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(suites_are_answered_each_for_itself, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(needs_of_ones_own_are_a_class_of_their_own, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(nothing_is_free_for_what_may_not_run, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(old_mark_is_none, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(wrong_questions_are_refused, fixture_setup,
                                        fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
