/*
 * SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104): password hashes of Redis ACL files, tokens,
 * signatures of webhooks. Any thread.
 */
#ifndef EVQ_SHARED_BASE_SHA256_H
#define EVQ_SHARED_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define EVQ_SHA256_BYTES 32

/* 64 lower-case hex digits and the NUL. */
void evq_sha256_hex(const void *data, size_t bytes, char out[65]);

void evq_sha256_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                     uint8_t out[EVQ_SHA256_BYTES]);

#endif
