/*
 * Base64 (RFC 4648, with padding). Any thread.
 */
#ifndef EVQ_SHARED_BASE_BASE64_H
#define EVQ_SHARED_BASE_BASE64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the text for this many bytes, without the NUL. */
#define EVQ_BASE64_CHARS(bytes) (((bytes) + 2) / 3 * 4)

/* out holds EVQ_BASE64_CHARS(bytes) + 1. */
void evq_base64_encode(const void *data, size_t bytes, char *out);

/* Padding may be left out. false: the text is no base64, or more than out_bytes. */
bool evq_base64_decode(const char *text, size_t chars, uint8_t *out, size_t out_bytes,
                       size_t *ret_bytes);

#endif
