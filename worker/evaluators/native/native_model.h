/* The model of a task over tokens. Any thread. */
#ifndef EVQ_WORKER_NATIVE_MODEL_H
#define EVQ_WORKER_NATIVE_MODEL_H

#include "worker/models/model.h"
#include "worker/tasks/task.h"

#define EVQ_NATIVE_CPU_ROWS 2048 // Of a batch of tokens on the CPU.

/*
 * With its plan's `compute` as the task says. `auto` is bf16 for weights of bf16 or fp16 where
 * fast_bf16 (a GPU that multiplies bf16), else fp32. *ret_length: of its sequences, 0: as the model
 * has it.
 */
enum evq_status evq_native_model_build(const struct evq_task *task,
                                       const struct evq_task_config *config,
                                       const struct evq_checkpoint *checkpoint, bool fast_bf16,
                                       int32_t *ret_length, struct evq_model **ret_model,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
