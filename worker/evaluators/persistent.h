/*
 * The persistent evaluator: a program that is started once per slot. It takes jobs as JSON lines on
 * its standard input and answers on its standard output, so that imports, data and model stay warm.
 * docs/evaluators.md describes the protocol. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PERSISTENT_H
#define EVQ_WORKER_EVALUATORS_PERSISTENT_H

#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/failure.h"

struct evq_persistent;

/* Does not start the program yet. evaluator and the texts are borrowed. EVQ_E_NOMEM. */
enum evq_status evq_persistent_new(const struct evq_evaluator *evaluator, const char *devices,
                                   const char *scratch, struct evq_persistent **ret_persistent,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
/* Starts the program before the first job of suite and waits until it is ready. After a failure,
 * the first job tries again. EVQ_E_STOPPED: report->progress said so. */
enum evq_status evq_persistent_warm(struct evq_persistent *persistent,
                                    const struct evq_config *config, const struct evq_suite *suite,
                                    const struct evq_eval_report *report,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Asks the program to exit, then kills it. Accepts NULL. */
void evq_persistent_free(struct evq_persistent *persistent);

/*
 * Starts the program if it does not run, waits until it is ready, and hands it the job.
 * EVQ_E_TIMEOUT, EVQ_E_STOPPED: the program was killed unless it answered the cancel in time.
 * EVQ_E_RETRY, EVQ_E_INVALID: the program reported it; with failure->crash the program died or
 * broke the protocol. log_path NULL: no log.
 */
enum evq_status evq_persistent_eval(struct evq_persistent *persistent, const char *log_path,
                                    const struct evq_eval_request *request,
                                    const struct evq_eval_report *report,
                                    struct evq_failure *failure,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

#endif
