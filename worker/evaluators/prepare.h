/*
 * Runs a suite's prepare command (merge, convert). It runs once for each content of a checkpoint
 * and variant. The slots and workers that use the same scratch directory share the result, and the
 * least recently used is removed first. docs/evaluators.md describes it. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PREPARE_H
#define EVQ_WORKER_EVALUATORS_PREPARE_H

#include "worker/evaluators/command.h"

#define EVQ_PREPARE_KEPT 4 // Unused prepared checkpoints that are kept in one scratch directory.

struct evq_prepared { // A prepared checkpoint, locked while the evaluation runs.
    int lock_fd;
    char path[4096];
};

/*
 * key identifies the content: fingerprint, variant, and the suite's prepare. Runs the command if
 * nothing is prepared yet. Waits, with progress, while another process prepares the same. Returns
 * the statuses of evq_program_run_wait(). The caller closes *ret_prepared.
 */
enum evq_status evq_prepare_open(const struct evq_evaluator *evaluator,
                                 const struct evq_program_place *place, const char *key,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report,
                                 struct evq_prepared *ret_prepared, struct evq_failure *failure,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
void evq_prepare_close(struct evq_prepared *prepared);

#endif
