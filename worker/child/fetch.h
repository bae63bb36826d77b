/*
 * A snapshot from the memory of its producer, which this worker does not share: over TCP into a
 * file of this machine's memory where it fits there, else of its scratch directory. No more than
 * the bytes that were announced are taken, and they are the producer's or there is no file
 * (XXH3-128). One thread.
 */
#ifndef EVQ_WORKER_FETCH_H
#define EVQ_WORKER_FETCH_H

#include "worker/child/scratch.h"
#include "worker/evaluators/evaluator.h"

struct evq_fetch_limits {
    int64_t connect_ms;
    int64_t silence_ms; // For an answer, and for each further block of EVQ_FETCH_BLOCK_BYTES.
    int64_t busy_ms;    // In all, while the producer serves as many others as it may.
    uint32_t cuts_max;  // A cut transfer goes on where it was; after so many it is given up.
};

#define EVQ_FETCH_BLOCK_BYTES (1 << 20)

extern const struct evq_fetch_limits evq_fetch_limits_default;

struct evq_fetched {
    char directory[EVQ_SCRATCH_PATH_BYTES]; // "": none.
    char name[256];                         // Of the file in it.
    int directory_fd;                       // Its lock too. -1: none.
    uint32_t cuts;                          // Transfers that ended too early.
};

/*
 * Fetches what job->snapshot names. report (may be NULL) hears of the progress and may stop it.
 * EVQ_OK: the caller ends it with evq_fetch_close(). EVQ_E_GONE: the producer, or the snapshot,
 * is no more. EVQ_E_CHANGED: its size is another. EVQ_E_RETRY: the producer cannot be reached, is
 * too slow, busy, or cut the transfer too often; other bytes arrived; or there is no room here.
 * EVQ_E_STOPPED; EVQ_E_INVALID: the job says not enough; EVQ_E_NOMEM.
 */
enum evq_status evq_fetch_open(const struct evq_job *job, const char *scratch,
                               const struct evq_fetch_limits *limits,
                               const struct evq_eval_report *report,
                               struct evq_fetched *ret_fetched,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Removes it. Also of one that was never opened: {.directory_fd = -1}. */
void evq_fetch_close(struct evq_fetched *fetched);

/* Removes what killed workers of this user left in memory. */
void evq_fetch_prune(void);

#endif
