/*
 * Runs one evaluation after another on one slot's devices, whatever the suite's evaluator, and
 * keeps warm what can be kept: the native engine, persistent programs. Used by the child of a slot
 * and by `evalq-worker eval`. One thread.
 */
#ifndef EVQ_WORKER_RUNNER_H
#define EVQ_WORKER_RUNNER_H

#include "worker/evaluators/evaluator.h"
#include "worker/evaluators/failure.h"

struct evq_runner;

struct evq_runner_config {
    const struct evq_config *config; // Outlives the runner.
    const char *devices;             // CUDA_VISIBLE_DEVICES of this slot; "": the CPU.
    int32_t threads;                 // CPU threads; 0: all.
};

enum evq_status evq_runner_open(const struct evq_runner_config *config,
                                struct evq_runner **ret_runner,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Accepts NULL. Ends persistent programs. False: as evq_native_close(). */
bool evq_runner_close(struct evq_runner *runner);

/* Opens the native engine ahead of the first job. ret_note: what people should know ("no GPU:
 * ..."), "" nothing. */
enum evq_status evq_runner_warm(struct evq_runner *runner, char *ret_note, size_t note_bytes,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Starts the persistent evaluators of all suites that can run here, and waits until they are ready.
 * ret_note: why one is not, "": all are. The first job of that one tries again. EVQ_E_STOPPED. */
enum evq_status evq_runner_start(struct evq_runner *runner, const struct evq_eval_report *report,
                                 char *ret_note, size_t note_bytes,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* The job that may come next: where evalq's own evaluator can, it loads its weights beside the
 * present ones. Takes job over; root_path, the directory of its root, is the configuration's. Waits
 * for no file. */
void evq_runner_prefetch(struct evq_runner *runner, const struct evq_suite *suite,
                         struct evq_job *job, const char *root_path);

/*
 * Checks that the checkpoint is there, complete and the one that was submitted, prepares it where
 * the suite says so, and runs the suite's evaluator. request->prepared is filled in by the runner.
 * id names the log. Statuses as the evaluators'; EVQ_E_GONE, EVQ_E_CHANGED, EVQ_E_INCOMPLETE.
 */
enum evq_status evq_runner_eval(struct evq_runner *runner, const char *id,
                                const struct evq_eval_request *request,
                                const struct evq_eval_report *report, struct evq_failure *failure,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_INVALID, with a sentence, when a suite cannot be served as it is configured (evaluator
 * unknown, not shardable). */
enum evq_status evq_runner_suite_check(const struct evq_config *config,
                                       const struct evq_suite *suite,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
