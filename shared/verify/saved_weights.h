/*
 * Checks whether a checkpoint on disk still has the weights that a job evaluated. A training may
 * save each step under one name, or start again where an earlier one had saved. A number must not
 * lead to other weights than its own. Threads as the queue.
 */
#ifndef EVQ_SHARED_VERIFY_SAVED_WEIGHTS_H
#define EVQ_SHARED_VERIFY_SAVED_WEIGHTS_H

#include "shared/config/config.h"
#include "shared/queue/queue.h"
#include "shared/verify/timed_verify.h"

/*
 * checkpoint is "root:path", as the training saved it. Returns, with a message unless EVQ_OK:
 *   EVQ_OK         the weights are still there, or this machine cannot tell: it does not have the
 *                  root, cannot read it in time, or does not know the job's fingerprint;
 *   EVQ_E_CHANGED  other weights have this name on this machine, or are being written there;
 *   EVQ_E_GONE     this machine has the root, and nothing has this name in it;
 *   EVQ_E_NOMEM, or an outage (evq_conn_is_outage()): the queue cannot answer.
 * verify: reads the checkpoint with a time limit; NULL: the caller's thread reads it, however long
 * that takes.
 */
enum evq_status evq_saved_weights_verify(struct evq_queue *queue, const struct evq_config *config,
                                         struct evq_timed_verify *verify, const char *job,
                                         const char *checkpoint,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether that answer means that the weights which gave the number are no longer there. */
static inline bool evq_saved_weights_lost(enum evq_status status)
{
    return status == EVQ_E_CHANGED || status == EVQ_E_GONE;
}

#endif
