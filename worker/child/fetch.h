/*
 * Fetches a snapshot from its producer's memory over TCP, for a worker on another host. The file is
 * stored in this machine's memory if it fits, otherwise in the scratch directory. Exactly the
 * announced number of bytes is accepted, and their XXH3-128 checksum must match. One thread.
 */
#ifndef EVQ_WORKER_CHILD_FETCH_H
#define EVQ_WORKER_CHILD_FETCH_H

#include "worker/child/scratch.h"
#include "worker/evaluators/evaluator.h"

struct evq_fetch_limits {
    int64_t connect_ms;
    // Time to wait for an answer, and for each further block of EVQ_FETCH_BLOCK_BYTES.
    int64_t silence_ms;
    int64_t busy_ms;   // Total time to wait while the producer serves as many others as it allows.
    uint32_t cuts_max; // A cut transfer continues where it was cut, at most so often.
};

#define EVQ_FETCH_BLOCK_BYTES (1 << 20)

extern const struct evq_fetch_limits evq_fetch_limits_default;

struct evq_fetched {
    char directory[EVQ_SCRATCH_PATH_BYTES]; // "": nothing was fetched.
    char name[256];                         // Name of the file in the directory.
    int directory_fd;                       // The directory, and the lock on it; -1: none.
    uint32_t cuts;                          // Transfers that ended too early.
};

/*
 * Fetches what job->snapshot names. report may be NULL; it hears of the progress and can stop the
 * transfer. EVQ_OK: the caller calls evq_fetch_close(). EVQ_E_GONE: the producer or the snapshot no
 * longer exists. EVQ_E_CHANGED: the size is different. EVQ_E_RETRY: the producer cannot be reached,
 * is too slow, is busy, or cut the transfer too often; the checksum is wrong; or this machine has
 * no space. EVQ_E_STOPPED; EVQ_E_INVALID: the job lacks a field; EVQ_E_NOMEM.
 */
enum evq_status evq_fetch_open(const struct evq_job *job, const char *scratch,
                               const struct evq_fetch_limits *limits,
                               const struct evq_eval_report *report,
                               struct evq_fetched *ret_fetched,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Removes the file. Also accepts {.directory_fd = -1}, which was never opened. */
void evq_fetch_close(struct evq_fetched *fetched);

/* Removes files that killed workers of this user left in memory. */
void evq_fetch_prune(void);

#endif
