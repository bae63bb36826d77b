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

#include "shared/checkpoint/checkpoint_watcher.h"
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

static void watcher_says_what_was_found(void **state)
{
    struct evq_checkpoint_watcher *watcher = NULL;
    struct evq_error err = {0};

    (void)state;
    assert_status(evq_checkpoint_watcher_open(60000, &watcher, &err), EVQ_OK);
    assert_status(evq_checkpoint_watcher_verify(watcher, "/live", "a", "a", &err), EVQ_OK);
    assert_status(evq_checkpoint_watcher_verify(watcher, "/live", "a", "b", &err), EVQ_E_CHANGED);
    assert_string_equal(err.message, "other");
    assert_status(evq_checkpoint_watcher_verify(watcher, "/live", "a", "b", NULL), EVQ_E_CHANGED);
    evq_checkpoint_watcher_close(watcher);
    evq_checkpoint_watcher_close(NULL);
}

static void watcher_goes_on_when_a_file_server_does_not_answer(void **state)
{
    struct evq_checkpoint_watcher *watcher = NULL;
    struct evq_error err = {0};

    (void)state;
    assert_status(evq_checkpoint_watcher_open(50, &watcher, &err), EVQ_OK);
    assert_status(evq_checkpoint_watcher_verify(watcher, "/dead", "a", "a", &err), EVQ_E_TIMEOUT);
    assert_status(evq_checkpoint_watcher_verify(watcher, "/dead", "a", "a", &err), EVQ_E_TIMEOUT);
    assert_status(evq_checkpoint_watcher_verify(watcher, "/live", "a", "a", &err), EVQ_E_TIMEOUT);
    assert_int_equal(atomic_load(&looks), 1); // One thread hangs, not one for each.
    assert_int_equal(sem_post(&answers), 0);
    FIXTURE_UNTIL(evq_checkpoint_watcher_verify(watcher, "/live", "a", "a", &err) ==
                  EVQ_OK); // It has ended.
    evq_checkpoint_watcher_close(watcher);
}

static void watcher_closes_while_a_look_hangs(void **state)
{
    struct evq_checkpoint_watcher *watcher = NULL;
    struct evq_error err = {0};

    (void)state;
    assert_status(evq_checkpoint_watcher_open(50, &watcher, &err), EVQ_OK);
    assert_status(evq_checkpoint_watcher_verify(watcher, "/dead", "a", "a", &err), EVQ_E_TIMEOUT);
    evq_checkpoint_watcher_close(watcher);
    assert_int_equal(atomic_load(&ended), 0);
    assert_int_equal(sem_post(&answers), 0); // Its thread frees what is left.
    FIXTURE_UNTIL(atomic_load(&ended) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(watcher_says_what_was_found, reset),
        cmocka_unit_test_setup(watcher_goes_on_when_a_file_server_does_not_answer, reset),
        cmocka_unit_test_setup(watcher_closes_while_a_look_hangs, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
