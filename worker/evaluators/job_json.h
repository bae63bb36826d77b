/*
 * What a program is told of the job it evaluates: one JSON object, the content of $EVALQ_JOB and
 * the body of a persistent evaluator's job message. docs/evaluators.md lists its fields. Any
 * thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_JOB_JSON_H
#define EVQ_WORKER_EVALUATORS_JOB_JSON_H

#include "shared/base/buffer.h"
#include "worker/evaluators/evaluator.h"

/* Absolute path of what is to be evaluated: the prepared directory where there is one. Cut to
 * out_bytes. */
void evq_job_json_checkpoint(const struct evq_eval_request *request, char *out, size_t out_bytes);

/* Appends one object without newline. turn: as a message of type "job" to a program that takes
 * many, its number; 0: no message. result "" leaves that field out. */
void evq_job_json_text(const struct evq_eval_request *request, uint64_t turn, const char *result,
                       struct evq_buffer *out);

/* Writes it to path, which must not exist yet. */
enum evq_status evq_job_json_write(const struct evq_eval_request *request, const char *result,
                                   const char *path, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
