/*
 * Compresses bytes to a gzip stream, for samples: twice as fast as zlib's fastest level, and as
 * small. The output depends only on the input and where it is cut into blocks, not on the machine
 * or a library. One thread for each state. RFC 1951 and 1952 describe the format.
 */
#ifndef EVQ_SHARED_SAMPLES_DEFLATE_H
#define EVQ_SHARED_SAMPLES_DEFLATE_H

#include <stddef.h>
#include <stdint.h>

#define EVQ_DEFLATE_BLOCK_BYTES ((size_t)65535)                  // Of one call.
#define EVQ_DEFLATE_OUT_BYTES   (EVQ_DEFLATE_BLOCK_BYTES + 1024) // Largest output of one call.

struct evq_deflate;

struct evq_deflate *evq_deflate_new(void);          // NULL: out of memory.
void evq_deflate_free(struct evq_deflate *deflate); // Accepts NULL.

/* Compresses at most EVQ_DEFLATE_BLOCK_BYTES. Returns the number of bytes in out. */
size_t evq_deflate_block(struct evq_deflate *deflate, const void *data, size_t bytes,
                         uint8_t out[EVQ_DEFLATE_OUT_BYTES]);
/* Writes the end of the stream, after which there is nothing. Returns the same. */
size_t evq_deflate_end(struct evq_deflate *deflate, uint8_t out[EVQ_DEFLATE_OUT_BYTES]);

/* CRC-32 of all bytes so far. */
uint32_t evq_deflate_crc(const struct evq_deflate *deflate);

#endif
