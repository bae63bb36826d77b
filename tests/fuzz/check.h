/*
 * What every harness is: one function that the fuzzer calls; abort() is the finding.
 */
#ifndef EVQ_TESTS_FUZZ_CHECK_H
#define EVQ_TESTS_FUZZ_CHECK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Which check, and errno: one that fails once in a million inputs may be the machine's. */
static inline void check_holds(bool good, const char *what, const char *file, int line)
{
    if (!good) {
        (void)fprintf(stderr, "%s:%d: %s does not hold (%s)\n", file, line, what, strerror(errno));
        abort();
    }
}

#define check(good) check_holds((good), #good, __FILE__, __LINE__)

#endif
