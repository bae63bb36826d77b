/*
 * What a suite's prepare command makes of a checkpoint (merged, converted): made once per
 * checkpoint content and variant, shared by the slots and workers of one scratch directory, removed
 * least recently used first. docs/evaluators.md.
 */
#ifndef EVQ_WORKER_PREPARE_H
#define EVQ_WORKER_PREPARE_H

#include "worker/evaluators/command.h"

#define EVQ_PREPARE_KEPT 4 // Prepared checkpoints of one scratch directory that are not in use.

struct evq_prepared { // Held while the evaluation runs.
    int lock_fd;
    char path[4096];
};

/*
 * key names the content: fingerprint, variant and suite's prepare. Runs the command when nothing is
 * there yet; waits, with progress, while another process prepares the same. Statuses as
 * evq_program_run_wait(). The caller closes *ret_prepared.
 */
enum evq_status evq_prepare_open(const struct evq_evaluator *evaluator,
                                 const struct evq_command_place *place, const char *key,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report,
                                 struct evq_prepared *ret_prepared, struct evq_failure *failure,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
void evq_prepare_close(struct evq_prepared *prepared);

#endif
