/*
 * Looks at checkpoints on a file server that does not answer: who asks goes on, and the looks do
 * not pile up.
 */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "shared/verify/timed_verify.h"
#include "tests/fixture/check.h"

enum evq_status __wrap_evq_checkpoint_verify_fingerprint(const char *root, const char *path,
                                                         const char *fingerprint,
                                                         struct evq_error *err);

static sem_t answers; // Of the file server.
static atomic_int looks;
static atomic_int ended;

enum evq_status __wrap_evq_checkpoint_verify_fingerprint(const char *root, const char *path,
                                                         const char *fingerprint,
                                                         struct evq_error *err)
{
    atomic_fetch_add(&looks, 1);
    if (strcmp(root, "/dead") == 0) {
        (void)sem_wait(&answers);
    }
    atomic_fetch_add(&ended, 1);
    return strcmp(path, fingerprint) == 0 ? EVQ_OK : evq_error_set(err, EVQ_E_CHANGED, "other");
}

static int reset(void **state)
{
    (void)state;
    atomic_store(&looks, 0);
    atomic_store(&ended, 0);
    return sem_init(&answers, 0, 0);
}

static void timed_verify_says_what_was_found(void **state)
{
    struct evq_timed_verify *verify = NULL;
    struct evq_error err = {0};

    (void)state;
    assert_status(evq_timed_verify_open(60000, &verify, &err), EVQ_OK);
    assert_status(evq_timed_verify_run(verify, "/live", "a", "a", &err), EVQ_OK);
    assert_status(evq_timed_verify_run(verify, "/live", "a", "b", &err), EVQ_E_CHANGED);
    assert_string_equal(err.message, "other");
    assert_status(evq_timed_verify_run(verify, "/live", "a", "b", NULL), EVQ_E_CHANGED);
    evq_timed_verify_close(verify);
    evq_timed_verify_close(NULL);
}

static void timed_verify_goes_on_when_a_file_server_does_not_answer(void **state)
{
    struct evq_timed_verify *verify = NULL;
    struct evq_error err = {0};

    (void)state;
    assert_status(evq_timed_verify_open(50, &verify, &err), EVQ_OK);
    assert_status(evq_timed_verify_run(verify, "/dead", "a", "a", &err), EVQ_E_TIMEOUT);
    assert_status(evq_timed_verify_run(verify, "/dead", "a", "a", &err), EVQ_E_TIMEOUT);
    assert_status(evq_timed_verify_run(verify, "/live", "a", "a", &err), EVQ_E_TIMEOUT);
    assert_int_equal(atomic_load(&looks), 1); // One thread hangs, not one for each.
    assert_int_equal(sem_post(&answers), 0);
    FIXTURE_UNTIL(evq_timed_verify_run(verify, "/live", "a", "a", &err) == EVQ_OK); // It has ended.
    evq_timed_verify_close(verify);
}

static void timed_verify_closes_while_a_look_hangs(void **state)
{
    struct evq_timed_verify *verify = NULL;
    struct evq_error err = {0};

    (void)state;
    assert_status(evq_timed_verify_open(50, &verify, &err), EVQ_OK);
    assert_status(evq_timed_verify_run(verify, "/dead", "a", "a", &err), EVQ_E_TIMEOUT);
    evq_timed_verify_close(verify);
    assert_int_equal(atomic_load(&ended), 0);
    assert_int_equal(sem_post(&answers), 0); // Its thread frees what is left.
    FIXTURE_UNTIL(atomic_load(&ended) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(timed_verify_says_what_was_found, reset),
        cmocka_unit_test_setup(timed_verify_goes_on_when_a_file_server_does_not_answer, reset),
        cmocka_unit_test_setup(timed_verify_closes_while_a_look_hangs, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
