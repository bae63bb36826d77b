/*
 * The child process of one slot. It holds the devices, the evaluators and what they keep warm, and
 * takes jobs from the supervisor through file descriptor EVQ_CHILD_FD. It never sees Redis or a
 * token.
 */
#ifndef EVQ_WORKER_CHILD_CHILD_H
#define EVQ_WORKER_CHILD_CHILD_H

#include "worker/options.h"

#define EVQ_CHILD_FD 3

enum evq_exit evq_child_main(const struct evq_options *options);

#endif
