/* Opens checkpoints on worker threads, so that a hung file server cannot block the caller. Any
 * thread may use it; no call may be running when it is closed. */
#ifndef EVQ_SHARED_CHECKPOINT_CHECKPOINT_WATCHER_H
#define EVQ_SHARED_CHECKPOINT_CHECKPOINT_WATCHER_H

#include <stdint.h>

#include "shared/base/error.h"

struct evq_checkpoint_watcher;

enum evq_status evq_checkpoint_watcher_open(int64_t limit_ms,
                                            struct evq_checkpoint_watcher **ret_watcher,
                                            struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * evq_checkpoint_verify_fingerprint() with a time limit of limit_ms, then EVQ_E_TIMEOUT. Its thread
 * goes on, and until it ends every call returns EVQ_E_TIMEOUT at once. EVQ_E_NOMEM: no thread could
 * be started.
 */
enum evq_status evq_checkpoint_watcher_verify(struct evq_checkpoint_watcher *watcher,
                                              const char *root, const char *path,
                                              const char *fingerprint,
                                              struct evq_error *err) EVQ_CHECK_RESULT;
void evq_checkpoint_watcher_close(
    struct evq_checkpoint_watcher *watcher); // Accepts NULL. Does not wait for a thread that hangs.

#endif
