#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "shared/queue/queue_call.h"

enum {
    CLAIMS_MAX = 64,
    // The head of claim's reply.
    HEAD_NOW = 1,
    HEAD_VERSION,
    HEAD_DUE,
    HEAD_ITEMS,
    // One claim in it.
    CLAIM_ID = 0,
    CLAIM_TOKEN,
    CLAIM_RECORD,
    CLAIM_ATTEMPT,
    CLAIM_SHARD,
    CLAIM_SHARD_COUNT,
    CLAIM_MERGE,
    CLAIM_ALONE,
    CLAIM_QUEUED,
    CLAIM_ITEMS_MIN
};

void evq_claim_free(struct evq_claim *claim)
{
    if (claim != NULL) {
        evq_job_free(claim->job);
        for (size_t i = 0; i < claim->task_done_count; i++) {
            free(claim->tasks_done[i]);
        }
        free(claim->tasks_done);
        free(claim);
    }
}

enum evq_status evq_queue_claim_check(const struct evq_claim_request *request,
                                      struct evq_error *err)
{
    if (request->claims_max < 1 || request->claims_max > CLAIMS_MAX ||
        request->claims_room > CLAIMS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "a claim of %u jobs, allowed 1 to %d",
                             (unsigned)request->claims_max, CLAIMS_MAX);
    }
    if (request->class_count > EVQ_QUEUE_CLASSES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "a claim from %u classes, allowed %d",
                             (unsigned)request->class_count, EVQ_QUEUE_CLASSES_MAX);
    }
    if (request->preferred_count > EVQ_QUEUE_PREFERRED_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "a claim that prefers %u jobs, allowed %d",
                             (unsigned)request->preferred_count, EVQ_QUEUE_PREFERRED_MAX);
    }
    return EVQ_OK;
}

void evq_queue_claim_words(struct evq_queue *queue, const struct evq_claim_request *request)
{
    evq_queue_call_worker(queue, request->worker);
    evq_queue_call_text(queue, request->worker);
    evq_queue_call_text(queue, request->request);
    evq_queue_call_number(queue, request->lease_ms);
    evq_queue_call_number(queue, request->claims_max);
    evq_queue_call_number(queue, request->class_count);
    for (uint32_t i = 0; i < request->class_count; i++) {
        evq_queue_call_number(queue, request->classes[i]);
    }
    if (request->preferred_count > 0) {
        evq_queue_call_number(queue, request->preferred_count);
    }
    for (uint32_t i = 0; i < request->preferred_count; i++) {
        evq_queue_call_text(queue, request->preferred[i]);
    }
}

/* An unreadable record is an error of the job, not of the call. The claimer fails the job with the
 * reason. */
static enum evq_status read_record(const struct evq_reply *record, struct evq_claim *claim)
{
    struct evq_error err = {EVQ_OK, "the record is missing"};

    if (evq_queue_reply_text(record) != NULL) {
        enum evq_status status =
            evq_codec_job_decode((const uint8_t *)record->text, record->bytes, &claim->job, &err);
        if (status == EVQ_OK || status == EVQ_E_NOMEM) {
            return status;
        }
    }
    claim->job = NULL;
    (void)snprintf(claim->record_error, sizeof claim->record_error, "%.*s",
                   (int)sizeof claim->record_error - 1, err.message);
    return EVQ_OK;
}

static enum evq_status read_tasks(const struct evq_reply *reply, struct evq_claim *claim)
{
    size_t count = reply->item_count - CLAIM_ITEMS_MIN;

    if (count == 0) {
        return EVQ_OK;
    }
    claim->tasks_done = calloc(count, sizeof *claim->tasks_done);
    if (claim->tasks_done == NULL) {
        return EVQ_E_NOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        const char *task = evq_queue_reply_text(reply->items[CLAIM_ITEMS_MIN + i]);
        if (task == NULL) {
            return EVQ_E_CORRUPT;
        }
        claim->tasks_done[i] = strdup(task);
        if (claim->tasks_done[i] == NULL) {
            return EVQ_E_NOMEM;
        }
        claim->task_done_count++;
    }
    return EVQ_OK;
}

