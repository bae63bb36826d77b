#include "producer/client/make_jobs.h"

#include <string.h>

static const struct evq_pair *pairs_copy(struct evq_arena *arena, const char **at, size_t count)
{
    struct evq_pair *pairs = evq_arena_array(arena, count == 0 ? 1 : count, sizeof(*pairs));

    for (size_t pair = 0; pairs != NULL && pair < count; pair++) {
        pairs[pair].key = evq_arena_strdup(arena, *at);
        *at += strlen(*at) + 1;
        pairs[pair].value = evq_arena_strdup(arena, *at);
        *at += strlen(*at) + 1;
        if (pairs[pair].key == NULL || pairs[pair].value == NULL) {
            return NULL;
        }
    }
    return pairs;
}

/* The submit checked the needs, so only a lack of memory can fail here. */
static bool needs_take(struct evq_job *job, const char *needs)
{
    job->needs_given = needs[0] != '\0';
    return !job->needs_given || evq_needs_parse(needs, job->arena, &job->needs, NULL) == EVQ_OK;
}

static struct evq_job *job_make(const struct evq_sender *sender,
                                const struct evq_submit_record *request, const char *suite,
                                const struct evq_place *place, const char *fingerprint,
                                const char *manifest)
{
    struct evq_job *job = evq_job_new();
    char variant[EVQ_JOB_NAME_BYTES_MAX + 1];
    const char *pairs = request->pairs;

    if (job == NULL) {
        return NULL;
    }
    evq_job_map_name(request->variant[0] == '\0' ? "regular" : request->variant,
                     EVQ_JOB_NAME_BYTES_MAX, variant);
    job->run = evq_arena_strdup(job->arena, sender->run);
    job->session_ms = request->session_ms;
    job->step = request->step;
    job->epoch = request->epoch;
    job->variant = evq_arena_strdup(job->arena, variant);
    job->suite = evq_arena_strdup(job->arena, suite);
    job->root = evq_arena_strdup(job->arena, place->root->name);
    job->path = evq_arena_strdup(job->arena, place->path);
    job->format = evq_arena_strdup(job->arena, request->format);
    job->fingerprint = evq_arena_strdup(job->arena, fingerprint);
    job->manifest = evq_arena_strdup(job->arena, manifest);
    job->host = evq_arena_strdup(job->arena, sender->host);
    job->created_ms = request->created_ms;
    job->priority = request->priority;
    job->policy = request->policy;
    job->keep = request->keep;
    job->params = pairs_copy(job->arena, &pairs, request->param_count);
    job->param_count = request->param_count;
    if (job->params != NULL) {
        job->trackers = pairs_copy(job->arena, &pairs, request->tracker_count);
        job->tracker_count = request->tracker_count;
    }
    if (job->run == NULL || job->variant == NULL || job->suite == NULL || job->root == NULL ||
        job->path == NULL || job->format == NULL || job->fingerprint == NULL ||
        job->manifest == NULL || job->host == NULL || job->params == NULL ||
        job->trackers == NULL || !needs_take(job, request->needs)) {
        evq_job_free(job);
        return NULL;
    }
    return job;
}

bool evq_jobs_make(const struct evq_sender *sender, struct evq_pending *item,
                   const struct evq_place *place, const char *fingerprint, const char *manifest)
{
    const char *list = item->request.suites;
    char suite[EVQ_SUBMIT_SUITE_BYTES];

    item->job_count = 0;
    while (item->job_count < EVQ_SUBMIT_SUITES_MAX && evq_submit_record_suite(&list, suite)) {
        struct evq_job *job = job_make(sender, &item->request, suite, place, fingerprint, manifest);
        if (job == NULL) {
            evq_jobs_free(item);
            return false;
        }
        item->jobs[item->job_count++] = job;
    }
    return true;
}

void evq_jobs_free(struct evq_pending *item)
{
    while (item->job_count > 0) {
        evq_job_free(item->jobs[--item->job_count]);
    }
}
