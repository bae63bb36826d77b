/*
 * What was prepared and is no longer in use goes, least recently used first, and nothing else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/config/config.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/prepare.h"

static const char *replaced = ""; // A lock that another worker makes anew just before it is taken.

/* The linker's names for what stands behind and before a wrapped function. */
int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

int __wrap_flock(int fd, int operation)
{
    if (operation == (LOCK_EX | LOCK_NB) && replaced[0] != '\0') {
        assert_int_equal(unlink(replaced), 0);
        const int other = open(replaced, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        assert_true(other >= 0);
        assert_int_equal(close(other), 0);
        replaced = "";
    }
    return __real_flock(fd, operation);
}

static bool is_there(const struct fixture_folder *folder, const char *name)
{
    return faccessat(folder->fd, name, F_OK, 0) == 0;
}

/* Two workers prune at once: one removes the oldest and its lock, and a third prepares it again
 * before the other has the lock that it had opened. */
static void prepared_of_another_stays_when_its_lock_was_made_anew(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_config config = {0};
    const struct evq_eval_request request = {.config = &config};
    const struct evq_eval_report report = {0};
    struct evq_prepared prepared = {.lock_fd = -1};
    struct evq_failure failure = {0};
    struct evq_error err;
    char lock[96];
    char name[32];

    config.worker.scratch = folder->path;
    fixture_folder_mkdir(folder, "prepared");
    for (int i = 0; i <= EVQ_PREPARE_KEPT + 1; i++) { // Two are too many.
        const struct timespec used[2] = {{.tv_sec = 1600000000 + i}, {.tv_sec = 1600000000 + i}};
        (void)snprintf(name, sizeof(name), "prepared/k%d.lock", i);
        fixture_folder_write(folder, name, "", 0);
        name[strlen(name) - strlen(".lock")] = '\0';
        fixture_folder_mkdir(folder, name);
        assert_int_equal(utimensat(folder->fd, name, used, 0), 0);
    }
    (void)snprintf(lock, sizeof(lock), "%s/prepared/k0.lock", folder->path);
    replaced = lock;
    (void)snprintf(name, sizeof(name), "k%d", EVQ_PREPARE_KEPT + 1);
    assert_status_err(
        evq_prepare_open(NULL, NULL, name, &request, &report, &prepared, &failure, &err), EVQ_OK,
        &err);
    evq_prepare_close(&prepared);
    assert_string_equal(replaced, "");
    assert_true(is_there(folder, "prepared/k0"));
    assert_true(is_there(folder, "prepared/k0.lock"));
    assert_false(is_there(folder, "prepared/k1"));
    assert_false(is_there(folder, "prepared/k1.lock"));
    assert_true(is_there(folder, "prepared/k2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(prepared_of_another_stays_when_its_lock_was_made_anew,
                                        fixture_folder_setup, fixture_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
