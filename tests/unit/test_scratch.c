#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/child/scratch.h"

struct attempt { // A scratch directory and one attempt's directory in it.
    struct fixture_folder *folder;
    char scratch[256];
    char path[EVQ_SCRATCH_PATH_BYTES];
    int lock_fd;
};

static int attempt_setup(void **state)
{
    struct attempt *attempt = calloc(1, sizeof(*attempt));
    void *folder = NULL;
    struct evq_error err;

    assert_non_null(attempt);
    assert_int_equal(fixture_folder_setup(&folder), 0);
    attempt->folder = folder;
    (void)snprintf(attempt->scratch, sizeof(attempt->scratch), "%s/scratch", attempt->folder->path);
    assert_status_err(evq_scratch_open(attempt->scratch, &err), EVQ_OK, &err);
    assert_status_err(evq_scratch_make_attempt(attempt->scratch, attempt->path,
                                               sizeof(attempt->path), &attempt->lock_fd, &err),
                      EVQ_OK, &err);
    *state = attempt;
    return 0;
}

static int attempt_teardown(void **state)
{
    struct attempt *attempt = *state;
    void *folder = attempt->folder;

    (void)close(attempt->lock_fd);
    free(attempt);
    return fixture_folder_teardown(&folder);
}

static bool present(const char *directory, const char *name)
{
    char path[EVQ_SCRATCH_PATH_BYTES + 64];

    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

static void put(const char *directory, const char *name)
{
    char path[EVQ_SCRATCH_PATH_BYTES + 64];

    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

static bool renew(struct attempt *attempt)
{
    return evq_scratch_renew(attempt->scratch, attempt->path, sizeof(attempt->path),
                             attempt->lock_fd);
}

static void renew_leaves_nothing_of_the_attempt_nor_its_name(void **state)
{
    struct attempt *attempt = *state;
    char before[EVQ_SCRATCH_PATH_BYTES];
    char deep[EVQ_SCRATCH_PATH_BYTES + 16];

    (void)snprintf(before, sizeof(before), "%s", attempt->path);
    (void)snprintf(deep, sizeof(deep), "%s/deep", attempt->path);
    put(attempt->path, "job.json");
    assert_int_equal(mkdir(deep, 0700), 0);
    put(deep, "file");
    assert_int_equal(symlink("/", strcat(deep, "/link")), 0);
    assert_true(renew(attempt));
    assert_int_not_equal(access(before, F_OK), 0); // Who still writes there by name writes nowhere.
    assert_int_equal(rmdir(attempt->path), 0);     // It is there, and empty.
    assert_int_equal(access("/tmp", F_OK), 0);
}

static void renew_keeps_the_lock_that_keeps_sweepers_off(void **state)
{
    struct attempt *attempt = *state;

    assert_true(renew(attempt));
    put(attempt->path, "file");
    evq_scratch_prune(attempt->scratch);
    assert_true(present(attempt->path, "file"));
    (void)close(attempt->lock_fd);
    attempt->lock_fd = -1;
    evq_scratch_prune(attempt->scratch);
    assert_false(present(attempt->path, "file"));
}

static void renew_refuses_a_directory_that_is_not_as_it_was_made(void **state)
{
    struct attempt *attempt = *state;

    assert_int_equal(chmod(attempt->path, 0755), 0);
    assert_false(renew(attempt));
    assert_int_equal(chmod(attempt->path, 0700), 0);
    assert_true(renew(attempt));
    assert_int_equal(rmdir(attempt->path), 0);
    assert_false(renew(attempt));
}

/* As what `cp -r` makes of a read-only file system. Root needs no permissions: an ordinary user
 * does. */
static void remove_takes_folders_that_are_read_only_or_closed(void **state)
{
    const struct attempt *attempt = *state;
    enum { NOBODY = 65534 };
    int status = -1;

    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (fchdir(attempt->folder->fd) != 0 ||
            (geteuid() == 0 &&
             (fchown(attempt->folder->fd, NOBODY, NOBODY) != 0 || setuid(NOBODY) != 0)) ||
            mkdir("gone", 0700) != 0 || mkdir("gone/sub", 0700) != 0 ||
            mkdir("gone/sub/closed", 0700) != 0 || mkdir("gone/sub/closed/in", 0700) != 0 ||
            symlink("/", "gone/sub/link") != 0 || chmod("gone/sub/closed", 0) != 0 ||
            chmod("gone/sub", 0555) != 0 || chmod("gone", 0555) != 0) {
            _exit(2);
        }
        evq_scratch_remove("gone");
        _exit(access("gone", F_OK) == 0 ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, attempt_setup, attempt_teardown)
    const struct CMUnitTest tests[] = {
        TEST(renew_leaves_nothing_of_the_attempt_nor_its_name),
        TEST(renew_keeps_the_lock_that_keeps_sweepers_off),
        TEST(renew_refuses_a_directory_that_is_not_as_it_was_made),
        TEST(remove_takes_folders_that_are_read_only_or_closed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
