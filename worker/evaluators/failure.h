/*
 * What is kept of a failed evaluation besides its one-sentence error: whether a process of the
 * evaluator crashed, and all details worth reading (exit status, end of the log).
 */
#ifndef EVQ_WORKER_EVALUATORS_FAILURE_H
#define EVQ_WORKER_EVALUATORS_FAILURE_H

#include <stdbool.h>

#include "shared/queue/queue.h"

#define EVQ_FAILURE_DETAIL_BYTES 8192

struct evq_failure {
    // A process was killed by a signal or broke its protocol. This is charged as a crash.
    bool crash;
    char detail[EVQ_FAILURE_DETAIL_BYTES];
};

/* Translates the status of a failed evaluation into the kind of failure that Redis is told. */
enum evq_fail_kind evq_failure_kind(enum evq_status status, bool crash);

#endif
