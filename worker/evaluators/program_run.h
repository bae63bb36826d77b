/*
 * Runs a program to its end, with log, time limit and cancelling. The command evaluator and prepare
 * use it. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PROGRAM_RUN_H
#define EVQ_WORKER_EVALUATORS_PROGRAM_RUN_H

#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/failure.h"
#include "worker/evaluators/program_log.h"

#define EVQ_PROGRAM_RUN_EXIT_FINAL 65   // EX_DATAERR: the program says that a retry is useless.
#define EVQ_PROGRAM_RUN_GRACE_MS   5000 // Time from SIGTERM to SIGKILL.

struct evq_program_run {
    const struct evq_evaluator *evaluator;
    const struct evq_eval_request
        *request;                 // Its suite's time limit and its scratch directory count.
    const char *devices;          // Text for CUDA_VISIBLE_DEVICES.
    const char *log_path;         // NULL: no log file.
    const struct evq_pair *extra; // Further environment variables: EVALQ_JOB and others.
    size_t extra_count;
    const struct evq_eval_report *report;
};

/*
 * EVQ_OK: the exit status was 0. EVQ_E_TIMEOUT, EVQ_E_STOPPED (report said so): the group was
 * killed. EVQ_E_INVALID: the exit status was EVQ_PROGRAM_RUN_EXIT_FINAL, or the program cannot be
 * executed. EVQ_E_RETRY: any other end; failure->crash is set after a signal. failure->detail holds
 * the end of the log, also on EVQ_OK, and what err does not say.
 */
enum evq_status evq_program_run_wait(const struct evq_program_run *run, struct evq_failure *failure,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* The error for a program that ended with EVQ_PROGRAM_RUN_EXIT_FINAL: EVQ_E_INVALID with the last
 * line of its log as the reason. */
enum evq_status evq_program_run_final(const char *name, const struct evq_program_log *output,
                                      struct evq_error *err);

#endif
