/*
 * The JSON object that tells a program about its job: the content of $EVALQ_JOB, and the body of a
 * job message to a persistent evaluator. docs/evaluators.md lists its fields. Any thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_JOB_JSON_H
#define EVQ_WORKER_EVALUATORS_JOB_JSON_H

#include "shared/base/buffer.h"
#include "worker/evaluators/evaluator.h"

/* The absolute path of what is evaluated: the prepared directory if there is one. It is truncated
 * to out_bytes. */
void evq_job_json_checkpoint(const struct evq_eval_request *request, char *out, size_t out_bytes);

/* Appends one object without a newline. turn: number of the job in a message to a persistent
 * program; 0: not a message. result "": the field is left out. */
void evq_job_json_text(const struct evq_eval_request *request, uint64_t turn, const char *result,
                       struct evq_buffer *out);

/* Writes the object to path, which must not exist yet. */
enum evq_status evq_job_json_write(const struct evq_eval_request *request, const char *result,
                                   const char *path, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
