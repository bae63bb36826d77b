/*
 * `evalq-worker eval PATH --suite NAME`: one checkpoint, here and now, without Redis.
 */
#ifndef EVQ_WORKER_EVAL_H
#define EVQ_WORKER_EVAL_H

#include "worker/options.h"

/* Prints the results on standard output, errors on standard error. Returns the exit code. */
enum evq_exit evq_eval_main(const struct evq_options *options);

#endif
