/*
 * The tokenizer of a task: the one that the configuration names, otherwise the one beside the
 * weights. It is cached by the content of its files, because each checkpoint of a run has new
 * copies of them. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_TOKENIZER_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_TOKENIZER_H

#include "worker/evaluators/native/native_run.h"
#include "worker/tokenizer/tokenizer.h"

/* *ret_tokenizer NULL: the task reads tokens and names no tokenizer. Relative data paths start at
 * directory. Returns the errors of evq_tokenizer_open(), with advice. */
enum evq_status evq_native_tokenizer(struct evq_native_run *run, const char *directory,
                                     const struct evq_tokenizer **ret_tokenizer,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* For the cache. */
void evq_native_tokenizer_free(void *thing);

#endif
