/*
 * Preloaded (LD_PRELOAD): $EVQ_SYNC_FILE holds (8 bytes, native) how large a file whose name has
 * ".incr.aof" in it was when it was last synced to the disk: what a loss of power leaves of it at
 * least, and may leave of it at most.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic uint64_t *synced;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("EVQ_SYNC_FILE");
    const int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

    if (path == NULL) {
        return;
    }
    void *shared = fd >= 0 ? mmap(NULL, sizeof *synced, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                           : MAP_FAILED;
    if (shared == MAP_FAILED) {
        _exit(125); // What is not noted must not pass for what was never synced.
    }
    synced = shared;
}

static int note(int fd, long call)
{
    char link[64];
    char name[4096];
    struct stat before;

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t bytes = readlink(link, name, sizeof name - 1);
    name[bytes > 0 ? bytes : 0] = '\0';
    const int looked = fstat(fd, &before); // Before: what is written meanwhile is not promised.
    const int done = (int)syscall(call, fd);
    if (done == 0 && looked == 0 && synced != NULL && strstr(name, ".incr.aof") != NULL) {
        atomic_store(synced, (uint64_t)before.st_size);
    }
    return done;
}

#pragma GCC visibility push(default) // What replaces the C library's must be seen.

int fdatasync(int fd)
{
    return note(fd, SYS_fdatasync);
}

int fsync(int fd)
{
    return note(fd, SYS_fsync);
}
