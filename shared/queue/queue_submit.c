#include <stdio.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "shared/queue/queue_call.h"

static const char *const answer_words[] = {"queued", "duplicate", "replaced", "followed",
                                           "skipped"};

void evq_queue_job_words(struct evq_queue *queue, const struct evq_job *job, const char *needs)
{
    evq_queue_call_text(queue, job->run);
    evq_queue_call_number(queue, job->session_ms);
    evq_queue_call_number(queue, job->step);
    evq_queue_call_text(queue, job->variant);
    evq_queue_call_text(queue, job->suite);
    evq_queue_call_text(queue, evq_job_policy_name(job->policy));
    evq_queue_call_number(queue, job->priority);
    evq_queue_call_text(queue, job->keep ? "1" : "0");
    evq_queue_call_text(queue, job->fingerprint);
    evq_queue_call_text(queue, job->needs_given ? "1" : "0");
    evq_queue_call_printf(queue, "%s", needs); // Copied, because the caller's buffer does not last.
}

/* A job that is encoded, before its words are added. */
struct prepared {
    size_t record_at; // Offset in queue->records.
    size_t record_bytes;
    char needs[256];
};

static enum evq_status prepare(struct evq_queue *queue, const struct evq_job *job,
                               struct prepared *ret_prepared, struct evq_error *err)
{
    struct prepared prepared = {.record_at = queue->records.bytes};

