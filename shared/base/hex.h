/*
 * A 128-bit hash as text. Any thread.
 */
#ifndef EVQ_SHARED_BASE_HEX_H
#define EVQ_SHARED_BASE_HEX_H

#include <stdint.h>
#include <stdio.h>

/* 32 lower-case hexadecimal digits, the high half first, and a NUL. */
static inline void evq_hex_128(uint64_t high, uint64_t low, char out[33])
{
    (void)snprintf(out, 33, "%016llx%016llx", (unsigned long long)high, (unsigned long long)low);
}

#endif
