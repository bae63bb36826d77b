/*
 * Looks at checkpoints in threads of its own, for programs that have other things to do than to
 * wait for a file server that does not answer. Any thread; nobody is using it when it is closed.
 */
#ifndef EVQ_SHARED_CHECKPOINT_WATCHER_H
#define EVQ_SHARED_CHECKPOINT_WATCHER_H

#include <stdint.h>

#include "shared/base/error.h"

struct evq_checkpoint_watcher;

enum evq_status evq_checkpoint_watcher_open(int64_t limit_ms,
                                            struct evq_checkpoint_watcher **ret_watcher,
                                            struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * evq_checkpoint_verify_fingerprint() for at most limit_ms: EVQ_E_TIMEOUT then. The look goes on by
 * itself, and until it has ended nothing else is looked at: EVQ_E_TIMEOUT at once. EVQ_E_NOMEM: no
 * thread.
 */
enum evq_status evq_checkpoint_watcher_verify(struct evq_checkpoint_watcher *watcher,
                                              const char *root, const char *path,
                                              const char *fingerprint,
                                              struct evq_error *err) EVQ_CHECK_RESULT;
void evq_checkpoint_watcher_close(
    struct evq_checkpoint_watcher *watcher); // Accepts NULL; waits for no look that hangs.

#endif