    enum evq_status status = evq_job_check(job, err);
    if (status == EVQ_OK && job->needs_given) {
        status = evq_needs_text(&job->needs, prepared.needs, sizeof prepared.needs, err);
    }
    if (status == EVQ_OK) {
        status = evq_codec_job_encode(job, &queue->records, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    prepared.record_bytes = queue->records.bytes - prepared.record_at;
    *ret_prepared = prepared;
    return EVQ_OK;
}

static void add_words(struct evq_queue *queue, const struct evq_job *job,
                      const struct prepared *prepared, int64_t delay_ms)
{
    evq_queue_job_words(queue, job, prepared->needs);
    evq_queue_call_number(queue, delay_ms);
    evq_queue_call_bytes(queue, queue->records.data + prepared->record_at, prepared->record_bytes);
}

static enum evq_status read_answer(const struct evq_queue *queue, const struct evq_reply *reply,
                                   struct evq_submitted *ret_submitted, struct evq_error *err)
{
    struct evq_submitted submitted;
    const char *reason = evq_queue_reply_text(evq_queue_reply_item(reply, 1));

    if (evq_queue_reply_is(reply, "refused")) {
        return evq_error_set(err, EVQ_E_INVALID, "refused: %s", reason != NULL ? reason : "");
    }
    memset(&submitted, 0, sizeof submitted);
    for (size_t i = 0; i < sizeof answer_words / sizeof answer_words[0]; i++) {
        if (evq_queue_reply_is(reply, answer_words[i]) &&
            evq_queue_reply_copy(evq_queue_reply_item(reply, 1), submitted.id,
                                 sizeof submitted.id) &&
            evq_queue_reply_state(evq_queue_reply_item(reply, 2), &submitted.state)) {
            submitted.answer = (enum evq_submit_answer)i;
            const char *why = evq_queue_reply_text(evq_queue_reply_item(reply, 3));
            (void)snprintf(submitted.reason, sizeof submitted.reason, "%s",
                           why != NULL ? why : ""); // Shortened at worst.
            *ret_submitted = submitted;
            return EVQ_OK;
        }
    }
    return evq_queue_call_malformed(queue, err);
}

enum evq_status evq_queue_submit(struct evq_queue *queue, const struct evq_job *job,
                                 int64_t delay_ms, struct evq_submitted *ret_submitted,
                                 struct evq_error *err)
{
    struct prepared prepared;
    struct evq_reply *reply = NULL;

    if (delay_ms < 0) {
        return evq_error_set(err, EVQ_E_INVALID, "the delay is %lld ms, less than 0",
                             (long long)delay_ms);
    }
    evq_queue_call_begin(queue, "submit", false);
    enum evq_status status = prepare(queue, job, &prepared, err);
    if (status != EVQ_OK) {
        return status;
    }
    add_words(queue, job, &prepared, delay_ms);
    status = evq_queue_call_send(queue, &reply, err);
    if (status == EVQ_OK) {
        status = read_answer(queue, reply, ret_submitted, err);
    }
    evq_reply_free(reply);
    return status;
}

/* Prepares each job. An invalid job gets its own status; running out of memory fails all. */
static enum evq_status prepare_all(struct evq_queue *queue, const struct evq_job *const *jobs,
                                   size_t job_count, struct prepared *prepared,
                                   enum evq_status *statuses, size_t *ret_good,
                                   struct evq_error *first)
{
    *ret_good = 0;
    for (size_t i = 0; i < job_count; i++) {
        struct evq_error err = {EVQ_OK, ""};
        statuses[i] = prepare(queue, jobs[i], &prepared[i], &err);
        if (statuses[i] == EVQ_E_NOMEM || queue->records.failed) {
            return evq_error_set(first, EVQ_E_NOMEM, "no memory for a batch of %zu jobs",
                                 job_count);
        }
        if (statuses[i] == EVQ_OK) {
            (*ret_good)++;
        } else if (first->status == EVQ_OK) {
            *first = err;
        }
    }
    return EVQ_OK;
}

/* Reads the answer of each job that was sent. */
static enum evq_status read_batch(const struct evq_queue *queue, const struct evq_reply *reply,
                                  size_t job_count, size_t good, struct evq_submitted *submitted,
                                  enum evq_status *statuses, struct evq_error *first)
{
    size_t at = 0;

    if (reply->type != EVQ_REPLY_ARRAY || reply->item_count != good) {
        return evq_queue_call_malformed(queue, first);
    }
    for (size_t i = 0; i < job_count; i++) {
        struct evq_error err = {EVQ_OK, ""};
        if (statuses[i] != EVQ_OK) {
            continue;
        }
        statuses[i] = read_answer(queue, reply->items[at++], &submitted[i], &err);
        if (statuses[i] == EVQ_E_IO) {
            return evq_queue_call_malformed(queue, first);
        }
        if (statuses[i] != EVQ_OK && first->status == EVQ_OK) {
            *first = err;
        }
    }
    return EVQ_OK;
}

enum evq_status evq_queue_submit_batch(struct evq_queue *queue, const struct evq_job *const *jobs,
                                       size_t job_count, struct evq_submitted *ret_submitted,
                                       enum evq_status *ret_statuses, struct evq_error *err)
{
    struct prepared *prepared = NULL;
    enum evq_status statuses[EVQ_QUEUE_BATCH_MAX];
    struct evq_error first = {EVQ_OK, ""};
    struct evq_reply *reply = NULL;
    size_t good = 0;
    enum evq_status status = EVQ_OK;

    if (job_count == 0 || job_count > EVQ_QUEUE_BATCH_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "a batch of %zu jobs, allowed 1 to %d", job_count,
                             EVQ_QUEUE_BATCH_MAX);
    }
    evq_queue_call_begin(queue, "submit_batch", false);
    prepared = evq_arena_array(queue->arena, job_count, sizeof *prepared);
    if (prepared == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a batch of %zu jobs", job_count);
    }
    memset(ret_submitted, 0, job_count * sizeof *ret_submitted);
    status = prepare_all(queue, jobs, job_count, prepared, statuses, &good, &first);
    if (status != EVQ_OK) {
        goto out;
    }
    if (good > 0) {
        evq_queue_call_number(queue, (int64_t)good);
        for (size_t i = 0; i < job_count; i++) {
            if (statuses[i] == EVQ_OK) {
                add_words(queue, jobs[i], &prepared[i], 0);
            }
        }
        status = evq_queue_call_send(queue, &reply, &first);
        if (status == EVQ_OK) {
            status = read_batch(queue, reply, job_count, good, ret_submitted, statuses, &first);
        }
    }
    if (status == EVQ_OK && ret_statuses != NULL) {
        memcpy(ret_statuses, statuses, job_count * sizeof *statuses);
    }
    for (size_t i = 0; i < job_count && status == EVQ_OK && ret_statuses == NULL; i++) {
        status = statuses[i]; // The caller has no other way to see it.
    }
out:
    if (err != NULL && first.status != EVQ_OK) {
        *err = first;
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_free_workers_take(struct evq_queue *queue, const char *run,
                                            const char *needs, const char *const *suites,
                                            uint32_t suite_count, uint64_t *ret_free,
                                            struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    uint64_t free_mask = 0;

    if (suite_count < 1 || suite_count > 64) {
        return evq_error_set(err, EVQ_E_INVALID, "%u suites are asked for, expected 1 to 64",
                             (unsigned)suite_count);
    }
    evq_queue_call_begin(queue, "idle", false);
    evq_queue_call_text(queue, run);
    evq_queue_call_text(queue, needs != NULL ? "1" : "0");
    evq_queue_call_text(queue, needs);
    for (uint32_t i = 0; i < suite_count; i++) {
        evq_queue_call_text(queue, suites[i]);
    }
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    bool good = reply->type == EVQ_REPLY_ARRAY && reply->item_count <= suite_count;
    for (size_t at = 0; good && at < reply->item_count; at++) {
        uint32_t which = 0;
        while (which < suite_count && !evq_queue_reply_is(reply->items[at], suites[which])) {
            which++;
        }
        good = which < suite_count;
        free_mask |= good ? UINT64_C(1) << which : 0;
    }
    evq_reply_free(reply);
    if (!good) {
        return evq_queue_call_malformed(queue, err);
    }
    *ret_free = free_mask;
    return EVQ_OK;
}
