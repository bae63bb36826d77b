/*
 * Fetches a checkpoint of a remote root into this machine's cache, once for all slots and workers.
 * The helper (shared/remote/remote.h) talks to the store. One thread.
 */
#ifndef EVQ_WORKER_CHILD_REMOTE_FETCH_H
#define EVQ_WORKER_CHILD_REMOTE_FETCH_H

#include <limits.h>

#include "worker/evaluators/evaluator.h"

struct evq_remote_fetched {
    char directory[PATH_MAX + 64]; // "": nothing was fetched.
    char name[256];                // The checkpoint's name in the directory.
    int lock_fd;                   // Keeps the checkpoint in the cache; -1: none.
};

/*
 * Makes sure that the job's checkpoint is in the cache. Tells `report` the progress; `report` can
 * stop the fetch. After EVQ_OK the caller calls evq_remote_fetch_close(). EVQ_E_GONE: the store no
 * longer has the checkpoint. EVQ_E_CHANGED: its files changed after the submit. EVQ_E_FULL: the
 * disk or the cache is full. EVQ_E_INCOMPLETE: the store fails, this machine's set-up is at fault,
 * or the checkpoint is larger than the cache. Neither EVQ_E_FULL nor EVQ_E_INCOMPLETE charges the
 * attempt. EVQ_E_RETRY: the data is damaged. EVQ_E_STOPPED; EVQ_E_INVALID; EVQ_E_IO; EVQ_E_NOMEM.
 */
enum evq_status evq_remote_fetch_open(const struct evq_config *config, const struct evq_root *root,
                                      const struct evq_job *job,
                                      const struct evq_eval_report *report,
                                      struct evq_remote_fetched *ret_fetched,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* Releases the lock, so that the cache can remove the checkpoint. Also accepts {.lock_fd = -1}. */
void evq_remote_fetch_close(struct evq_remote_fetched *fetched);

#endif
