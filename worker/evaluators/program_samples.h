/*
 * Reads the samples that a command left beside its results: samples.jsonl of the documented form,
 * or the files of a harness. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PROGRAM_SAMPLES_H
#define EVQ_WORKER_EVALUATORS_PROGRAM_SAMPLES_H

#include "worker/evaluators/evaluator.h"

/*
 * Keeps the samples of one task, if the suite wants them and the program left some, and notes them
 * in the result. form: as of evq_result_files_read(). With form "", the file is samples.jsonl in
 * the attempt's directory, or samples_TASK.jsonl if the suite has several tasks.
 */
void evq_program_samples_keep(const struct evq_eval_request *request, const char *form,
                              struct evq_result *result);

#endif
