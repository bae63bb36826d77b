/*
 * What is kept of a failed evaluation beside its one-sentence error: whether a process of the
 * evaluator died of it, and everything worth reading (exit status, tail of the log).
 */
#ifndef EVQ_WORKER_FAILURE_H
#define EVQ_WORKER_FAILURE_H

#include <stdbool.h>

#define EVQ_FAILURE_DETAIL_BYTES 8192

struct evq_failure {
    bool crash; // A process was killed by a signal or broke its protocol: charged as a crash of the
                // worker.
    char detail[EVQ_FAILURE_DETAIL_BYTES];
};

#endif
