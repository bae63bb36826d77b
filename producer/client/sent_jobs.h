/*
 * Remembers which jobs the newest submits of a client became, by the queue's replies. The sender's
 * thread adds entries; any thread may look them up.
 */
#ifndef EVQ_PRODUCER_CLIENT_SENT_JOBS_H
#define EVQ_PRODUCER_CLIENT_SENT_JOBS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/queue/queue.h"

#define EVQ_SENT_JOBS_MAX 1024

struct evq_sent_jobs {
    pthread_mutex_t lock;
    struct evq_sent_job *entries[EVQ_SENT_JOBS_MAX]; // Round robin.
    uint64_t count;                                  // All entries that were ever added.
};

void evq_sent_jobs_init(struct evq_sent_jobs *sent_jobs);
void evq_sent_jobs_free(struct evq_sent_jobs *sent_jobs);
/* Adds an entry. sent: the queue's reply; NULL: it refused the job. Adds nothing if memory runs
 * out. */
void evq_sent_jobs_add(struct evq_sent_jobs *sent_jobs, const struct evq_job *job,
                       const struct evq_submitted *sent);
/* Finds the newest job of the suite whose path, which is relative to its root, is the end of
 * `path`. out "": no job of it will end. Returns false if there is no entry. */
bool evq_sent_jobs_find(struct evq_sent_jobs *sent_jobs, const char *path, const char *suite,
                        char out[EVQ_JOB_ID_BYTES_MAX]);

#endif
