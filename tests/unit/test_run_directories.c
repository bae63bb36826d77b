/* Which runs of a sink stay open. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "logger/run_directories.h"
#include "tests/fixture/check.h"
#include "tests/fixture/redis.h"

struct counts {
    int opened;
    int flushed;
    int closed;
};

static enum evq_status run_open(void *context, const char *path, void **ret_run,
                                struct evq_error *err)
{
    struct counts *counts = context;

    (void)path, (void)err;
    counts->opened++;
    *ret_run = counts;
    return EVQ_OK;
}

static enum evq_status run_flush(void *run, struct evq_error *err)
{
    (void)err;
    ((struct counts *)run)->flushed++;
    return EVQ_OK;
}

static void run_close(void *run)
{
    ((struct counts *)run)->closed++;
}

/* In the place of the C library's: some file systems have no locks. */
static bool without_locks;

int flock(int fd, int operation)
{
    if (without_locks) {
        errno = ENOSYS;
        return -1;
    }
    return (int)syscall(SYS_flock, fd, operation);
}

static struct evq_run_directories *dirs_open(char directory[64], size_t open_max,
                                             struct counts *counts)
{
    static const struct evq_run_directories_ops ops = {run_open, run_flush, run_close};
    struct evq_run_directories *dirs = NULL;
    struct evq_error err;

    fixture_dir_make(directory);
    assert_status_err(
        evq_run_directories_open(directory, "", ".lock", open_max, &ops, counts, &dirs, &err),
        EVQ_OK, &err);
    return dirs;
}

/* What can never be written costs nothing of what was written before it, which is to be flushed. */
static void run_directories_close_a_run_whose_write_failed_but_for_what_was_written(void **state)
{
    (void)state;
    static const enum evq_status kept[] = {EVQ_OK, EVQ_E_INVALID, EVQ_E_LIMIT};
    struct counts counts = {0};
    struct evq_error err;
    char directory[64];
    void *run = NULL;
    struct evq_run_directories *dirs = dirs_open(directory, 1, &counts);

    evq_run_directories_wrote(dirs, NULL, EVQ_E_IO); // None was opened.
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        assert_status_err(evq_run_directories_get(dirs, "digits", &run, &err), EVQ_OK, &err);
        evq_run_directories_wrote(dirs, run, kept[i]);
        assert_int_equal(counts.closed, 0);
    }
    evq_run_directories_wrote(dirs, NULL, EVQ_E_IO); // Of another, which could not be opened.
    assert_int_equal(counts.closed, 0);
    evq_run_directories_wrote(dirs, run, EVQ_E_IO);
    assert_int_equal(counts.closed, 1);
    assert_status_err(evq_run_directories_get(dirs, "digits", &run, &err), EVQ_OK, &err);
    assert_int_equal(counts.opened, 2);
    assert_status_err(evq_run_directories_get(dirs, "other", &run, &err), EVQ_OK, &err);
    assert_int_equal(counts.closed, 2); // One has room: the count of open runs is right.
    assert_int_equal(counts.flushed, 1);
    evq_run_directories_close(dirs);
    assert_int_equal(counts.closed, 3);
    fixture_dir_remove(directory);
}

/* A run's name comes from Redis: what is no name makes no directory, least of all elsewhere, nor in
 * the place of a lock. */
static void run_directories_open_no_directory_outside_their_base(void **state)
{
    (void)state;
    static const char *const names[] = {
        "..", ".", "", "../out", "a/b", "/tmp", "a b", ".jsonl.lock", ".results.csv.lock"};
    struct counts counts = {0};
    struct evq_error err;
    char directory[64];
    void *run = NULL;
    struct evq_run_directories *dirs = dirs_open(directory, 4, &counts);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_status(evq_run_directories_get(dirs, names[i], &run, &err), EVQ_E_INVALID);
        assert_holds(err.message, "cannot name a run's directory");
    }
    assert_int_equal(counts.opened, 0);
    evq_run_directories_close(dirs);
    fixture_dir_remove(directory);
}

/* Nobody is named who is not there. */
static void run_directories_say_that_a_file_system_has_no_locks(void **state)
{
    static const struct evq_run_directories_ops ops = {run_open, run_flush, run_close};
    (void)state;
    struct counts counts = {0};
    struct evq_run_directories *dirs = NULL;
    struct evq_error err;
    char directory[64];

    fixture_dir_make(directory);
    without_locks = true;
    assert_status(evq_run_directories_open(directory, "", ".lock", 2, &ops, &counts, &dirs, &err),
                  EVQ_E_IO);
    without_locks = false;
    assert_holds(err.message, "Function not implemented (a file system with locks is needed)");
    assert_null(dirs);
    fixture_dir_remove(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_directories_open_no_directory_outside_their_base),
        cmocka_unit_test(run_directories_say_that_a_file_system_has_no_locks),
        cmocka_unit_test(run_directories_close_a_run_whose_write_failed_but_for_what_was_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
