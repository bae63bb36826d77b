#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "tests/fixture/queue.h"

/*
 * Tests classes. A class is a suite with needs. There are 64 class numbers, and an idle number is
 * given to another class.
 */

static void classes_are_bounded_and_idle_ones_make_room(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {EVQ_OK, ""};
    char id[EVQ_JOB_ID_BYTES_MAX];
    struct evq_submitted submitted;

    for (int i = 0; i < 63; i++) { // "quick" is the first class.
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

/*
 * The number of an empty class is given to another suite or other needs. An ended job of the old
 * class that is queued again gets a class from its own message.
 */
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

    for (int i = 0; i < 63; i++) { // "quick" has one number; the last class takes the idle number.
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

/*
 * Starts a server that sorts texts as in a dictionary, with capital letters among small ones. NULL:
 * there is no such locale.
 */
static struct fixture *dictionary_open(void)
{
    char directory[64];
    char command[512];

    fixture_dir_make(directory);
    (void)snprintf(command, sizeof command,
                   "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", directory);
    if (system(command) != 0) {
        fixture_dir_remove(directory);
        return NULL;
    }
    (void)setenv("LOCPATH", directory, 1);
    (void)setenv("LC_ALL", "de_DE.UTF-8", 1);
    struct fixture *fx = fixture_open(NULL);
    (void)unsetenv("LC_ALL");
    (void)unsetenv("LOCPATH");
    fixture_dir_remove(directory);
    return fx;
}

/* A manual put waits in the same class as a client's submit with the same needs. */
static void needs_are_ordered_the_same_whatever_the_locale_of_redis(void **state)
{
    (void)state;
    struct fixture *fx = dictionary_open();
    if (fx == NULL) {
        skip();
        return;
    }
    struct evq_reply *order =
        fixture_call(fx->raw, "EVAL", "return 'b' < 'C' and 1 or 0", "0", NULL);
    const bool dictionary = order->integer == 1;

    evq_reply_free(order);
    if (dictionary) {
        evq_reply_free(
            fixture_call(fx->raw, "FCALL", "evalq_v1_put", "1", fixture_key(fx, ""),
                         "{\"run\":\"r\",\"step\":1,\"suite\":\"quick\",\"root\":\"ckpt\","
                         "\"path\":\"p\",\"needs\":{\"labels\":[\"b\",\"C\",\"bc\"]}}",
                         NULL));
        struct evq_reply *class =
            fixture_call(fx->raw, "HGET", fixture_key(fx, "class"), "quick labels=C+b+bc", NULL);
        assert_non_null(class->text);
        evq_reply_free(class);
    }
    fixture_close(fx);
    if (!dictionary) {
        skip(); // The server does not sort by this locale.
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(classes_are_bounded_and_idle_ones_make_room, fixture_fresh),
        cmocka_unit_test_setup(retry_waits_in_the_class_of_its_message, fixture_fresh),
        cmocka_unit_test(needs_are_ordered_the_same_whatever_the_locale_of_redis),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
