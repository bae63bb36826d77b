/*
 * What the queue answered to the newest submits of a client: which job each became. The sender's
 * thread notes, any thread asks.
 */
#ifndef EVQ_PRODUCER_ANSWERS_H
#define EVQ_PRODUCER_ANSWERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/queue/queue.h"

#define EVQ_ANSWERS_MAX 1024

struct evq_answers {
    pthread_mutex_t lock;
    struct evq_answer *entries[EVQ_ANSWERS_MAX]; // Round robin.
    uint64_t count;                              // Ever.
};

void evq_answers_init(struct evq_answers *answers);
void evq_answers_free(struct evq_answers *answers);
/* sent: the queue's answer; NULL: it refuses the job. Without memory nothing is noted. */
void evq_answers_note(struct evq_answers *answers, const struct evq_job *job,
                      const struct evq_submitted *sent);
/* The newest answer of the suite to a path that ends in the job's, which is relative to its root.
 * "": no job whose end is still to come. false: there is none. */
bool evq_answers_find(struct evq_answers *answers, const char *path, const char *suite,
                      char out[EVQ_JOB_ID_BYTES_MAX]);

#endif
