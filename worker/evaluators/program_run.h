/*
 * One run of a program to its end: log, time limit, cancelling. Shared by the command evaluator and
 * prepare. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PROGRAM_RUN_H
#define EVQ_WORKER_EVALUATORS_PROGRAM_RUN_H

#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/failure.h"
#include "worker/evaluators/program_log.h"

#define EVQ_ATTEMPT_EXIT_FINAL 65   // EX_DATAERR: a program says that a retry is of no use.
#define EVQ_ATTEMPT_GRACE_MS   5000 // From SIGTERM to SIGKILL.

struct evq_program_run {
    const struct evq_evaluator *evaluator;
    const char *devices;  // CUDA_VISIBLE_DEVICES.
    const char *log_path; // NULL: no log file.
    int64_t log_bytes_max;
    const char *scratch;          // Working directory unless the evaluator names one.
    const struct evq_pair *extra; // Joins the environment: EVALQ_JOB, ...
    size_t extra_count;
    int64_t limit_seconds;
    const struct evq_eval_report *report;
};

/*
 * EVQ_OK: exit status 0. EVQ_E_TIMEOUT, EVQ_E_STOPPED (report said so): the group was killed.
 * EVQ_E_INVALID: exit status EVQ_ATTEMPT_EXIT_FINAL, or the program cannot be executed.
 * EVQ_E_RETRY: any other end; failure->crash for a signal. failure->detail: the tail of its
 * log, also on EVQ_OK, and what err does not say of its end.
 */
enum evq_status evq_program_run_wait(const struct evq_program_run *attempt,
                                     struct evq_failure *failure,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Of a program that ended with EVQ_ATTEMPT_EXIT_FINAL: EVQ_E_INVALID, and the last line of its log
 * as the reason. */
enum evq_status evq_program_run_final(const char *name, const struct evq_program_log *output,
                                      struct evq_error *err);

#endif
