/*
 * The blocks of the submit ring's file, which are there before anything is written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include "producer/client/submit_log/ring.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"

static int reserves_cut; // So many of the next reservations are ended by a signal.
static bool reserved_open;

/* The linker's names for what stands behind and before a wrapped function. */
int __real_posix_fallocate(int fd, off_t offset, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes);

int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes)
{
    sigset_t mask;

    (void)pthread_sigmask(SIG_SETMASK, NULL, &mask);
    reserved_open = reserved_open || !sigismember(&mask, SIGPROF) || !sigismember(&mask, SIGALRM);
    if (reserves_cut > 0) {
        reserves_cut--;
        return EINTR;
    }
    return __real_posix_fallocate(fd, offset, bytes);
}

/* Under a profiler; made, and opened again. */
static void ring_is_reserved_when_signals_come(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_ring *ring = NULL;
    sigset_t mask;

    for (int round = 0; round < 2; round++) {
        reserves_cut = 3;
        reserved_open = false;
        assert_status(
            evq_ring_open(folder->path, "main", "digits", EVQ_RING_BYTES_MIN, &ring, NULL), EVQ_OK);
        evq_ring_close(ring, false);
        assert_int_equal(reserves_cut, 0);
        assert_false(reserved_open);
        assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
        assert_false(sigismember(&mask, SIGPROF)); // They are the trainer's again.
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ring_is_reserved_when_signals_come, fixture_folder_setup,
                                        fixture_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
