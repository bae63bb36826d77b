#include "producer/client/sent_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct evq_sent_job {
    char job[EVQ_JOB_ID_BYTES_MAX];
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    char path[]; // Path of the checkpoint, relative to its root.
};

void evq_sent_jobs_init(struct evq_sent_jobs *sent_jobs)
{
    memset(sent_jobs, 0, sizeof(*sent_jobs));
    (void)pthread_mutex_init(&sent_jobs->lock, NULL); // A default mutex cannot fail.
}

void evq_sent_jobs_free(struct evq_sent_jobs *sent_jobs)
{
    for (size_t at = 0; at < EVQ_SENT_JOBS_MAX; at++) {
        free(sent_jobs->entries[at]);
    }
    (void)pthread_mutex_destroy(&sent_jobs->lock); // Nobody holds it.
}

void evq_sent_jobs_add(struct evq_sent_jobs *sent_jobs, const struct evq_job *job,
                       const struct evq_submitted *sent)
{
    const size_t path_bytes = strlen(job->path) + 1;
    const bool ended = sent == NULL || sent->state >= EVQ_JOB_DONE;

    struct evq_sent_job *entry = calloc(1, sizeof(*entry) + path_bytes);
    if (entry == NULL) {
        return;
    }
    (void)snprintf(entry->job, sizeof(entry->job), "%s", ended ? "" : sent->id);
    (void)snprintf(entry->suite, sizeof(entry->suite), "%s", job->suite);
    memcpy(entry->path, job->path, path_bytes);
    (void)pthread_mutex_lock(&sent_jobs->lock); // Held for moments.
    struct evq_sent_job **place = &sent_jobs->entries[sent_jobs->count++ % EVQ_SENT_JOBS_MAX];
    free(*place);
    *place = entry;
    (void)pthread_mutex_unlock(&sent_jobs->lock); // Held by this thread.
}

/* Whether path is tail, or ends in a slash and tail. */
static bool ends_in(const char *path, const char *tail)
{
    const size_t path_bytes = strlen(path);
    const size_t tail_bytes = strlen(tail);

    return path_bytes >= tail_bytes && strcmp(path + path_bytes - tail_bytes, tail) == 0 &&
           (path_bytes == tail_bytes || path[path_bytes - tail_bytes - 1] == '/');
}

bool evq_sent_jobs_find(struct evq_sent_jobs *sent_jobs, const char *path, const char *suite,
                        char out[EVQ_JOB_ID_BYTES_MAX])
{
    bool found = false;

    (void)pthread_mutex_lock(&sent_jobs->lock); // Held for moments.
    for (uint64_t back = 1; !found && back <= sent_jobs->count && back <= EVQ_SENT_JOBS_MAX;
         back++) {
        const struct evq_sent_job *entry =
            sent_jobs->entries[(sent_jobs->count - back) % EVQ_SENT_JOBS_MAX];
        found = strcmp(entry->suite, suite) == 0 && ends_in(path, entry->path);
        if (found) {
            memcpy(out, entry->job, EVQ_JOB_ID_BYTES_MAX);
        }
    }
    (void)pthread_mutex_unlock(&sent_jobs->lock); // Held by this thread.
    return found;
}
