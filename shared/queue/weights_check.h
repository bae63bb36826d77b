/*
 * Whether the place of a checkpoint still holds the weights that a job evaluated: a training may
 * save each step under one name, or begin anew where an earlier one had saved. A number must not
 * lead to other weights than its own.
 */
#ifndef EVQ_SHARED_WEIGHTS_H
#define EVQ_SHARED_WEIGHTS_H

#include "shared/checkpoint/checkpoint_watcher.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"

/*
 * checkpoint is "root:path", as the training saved it. EVQ_E_CHANGED, with a sentence: other
 * weights have its name on this machine, or are being written there. EVQ_OK: its own, none, or it
 * cannot be told from here: the root is not known, cannot be read or does not answer in time, or
 * the job's fingerprint is not known. Else the queue cannot answer: see evq_conn_passes(), and
 * EVQ_E_NOMEM. looker: by which it is looked at; NULL: here, however long that takes.
 */
enum evq_status evq_weights_verify(struct evq_queue *queue, const struct evq_config *config,
                                   struct evq_checkpoint_watcher *looker, const char *job,
                                   const char *checkpoint, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
