/*
 * The input as a file, for readers that take a path: in memory, one a process, removed at the end.
 */
#ifndef EVQ_TESTS_FUZZ_FILE_H
#define EVQ_TESTS_FUZZ_FILE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/fuzz/check.h"

static char fuzz_path[64];

static inline void fuzz_remove(void)
{
    (void)unlink(fuzz_path);
}

static inline const char *fuzz_file(const uint8_t *data, size_t bytes)
{
    if (fuzz_path[0] == '\0') {
        (void)snprintf(fuzz_path, sizeof(fuzz_path), "/dev/shm/evq-fuzz-%d", (int)getpid());
        check(atexit(fuzz_remove) == 0);
    }
    const int fd = open(fuzz_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    (void)close(fd);
    return fuzz_path;
}

#endif
