/*
 * The native evaluator: evalq's own models, tasks and kernels. Keeps backend, plan, buffers and
 * data sets warm between the jobs of a slot. One thread.
 */
#ifndef EVQ_WORKER_NATIVE_H
#define EVQ_WORKER_NATIVE_H

#include "worker/evaluators/evaluator.h"

struct evq_native;

/* gpus: 0 the CPU, else the CUDA devices 0 to gpus - 1, which share the batches of each task out
 * (where one is missing, the CPU, with *ret_note saying why; the caller logs it). EVQ_E_DEVICE: a
 * device is there that computes wrong numbers. */
enum evq_status evq_native_open(int32_t gpus, int32_t threads, struct evq_native **ret_native,
                                char *ret_note, size_t note_bytes,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Accepts NULL. False: a load ahead hangs still, in the backend's code and with the configuration
 * of its job: both stay, and the process ends by _exit(). */
bool evq_native_close(struct evq_native *native);

/* Runs the suite's tasks. EVQ_E_GONE, EVQ_E_CHANGED, EVQ_E_INCOMPLETE as the checkpoint says;
 * EVQ_E_INVALID, EVQ_E_UNSUPPORTED, EVQ_E_CORRUPT, EVQ_E_LIMIT are final; EVQ_E_NOMEM,
 * EVQ_E_DEVICE, EVQ_E_IO may pass, and so may EVQ_E_NOT_FOUND: a data file is missing on this
 * machine. A shard's results carry sums and no metrics. */
enum evq_status evq_native_eval(struct evq_native *native, const struct evq_eval_request *request,
                                const struct evq_eval_report *report,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * The job that may come next, of a suite that wants no `prepare`: its weights are loaded into a
 * second set of the device's memory while the present job computes. Where there is no device or no
 * memory for it, nothing happens. Takes job over; request is the job's: the directory root_path is
 * opened, and the job's path beneath it found, by the load. Its config, suite and root_path outlive
 * native. Does not wait for any file.
 */
void evq_native_load_prefetch(struct evq_native *native, struct evq_job *job,
                              const struct evq_eval_request *request);

/* Whether the suite's tasks can be understood: types, models, data, their options. No file is
 * opened. EVQ_E_INVALID names the task and the fault. */
enum evq_status evq_native_check(const struct evq_suite *suite,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Forms the metrics of one task from merged sums (of all shards): same code as the unsharded end.
 * Needs no device. result: task and sums set; metrics, n filled in from its arena. */
enum evq_status evq_native_merge(const struct evq_task_config *task, struct evq_result *result,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

#endif
