/*
 * Whether the place of a checkpoint still holds the weights that a job evaluated: a training may
 * save each step under one name, or begin anew where an earlier one had saved. A number must not
 * lead to other weights than its own.
 */
#ifndef EVQ_SHARED_SAVED_WEIGHTS_H
#define EVQ_SHARED_SAVED_WEIGHTS_H

#include "shared/checkpoint/checkpoint_watcher.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"

/*
 * checkpoint is "root:path", as the training saved it. Returns, with a sentence unless EVQ_OK:
 *   EVQ_OK         the weights are still there, or this machine cannot tell: it does not have the
 *                  root, cannot read it in time, or does not know the job's fingerprint;
 *   EVQ_E_CHANGED  other weights have the name on this machine, or are being written there;
 *   EVQ_E_GONE     this machine has the root, and nothing has that name in it;
 *   EVQ_E_NOMEM, or one that evq_conn_is_outage() knows: the queue cannot answer.
 * watcher: the thread that reads the checkpoint; NULL: the caller's own, however long that takes.
 */
enum evq_status evq_saved_weights_verify(struct evq_queue *queue, const struct evq_config *config,
                                         struct evq_checkpoint_watcher *watcher, const char *job,
                                         const char *checkpoint,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether that answer means that the weights which gave the number are no longer there. */
static inline bool evq_saved_weights_lost(enum evq_status status)
{
    return status == EVQ_E_CHANGED || status == EVQ_E_GONE;
}

#endif
