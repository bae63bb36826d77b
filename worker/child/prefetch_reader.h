/*
 * The process that reads the weights of a job that may come next into the page cache, so that its
 * load finds them there. It takes the job's record from standard input, holds no device and knows
 * no Redis; it reads when nothing else wants the disk, and may be killed at any time.
 */
#ifndef EVQ_WORKER_CHILD_PREFETCH_READER_H
#define EVQ_WORKER_CHILD_PREFETCH_READER_H

#include "worker/options.h"

/* EVQ_EXIT_OK: all of them lie there now. */
enum evq_exit evq_prefetch_reader_main(const struct evq_options *options);

#endif
