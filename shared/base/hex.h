/*
 * Writes hashes as lower-case hexadecimal digits and a NUL. Any thread.
 */
#ifndef EVQ_SHARED_BASE_HEX_H
#define EVQ_SHARED_BASE_HEX_H

#include <stdint.h>

static inline void evq_hex_64(uint64_t hash, char out[17])
{
    for (int i = 15; i >= 0; i--, hash >>= 4) {
        out[i] = "0123456789abcdef"[hash & 15];
    }
    out[16] = '\0';
}

/* Writes the high half first. */
static inline void evq_hex_128(uint64_t high, uint64_t low, char out[33])
{
    evq_hex_64(high, out);
    evq_hex_64(low, out + 16);
}

#endif
