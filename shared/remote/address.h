/*
 * Addresses of remote checkpoints, such as s3://bucket/run/step-500. Credentials never belong to an
 * address, because addresses enter messages, logs and Redis. Any thread.
 */
#ifndef EVQ_SHARED_REMOTE_ADDRESS_H
#define EVQ_SHARED_REMOTE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/error.h"

/* Whether the text begins like an address: "SCHEME://". */
bool evq_address_is(const char *text);

/*
 * Writes the address without double slashes, "/./" and a slash at its end. EVQ_E_INVALID: the
 * scheme is not known, the host or bucket is missing, or the address has a password, a query, ".."
 * or a control byte. EVQ_E_LIMIT: the address is longer than out_bytes - 1. err never contains the
 * password.
 */
enum evq_status evq_address_normalize(const char *text, char *out, size_t out_bytes,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
