/* Opens the checkpoint of a request as one of its tasks reads it. Any thread. */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_CHECKPOINT_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_CHECKPOINT_H

#include "shared/checkpoint/checkpoint.h"
#include "worker/evaluators/evaluator.h"

/* Returns the statuses of evq_checkpoint_open(). EVQ_E_IO: the prepared directory does not exist.
 */
enum evq_status evq_native_checkpoint_open(const struct evq_eval_request *request,
                                           const struct evq_task_config *config,
                                           struct evq_checkpoint **ret_checkpoint,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether both tasks read the same weights of a checkpoint: they have the same key, base and
 * adapter. */
bool evq_native_checkpoint_same(const struct evq_task_config *a, const struct evq_task_config *b);

#endif
