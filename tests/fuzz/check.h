/*
 * What every harness is: one function that the fuzzer calls; abort() is the finding.
 */
#ifndef EVQ_TESTS_FUZZ_CHECK_H
#define EVQ_TESTS_FUZZ_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static inline void check(bool good)
{
    if (!good) {
        abort();
    }
}

#endif
