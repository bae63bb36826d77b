/*
 * The native evaluator: evalq's own models, tasks and kernels. It keeps backend, plan, buffers and
 * data sets warm between the jobs of a slot. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_H

#include "worker/evaluators/evaluator.h"

struct evq_native;

/* gpus: 0 for the CPU; otherwise the GPUs 0 to gpus - 1 of this process, over which the layers of
 * language models are split. If one is missing, the CPU is used, and *ret_note says why; the caller
 * logs it. EVQ_E_DEVICE: a GPU computes wrong numbers. */
enum evq_status evq_native_open(int32_t gpus, int32_t threads, struct evq_native **ret_native,
                                char *ret_note, size_t note_bytes,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Accepts NULL. */
void evq_native_close(struct evq_native *native);

/* Runs the tasks of the suite. EVQ_E_GONE, EVQ_E_CHANGED, EVQ_E_INCOMPLETE concern the checkpoint.
 * EVQ_E_INVALID, EVQ_E_UNSUPPORTED, EVQ_E_CORRUPT, EVQ_E_LIMIT are final. EVQ_E_NOMEM, EVQ_E_DEVICE
 * and EVQ_E_IO may pass, and so may EVQ_E_NOT_FOUND: a data file is missing on this machine. The
 * results of a shard have sums and no metrics. */
enum evq_status evq_native_eval(struct evq_native *native, const struct evq_eval_request *request,
                                const struct evq_eval_report *report,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Checks types, models, data and options of the suite's tasks without opening a file. EVQ_E_INVALID
 * names the task and the fault. */
enum evq_status evq_native_check(const struct evq_suite *suite,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Forms the metrics of one task from the sums of all shards, with the same code as without shards.
 * Needs no device. result: task and sums are set; metrics and n are filled in from its arena. */
enum evq_status evq_native_merge(const struct evq_task_config *task, struct evq_result *result,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

#endif
