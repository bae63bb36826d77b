/*
 * SHA-256 (FIPS 180-4), for the password hashes of Redis ACL files and for tokens. Any thread.
 */
#ifndef EVQ_SHARED_SHA256_H
#define EVQ_SHARED_SHA256_H

#include <stddef.h>

/* 64 lower-case hex digits and the NUL. */
void evq_sha256_hex(const void *data, size_t bytes, char out[65]);

#endif
