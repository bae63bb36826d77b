/*
 * Runs evaluations one after another on the devices of one slot, for every kind of evaluator. Keeps
 * the native engine and persistent programs warm. Used by the child of a slot and by `evalq-worker
 * eval`. One thread.
 */
#ifndef EVQ_WORKER_CHILD_RUNNER_H
#define EVQ_WORKER_CHILD_RUNNER_H

#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/failure.h"

struct evq_runner;

struct evq_runner_config {
    const struct evq_config *config; // It must outlive the runner.
    const char *devices;             // CUDA_VISIBLE_DEVICES of this slot; "": the CPU.
    int32_t threads;                 // CPU threads; 0: all.
};

enum evq_status evq_runner_open(const struct evq_runner_config *config,
                                struct evq_runner **ret_runner,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Accepts NULL. Ends persistent programs. */
void evq_runner_close(struct evq_runner *runner);

/* Opens the native engine before the first job. ret_note: something that users should know ("no
 * GPU: ..."), or "". */
enum evq_status evq_runner_open_native(struct evq_runner *runner, char *ret_note, size_t note_bytes,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Starts the persistent evaluators of all suites that can run here and waits until they are ready.
 * ret_fault: the first failed start; its status is EVQ_OK if all are ready. The first job of that
 * evaluator starts it again. EVQ_E_STOPPED. */
enum evq_status evq_runner_start_programs(struct evq_runner *runner,
                                          const struct evq_eval_report *report,
                                          struct evq_error *ret_fault,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Checks that the checkpoint exists, is complete and is the one that was submitted, runs the
 * suite's prepare command if it has one, and runs its evaluator. The runner fills in
 * request->prepared. id names the log. Returns the statuses of the evaluators, and EVQ_E_GONE,
 * EVQ_E_CHANGED, EVQ_E_INCOMPLETE.
 */
enum evq_status evq_runner_eval(struct evq_runner *runner, const char *id,
                                const struct evq_eval_request *request,
                                const struct evq_eval_report *report, struct evq_failure *failure,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_INVALID with a message if a suite cannot be served as it is configured (unknown evaluator,
 * not shardable). */
enum evq_status evq_runner_suite_check(const struct evq_config *config,
                                       const struct evq_suite *suite,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
