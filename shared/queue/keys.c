#include "shared/queue/keys.h"

#include <stdio.h>

#include "shared/queue/job.h"

enum evq_status evq_keys_prefix(const char *queue, char out[EVQ_KEYS_BYTES_MAX],
                                struct evq_error *err)
{
    // These are the characters of names. None of them can end the hash tag or look like a pattern.
    if (queue == NULL || !evq_job_name_valid(queue, EVQ_KEYS_QUEUE_BYTES_MAX)) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "the queue name '%.80s' is not 1 to %d characters of A-Z a-z 0-9 . _ -",
            queue != NULL ? queue : "", EVQ_KEYS_QUEUE_BYTES_MAX);
    }
    (void)snprintf(out, EVQ_KEYS_BYTES_MAX, "evalq:{%s}:", queue);
    return EVQ_OK;
}

void evq_keys_wake(const char *prefix, uint32_t class_number, char out[EVQ_KEYS_BYTES_MAX])
{
    (void)snprintf(out, EVQ_KEYS_BYTES_MAX, "%swake:%u", prefix, (unsigned)class_number);
}

void evq_keys_results(const char *prefix, char out[EVQ_KEYS_BYTES_MAX])
{
    (void)snprintf(out, EVQ_KEYS_BYTES_MAX, "%sresults", prefix);
}

void evq_keys_samples(const char *prefix, char out[EVQ_KEYS_BYTES_MAX])
{
    (void)snprintf(out, EVQ_KEYS_BYTES_MAX, "%ssamples", prefix);
}
