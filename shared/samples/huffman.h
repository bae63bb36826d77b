/*
 * Huffman codes as DEFLATE uses them (RFC 1951, section 3.2.2). Any thread.
 */
#ifndef EVQ_SHARED_SAMPLES_HUFFMAN_H
#define EVQ_SHARED_SAMPLES_HUFFMAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EVQ_HUFFMAN_SYMBOLS_MAX 288
#define EVQ_HUFFMAN_LENGTH_MAX  12 // DEFLATE allows 15. Short codes are written faster.

struct evq_huffman_code {
    uint16_t bits;  // In the order in which they are written, the first one lowest.
    uint16_t count; // Of the bits; 0: the symbol is not used.
};

/* Makes the shortest code for symbols that come so often, but none of more than
 * EVQ_HUFFMAN_LENGTH_MAX bits. One used symbol gets one bit. symbols: 2 to EVQ_HUFFMAN_SYMBOLS_MAX.
 * The counts together are below 2^31. */
void evq_huffman_build(const uint32_t *counts, size_t symbols, struct evq_huffman_code *ret_codes);

#endif
