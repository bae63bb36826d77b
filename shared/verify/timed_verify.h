/* Verifies a fingerprint in a thread of its own, with a time limit, so that a hung file server
 * cannot block the caller. Any thread may use it; no call may be running when it is closed. */
#ifndef EVQ_SHARED_VERIFY_TIMED_VERIFY_H
#define EVQ_SHARED_VERIFY_TIMED_VERIFY_H

#include <stdint.h>

#include "shared/base/error.h"

struct evq_timed_verify;

enum evq_status evq_timed_verify_open(int64_t limit_ms, struct evq_timed_verify **ret_verify,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * evq_checkpoint_verify_fingerprint() with a time limit of limit_ms, then EVQ_E_TIMEOUT. Its thread
 * goes on, and until it ends every call returns EVQ_E_TIMEOUT at once. EVQ_E_NOMEM: no thread could
 * be started.
 */
enum evq_status evq_timed_verify_run(struct evq_timed_verify *verify, const char *root,
                                     const char *path, const char *fingerprint,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_timed_verify_close(
    struct evq_timed_verify *verify); // Accepts NULL. Does not wait for a thread that hangs.

#endif
