/*
 * `evalq-worker eval PATH --suite NAME`: evaluates one checkpoint at once, without Redis.
 */
#ifndef EVQ_WORKER_EVAL_H
#define EVQ_WORKER_EVAL_H

#include "worker/options.h"

/* Prints results on standard output and errors on standard error. Returns the exit code. */
enum evq_exit evq_eval_main(const struct evq_options *options);

#endif