static bool read_numbers(const struct evq_reply *reply, struct evq_claim *claim)
{
    int64_t attempt, shard, shard_count, merge, alone;

    if (!evq_queue_reply_within(reply->items[CLAIM_ATTEMPT], 0, INT32_MAX, &attempt) ||
        !evq_queue_reply_within(reply->items[CLAIM_SHARD], -1, INT32_MAX, &shard) ||
        !evq_queue_reply_within(reply->items[CLAIM_SHARD_COUNT], 0, INT32_MAX, &shard_count) ||
        !evq_queue_reply_within(reply->items[CLAIM_MERGE], 0, 1, &merge) ||
        !evq_queue_reply_within(reply->items[CLAIM_ALONE], 0, 1, &alone) ||
        !evq_queue_reply_number(reply->items[CLAIM_QUEUED], &claim->queued_ms)) {
        return false;
    }
    claim->attempt = (int32_t)attempt;
    claim->shard = (int32_t)shard;
    claim->shard_count = (int32_t)shard_count;
    claim->merge = merge == 1;
    claim->alone = alone == 1;
    return true;
}

static enum evq_status read_claim(const struct evq_reply *reply, struct evq_claim **ret_claim)
{
    enum evq_status status = EVQ_OK;
    struct evq_claim *claim = NULL;

    if (reply->type != EVQ_REPLY_ARRAY || reply->item_count < CLAIM_ITEMS_MIN) {
        return EVQ_E_CORRUPT;
    }
    claim = calloc(1, sizeof *claim);
    if (claim == NULL) {
        return EVQ_E_NOMEM;
    }
    if (!evq_queue_reply_copy(reply->items[CLAIM_ID], claim->id, sizeof claim->id) ||
        !evq_queue_reply_copy(reply->items[CLAIM_TOKEN], claim->token, sizeof claim->token) ||
        *claim->id == '\0' || *claim->token == '\0' || !read_numbers(reply, claim)) {
        status = EVQ_E_CORRUPT;
        goto out;
    }
    status = read_record(reply->items[CLAIM_RECORD], claim);
    if (status == EVQ_OK) {
        status = read_tasks(reply, claim);
    }
    if (status == EVQ_OK) {
        *ret_claim = claim;
        claim = NULL;
    }
out:
    evq_claim_free(claim);
    return status;
}

enum evq_status evq_queue_claim_read(struct evq_queue *queue,
                                     const struct evq_claim_request *request,
                                     const struct evq_reply *reply, struct evq_claim **ret_claims,
                                     struct evq_claimed *ret_claimed, struct evq_error *err)
{
    struct evq_claim *claims[CLAIMS_MAX];
    struct evq_claimed claimed = {0};
    bool jobs = evq_queue_reply_is(reply, "jobs");
    const uint32_t room =
        request->claims_room > request->claims_max ? request->claims_room : request->claims_max;
    enum evq_status status = EVQ_OK;

    if ((!jobs && !evq_queue_reply_is(reply, "none")) ||
        !evq_queue_reply_number(evq_queue_reply_item(reply, HEAD_NOW), &claimed.now_ms) ||
        !evq_queue_reply_number(evq_queue_reply_item(reply, HEAD_VERSION),
                                &claimed.classes_version) ||
        !evq_queue_reply_number(evq_queue_reply_item(reply, HEAD_DUE), &claimed.due_ms) ||
        reply->item_count - HEAD_ITEMS > (jobs ? room : 0)) {
        return evq_queue_call_malformed(queue, err);
    }
    while (claimed.count < reply->item_count - HEAD_ITEMS && status == EVQ_OK) {
        status = read_claim(reply->items[HEAD_ITEMS + claimed.count], &claims[claimed.count]);
        claimed.count += status == EVQ_OK ? 1 : 0;
    }
    if (status != EVQ_OK) {
        // The server keeps the claims for this request, so repeating it returns them again.
        for (uint32_t i = 0; i < claimed.count; i++) {
            evq_claim_free(claims[i]);
        }
        return status == EVQ_E_NOMEM ? evq_error_set(err, status, "no memory for a claim")
                                     : evq_queue_call_malformed(queue, err);
    }
    memcpy(ret_claims, claims, claimed.count * sizeof(struct evq_claim *));
    *ret_claimed = claimed;
    return EVQ_OK;
}

enum evq_status evq_queue_claim(struct evq_queue *queue, const struct evq_claim_request *request,
                                struct evq_claim **ret_claims, struct evq_claimed *ret_claimed,
                                struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    enum evq_status status = evq_queue_claim_check(request, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_queue_call_begin(queue, "claim", false);
    evq_queue_claim_words(queue, request);
    status = evq_queue_call_send(queue, &reply, err);
    if (status == EVQ_OK) {
        status = evq_queue_claim_read(queue, request, reply, ret_claims, ret_claimed, err);
    }
    evq_reply_free(reply);
    return status;
}
