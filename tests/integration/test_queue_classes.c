#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>

#include "tests/fixture/queue.h"

/* A class is a suite and needs; there are 64 numbers, and one that is idle goes to another. */

static void classes_are_bounded_and_idle_ones_make_room(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    char id[EVQ_JOB_ID_BYTES_MAX];
    struct evq_submitted submitted;

    for (int i = 0; i < 63; i++) { // "quick" is the first.
        (void)snprintf(id, sizeof id, "r/1/regular/unknown%d", i);
        (void)fixture_submit(fx, id);
    }
    struct evq_job *job = fixture_job("r/1/regular/more");
    assert_status(evq_queue_submit(fx->queue, job, 0, &submitted, &err), EVQ_E_INVALID);
    assert_holds(err.message, "64 classes");
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;
    assert_status(evq_queue_cancel(fx->queue, "r/1/regular/unknown7", "", &after, NULL), EVQ_OK);
    assert_status_err(evq_queue_submit(fx->queue, job, 0, &submitted, &err), EVQ_OK, &err);
    evq_job_free(job);
    fixture_audit(fx);
}

/* A number of a class with nothing in it goes to another suite or other needs; the job that ended
 * there and is wanted again waits for what its message asks for. */
static void retry_waits_in_the_class_of_its_message(void **state)
{
    static const char *const labels[] = {"b", "a"};
    struct fixture *fx = *state;
    enum evq_job_state after = EVQ_JOB_STATE_COUNT;
    char id[EVQ_JOB_ID_BYTES_MAX];
    struct evq_job *job = fixture_job("r/1/regular/quick");

    job->needs_given = true;
    job->needs = (struct evq_needs){
        .gpus = 2, .gpu_memory_bytes = (int64_t)1 << 40, .labels = labels, .label_count = 2};
    (void)fixture_submit_job(fx, job);
    const struct fixture_text first = fixture_job_field(fx, "r/1/regular/quick", "class");
    assert_status(evq_queue_cancel(fx->queue, "r/1/regular/quick", "", &after, NULL), EVQ_OK);
    assert_status(evq_queue_retry(fx->queue, "r/1/regular/quick", "", id, NULL), EVQ_OK);
    assert_string_equal(fixture_job_field(fx, id, "class").text, first.text);
    assert_status(evq_queue_cancel(fx->queue, id, "", &after, NULL), EVQ_OK);

    for (int i = 0; i < 63; i++) { // "quick" is one; the last takes the number that is idle.
        (void)snprintf(id, sizeof id, "r/1/regular/unknown%d", i);
        (void)fixture_submit(fx, id);
    }
    assert_string_equal(fixture_job_field(fx, id, "class").text, first.text);
    assert_status(evq_queue_retry(fx->queue, "r/1/regular/quick", "", id, NULL), EVQ_E_CONFLICT);
    fixture_assert_state(fx, "r/1/regular/quick", "cancelled");
    assert_status(evq_queue_cancel(fx->queue, "r/1/regular/unknown7", "", &after, NULL), EVQ_OK);
    assert_status(evq_queue_retry(fx->queue, "r/1/regular/quick", "", id, NULL), EVQ_OK);
    const struct fixture_text now = fixture_job_field(fx, id, "class");
    assert_string_not_equal(now.text, first.text);
    struct evq_reply *name =
        fixture_call(fx->raw, "HGET", fixture_key(fx, "classes"), now.text, NULL);
    assert_string_equal(name->text, "quick gpus=2,gpu_memory=1099511627776,labels=a+b");
    evq_reply_free(name);
    evq_job_free(job);
    fixture_audit(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(classes_are_bounded_and_idle_ones_make_room, fixture_fresh),
        cmocka_unit_test_setup(retry_waits_in_the_class_of_its_message, fixture_fresh),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
