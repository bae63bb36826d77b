/*
 * The command evaluator: a program of the worker's configuration, run once per attempt.
 * docs/evaluators.md. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_COMMAND_H
#define EVQ_WORKER_EVALUATORS_COMMAND_H

#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/failure.h"

struct evq_program_place { // Where the command of an attempt, or its prepare command, runs.
    const char *devices;   // CUDA_VISIBLE_DEVICES; "" on the CPU.
    const char *log_path;  // Log of this attempt; NULL: none.
};

/* Returns the statuses of evq_program_run_wait() and evq_result_files_read(). Exit status 0 without
 * results is EVQ_E_RETRY. */
enum evq_status evq_command_eval(const struct evq_evaluator *evaluator,
                                 const struct evq_program_place *place,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report, struct evq_failure *failure,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

#endif
