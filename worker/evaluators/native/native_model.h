/* Builds the model of a task over tokens. Any thread. */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_MODEL_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_MODEL_H

#include "worker/models/model.h"
#include "worker/tasks/task.h"

#define EVQ_NATIVE_CPU_ROWS 2048 // Most rows of a batch of tokens on the CPU.

/*
 * The plan's `compute` follows the task. `auto` means bf16 for weights in bf16 or fp16 if fast_bf16
 * (a GPU that multiplies bf16), otherwise fp32. *ret_length: length of the sequences; 0: as the
 * model has it.
 */
enum evq_status evq_native_model_build(const struct evq_task *task,
                                       const struct evq_task_config *config,
                                       const struct evq_checkpoint *checkpoint, bool fast_bf16,
                                       int32_t *ret_length, struct evq_model **ret_model,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
