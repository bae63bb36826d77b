/*
 * One job as the supervisor gave it to the child of a slot: the job, its suite, and the directory
 * that contains its checkpoint. One thread.
 */
#ifndef EVQ_WORKER_CHILD_CHILD_JOB_H
#define EVQ_WORKER_CHILD_CHILD_JOB_H

#include "shared/config/config.h"
#include "shared/queue/codec.h"
#include "worker/child/fetch.h"
#include "worker/child/remote_fetch.h"
#include "worker/evaluators/evaluator.h"

struct evq_child_job {
    const char *id;
    struct evq_job *job;
    const struct evq_suite *suite;
    const char *root_path; // The directory of the root, or of what was fetched.
    int root_fd;
    struct evq_fetched fetched;       // Weights that came from another machine's memory.
    struct evq_remote_fetched remote; // A checkpoint of a remote root, in the cache.
    const char **tasks_done;
    size_t task_done_count;
};

/*
 * Reads the job from a note. Fetches weights that are in another machine's memory, or a checkpoint
 * of a remote root, and reports the progress. The texts belong to the note, which must outlive the
 * job. EVQ_E_RETRY, EVQ_E_INCOMPLETE: the set-up of this machine is at fault. Other errors are
 * those of evq_remote_fetch_open(). Call evq_child_job_close() whatever the result.
 */
enum evq_status evq_child_job_open(const struct evq_config *config, const struct evq_note *note,
                                   const struct evq_eval_report *report, struct evq_child_job *work,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_child_job_close(struct evq_child_job *work);

/* The path of the checkpoint beneath root_path. */
const char *evq_child_job_path(const struct evq_child_job *work);

#endif
