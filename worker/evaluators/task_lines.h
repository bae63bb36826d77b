/*
 * Interprets the JSON lines in which a persistent program reports a task or its samples. One
 * thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_TASK_LINES_H
#define EVQ_WORKER_EVALUATORS_TASK_LINES_H

#include "worker/evaluators/sample_store.h"

/* Finds the number of the task that a message names, among those of the suite. EVQ_E_CORRUPT: the
 * suite has no such task. */
enum evq_status evq_task_lines_find(const json_t *line, const struct evq_eval_request *request,
                                    size_t *ret_number, struct evq_error *err) EVQ_CHECK_RESULT;

/* Takes some samples of a task, whose own message follows. *samples becomes the store of that task;
 * samples of another task before it are given up. EVQ_E_CORRUPT: the message breaks the protocol.
 * Bad samples are no error. */
enum evq_status evq_task_lines_samples(const json_t *line, const struct evq_eval_request *request,
                                       struct evq_sample_store **samples,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
