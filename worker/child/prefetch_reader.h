/*
 * The process that reads the weights of the job that may come next into the page cache, so that its
 * load is fast. It takes the job's record from standard input, holds no device and does not know
 * Redis. It reads when nothing else uses the disk, and can be killed at any time.
 */
#ifndef EVQ_WORKER_CHILD_PREFETCH_READER_H
#define EVQ_WORKER_CHILD_PREFETCH_READER_H

#include "worker/options.h"

/* EVQ_EXIT_OK: all weights are in the page cache now. */
enum evq_exit evq_prefetch_reader_main(const struct evq_options *options);

#endif
