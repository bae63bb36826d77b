/*
 * What the queue answered to the newest submits of a client: which job each became. The sender's
 * thread notes, any thread asks.
 */
#ifndef EVQ_PRODUCER_SENT_JOBS_H
#define EVQ_PRODUCER_SENT_JOBS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/queue/queue.h"

#define EVQ_SENT_JOBS_MAX 1024

struct evq_sent_jobs {
    pthread_mutex_t lock;
    struct evq_sent_job *entries[EVQ_SENT_JOBS_MAX]; // Round robin.
    uint64_t count;                                  // Ever.
};

void evq_sent_jobs_init(struct evq_sent_jobs *answers);
void evq_sent_jobs_free(struct evq_sent_jobs *answers);
/* sent: the queue's answer; NULL: it refuses the job. Without memory nothing is noted. */
void evq_sent_jobs_note(struct evq_sent_jobs *answers, const struct evq_job *job,
                        const struct evq_submitted *sent);
/* The newest answer of the suite to a path that ends in the job's, which is relative to its root.
 * "": no job whose end is still to come. false: there is none. */
bool evq_sent_jobs_find(struct evq_sent_jobs *answers, const char *path, const char *suite,
                        char out[EVQ_JOB_ID_BYTES_MAX]);

#endif
