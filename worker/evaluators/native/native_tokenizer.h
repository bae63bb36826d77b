/*
 * The tokenizer of a task: that of the configuration, else the one beside the weights. Kept between
 * jobs by the content of its files, which each checkpoint of a run brings anew. One thread.
 */
#ifndef EVQ_WORKER_NATIVE_TOKENIZER_H
#define EVQ_WORKER_NATIVE_TOKENIZER_H

#include "worker/evaluators/native/native_run.h"
#include "worker/tokenizer/tokenizer.h"

/* *ret_tokenizer NULL: the task reads tokens and names none. Paths of the data start at directory.
 * Errors of evq_tokenizer_open(), with what to do. */
enum evq_status evq_native_tokenizer(struct evq_native_run *run, const char *directory,
                                     const struct evq_tokenizer **ret_tokenizer,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* For what keeps them warm. */
void evq_native_tokenizer_free(void *thing);

#endif
