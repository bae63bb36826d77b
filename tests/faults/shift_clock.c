/*
 * Preloaded (LD_PRELOAD): the wall clock is off by as many microseconds as the file
 * $EVQ_CLOCK_FILE holds (8 bytes, native, signed), and jumps as soon as that changes. The monotonic
 * clock goes on as it is.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_US INT64_C(1000000)

static _Atomic int64_t *offset_us; // In the file; NULL: there is none.

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("EVQ_CLOCK_FILE");
    const int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (path == NULL) {
        return;
    }
    void *shared =
        fd >= 0 ? mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (shared == MAP_FAILED) {
        _exit(125); // A clock that does not jump must not pass for one that did.
    }
    offset_us = shared;
}

static int64_t now_us(void)
{
    struct timespec real = {0, 0};

    (void)syscall(SYS_clock_gettime, CLOCK_REALTIME, &real); // Cannot fail for this clock.
    return real.tv_sec * SECOND_US + real.tv_nsec / 1000 +
           (offset_us != NULL ? atomic_load(offset_us) : 0);
}

#pragma GCC visibility push(default) // What replaces the C library's must be seen.

int gettimeofday(struct timeval *restrict value, void *restrict zone)
{
    const int64_t us = now_us();

    (void)zone;
    value->tv_sec = us / SECOND_US;
    value->tv_usec = us % SECOND_US;
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *value)
{
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) {
        return (int)syscall(SYS_clock_gettime, clock, value);
    }
    const int64_t us = now_us();
    value->tv_sec = us / SECOND_US;
    value->tv_nsec = us % SECOND_US * 1000;
    return 0;
}

time_t time(time_t *ret)
{
    const time_t seconds = now_us() / SECOND_US;

    if (ret != NULL) {
        *ret = seconds;
    }
    return seconds;
}
