/*
 * One job as the supervisor gave it to the child of a slot: the job itself, its suite, and the
 * directory in which its checkpoint is found.
 */
#ifndef EVQ_WORKER_CHILD_CHILD_JOB_H
#define EVQ_WORKER_CHILD_CHILD_JOB_H

#include "shared/config/config.h"
#include "shared/queue/codec.h"
#include "worker/child/fetch.h"
#include "worker/evaluators/evaluator.h"

struct evq_child_job {
    const char *id;
    struct evq_job *job;
    const struct evq_suite *suite;
    const char *root_path; // Where the root is, or what was fetched.
    int root_fd;
    struct evq_fetched fetched; // From another machine's memory.
    const char **tasks_done;
    size_t task_done_count;
};

/*
 * What lies in another machine's memory is fetched, of which report hears. The names are the
 * note's, which must stay. EVQ_E_RETRY, EVQ_E_INCOMPLETE: of this machine's set-up, not of the job.
 * To be closed however it ends.
 */
enum evq_status evq_child_job_open(const struct evq_config *config, const struct evq_note *note,
                                   const struct evq_eval_report *report, struct evq_child_job *work,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_child_job_close(struct evq_child_job *work);

/* Where the checkpoint lies in that directory. */
const char *evq_child_job_path(const struct evq_child_job *work);

#endif
