/*
 * `evalq-worker inspect PATH`: prints what a checkpoint contains.
 */
#ifndef EVQ_WORKER_INSPECT_H
#define EVQ_WORKER_INSPECT_H

#include "worker/options.h"

/* Prints on standard output and errors on standard error. Returns the exit code. */
enum evq_exit evq_inspect_main(const struct evq_options *options);

#endif
