#include <stdio.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "shared/queue/queue_call.h"

enum { PART_BYTES_MAX = 65536, REASON_BYTES_MAX = 512, DETAIL_BYTES_MAX = 8192, SHARDS_MAX = 1024 };

static const char *const fail_words[] = {"retry",    "fatal",   "crash",     "timeout",
                                         "vanished", "changed", "incomplete"};

static enum evq_status lease_lost(const char *id, struct evq_error *err)
{
    return evq_error_set(
        err, EVQ_E_LEASE_LOST,
        "job %s belongs to another attempt or ended: this attempt's token is stale", id);
}

static void attempt_words(struct evq_queue *queue, const char *id, const char *token)
{
    evq_queue_call_text(queue, id);
    evq_queue_call_text(queue, token);
}

static size_t add_field(struct evq_queue *queue, const char *name, const char *value)
{
    if (value == NULL || *value == '\0') {
        return 0;
    }
    evq_queue_call_text(queue, name);
    evq_queue_call_text(queue, value);
    return 1;
}

static size_t add_number(struct evq_queue *queue, const char *name, int64_t value)
{
    evq_queue_call_text(queue, name);
    evq_queue_call_number(queue, value);
    return 1;
}

/* Adds the fields of the stream entry that people read. Empty ones are left out. */
static void result_words(struct evq_queue *queue, const struct evq_result *result)
{
    size_t count = 0;
    size_t count_at = queue->word_count;

    evq_queue_call_text(queue, ""); // Placeholder for the count.
    count += add_field(queue, "job", result->job);
    count += add_field(queue, "task", result->task);
    count += add_field(queue, "run", result->run);
    count += add_number(queue, "step", result->step);
    count += add_field(queue, "variant", result->variant);
    count += add_field(queue, "suite", result->suite);
    count += add_field(queue, "state", evq_job_state_name(result->state));
    count += add_field(queue, "reason", result->reason);
    for (size_t i = 0; i < result->metric_count; i++) {
        evq_queue_call_printf(queue, "metric:%s", result->metrics[i].name);
        evq_queue_call_double(queue, result->metrics[i].value);
        count++;
    }
    if (result->n >= 0) {
        count += add_number(queue, "n", result->n);
    }
    count += add_field(queue, "backend", result->backend);
    count += add_field(queue, "worker", result->worker);
    count += add_number(queue, "attempt", result->attempt);

    size_t word_count = queue->word_count;
    evq_queue_call_number(queue, (int64_t)count);
    if (!queue->failed) { // Moves the count from the end to its place before the fields.
        queue->word_count = word_count;
        queue->words[count_at] = queue->words[word_count];
        queue->word_bytes[count_at] = queue->word_bytes[word_count];
    }
}

static enum evq_status publish_words(struct evq_queue *queue, const char *id, const char *token,
                                     const struct evq_result *result, struct evq_error *err)
{
    evq_queue_call_begin(queue, "publish", false);
    enum evq_status status = evq_codec_result_encode(result, &queue->records, err);
    if (status != EVQ_OK) {
        return status;
    }
    attempt_words(queue, id, token);
    evq_queue_call_text(queue, result->task);
    evq_queue_call_text(queue, result->weights_digest);
    evq_queue_call_text(queue, result->suite_digest);
    evq_queue_call_bytes(queue, queue->records.data, queue->records.bytes);
    result_words(queue, result);
    return EVQ_OK;
}

static enum evq_status read_publish(const struct evq_queue *queue, const char *id,
                                    const struct evq_reply *reply, struct evq_error *err)
{
    if (evq_queue_reply_is(reply, "ok") || evq_queue_reply_is(reply, "duplicate")) {
        return EVQ_OK;
    }
    if (evq_queue_reply_is(reply, "stale")) {
        return lease_lost(id, err);
    }
    return evq_queue_reply_is(reply, "changed")
               ? evq_error_set(err, EVQ_E_CHANGED,
                               "job %s ended as skipped: its weights or its suite are other than "
                               "those of its first result",
                               id)
               : evq_queue_call_malformed(queue, err);
}

enum evq_status evq_queue_publish(struct evq_queue *queue, const char *id, const char *token,
                                  const struct evq_result *result, bool *ret_duplicate,
                                  struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    enum evq_status status = publish_words(queue, id, token, result, err);
    if (status == EVQ_OK) {
        status = evq_queue_call_send(queue, &reply, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    status = read_publish(queue, id, reply, err);
    if (status == EVQ_OK && ret_duplicate != NULL) {
        *ret_duplicate = evq_queue_reply_is(reply, "duplicate");
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_publish_many(struct evq_queue *queue,
                                       struct evq_publication *publications, size_t count,
                                       struct evq_error *err)
{
    struct evq_error one = {EVQ_OK, ""};
    enum evq_status status = EVQ_OK; // The first outage; everything must be repeated then.

    for (size_t i = 0; i < count; i++) {
        struct evq_publication *at = &publications[i];
        at->error.status = EVQ_OK;
        at->status = publish_words(queue, at->id, at->token, at->result, &at->error);
        if (at->status == EVQ_OK) {
            at->status = evq_queue_call_append(queue, &at->error);
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct evq_publication *at = &publications[i];
        struct evq_reply *reply = NULL;
        if (at->status != EVQ_OK) {
            continue; // It was not sent.
        }
        at->status = evq_queue_call_read(queue, &reply, &at->error);
        if (at->status == EVQ_OK) {
            at->status = read_publish(queue, at->id, reply, &at->error);
        }
        if (status == EVQ_OK && evq_conn_is_outage(at->status)) {
            status = at->status;
            one = at->error;
        }
        evq_reply_free(reply);
    }
    if (status != EVQ_OK && err != NULL) {
        *err = one;
    }
    return status;
}

/* Reads complete's answer. "duplicate": this attempt completed it before. "error REASON": one of
 * many failed. */
static enum evq_status read_complete(const struct evq_queue *queue, const char *id,
                                     const struct evq_reply *reply, struct evq_error *err)
{
    if (evq_queue_reply_is(reply, "done") || evq_queue_reply_is(reply, "duplicate")) {
        return EVQ_OK;
    }
    if (reply != NULL && reply->type == EVQ_REPLY_STRING &&
        strncmp(reply->text, "error ", 6) == 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "complete '%s': %.200s", id, reply->text + 6);
    }
    return evq_queue_reply_is(reply, "stale") ? lease_lost(id, err)
                                              : evq_queue_call_malformed(queue, err);
}

static enum evq_status complete(struct evq_queue *queue, const char *id, const char *token,
                                const void *part, size_t part_bytes, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "complete", false);
    attempt_words(queue, id, token);
    evq_queue_call_bytes(queue, part, part_bytes);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status == EVQ_OK) {
        status = read_complete(queue, id, reply, err);
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_complete(struct evq_queue *queue, const char *id, const char *token,
                                   struct evq_error *err)
{
    return complete(queue, id, token, NULL, 0, err);
}

static enum evq_status complete_many_words(struct evq_queue *queue,
                                           const struct evq_completion *completions, size_t count,
                                           struct evq_error *err)
{
    if (count < 1 || count > EVQ_QUEUE_COMPLETIONS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%zu jobs to complete, allowed 1 to %d", count,
                             EVQ_QUEUE_COMPLETIONS_MAX);
    }
    evq_queue_call_begin(queue, "complete_many", false);
    evq_queue_call_number(queue, (int64_t)count);
    for (size_t i = 0; i < count; i++) {
        attempt_words(queue, completions[i].id, completions[i].token);
        evq_queue_call_text(queue, "");
    }
    return EVQ_OK;
}

static enum evq_status read_complete_many(const struct evq_queue *queue,
                                          struct evq_completion *completions, size_t count,
                                          const struct evq_reply *reply, struct evq_error *err)
{
    struct evq_error first = {EVQ_OK, ""};
    enum evq_status status = EVQ_OK;

    if (reply->type != EVQ_REPLY_ARRAY || reply->item_count != count) {
        status = evq_queue_call_malformed(queue, err);
    }
    for (size_t i = 0; status == EVQ_OK && i < count; i++) {
        struct evq_error one = {EVQ_OK, ""};
        completions[i].status = read_complete(queue, completions[i].id, reply->items[i], &one);
        // EVQ_E_IO: not a word, so the reply is malformed.
        status = completions[i].status == EVQ_E_IO ? EVQ_E_IO : EVQ_OK;
        if (first.status == EVQ_OK && completions[i].status != EVQ_OK) {
            first = one;
        }
    }
    if (err != NULL && first.status != EVQ_OK) {
        *err = first;
    }
    return status;
}

enum evq_status evq_queue_complete_many(struct evq_queue *queue, struct evq_completion *completions,
                                        size_t count, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    enum evq_status status = complete_many_words(queue, completions, count, err);
    if (status == EVQ_OK) {
        status = evq_queue_call_send(queue, &reply, err);
    }
    if (status == EVQ_OK) {
        status = read_complete_many(queue, completions, count, reply, err);
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status
evq_queue_complete_many_and_claim(struct evq_queue *queue, struct evq_completion *completions,
                                  size_t count, const struct evq_claim_request *request,
                                  enum evq_status *ret_completed, struct evq_claim **ret_claims,
                                  struct evq_claimed *ret_claimed, struct evq_error *err)
{
    struct evq_error *claim_err = err;
    struct evq_error unheard;
    struct evq_reply *reply = NULL;

    enum evq_status status = evq_queue_claim_check(request, err);
    if (status == EVQ_OK) {
        status = complete_many_words(queue, completions, count, err);
    }
    if (status == EVQ_OK) {
        status = evq_queue_call_append(queue, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    evq_queue_call_begin(queue, "claim", false);
    evq_queue_claim_words(queue, request);
    status = evq_queue_call_append(queue, err);
    if (status != EVQ_OK) {
        evq_conn_drop(queue->conn); // Nothing was sent, and half of it must not be.
        return status;
    }
    *ret_completed = evq_queue_call_read(queue, &reply, err);
    if (*ret_completed == EVQ_OK) {
        *ret_completed = read_complete_many(queue, completions, count, reply, err);
    }
    evq_reply_free(reply);
    reply = NULL;
    if (*ret_completed != EVQ_OK) {
        claim_err = &unheard; // The caller gets the first error.
    }
    status = evq_queue_call_read(queue, &reply, claim_err);
    if (status == EVQ_OK) {
        status = evq_queue_claim_read(queue, request, reply, ret_claims, ret_claimed, claim_err);
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_complete_shard(struct evq_queue *queue, const char *id, const char *token,
                                         const void *part, size_t part_bytes, struct evq_error *err)
{
    if (part_bytes < 1 || part_bytes > PART_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT,
                             "the part of shard %s has %zu bytes, allowed 1 to %d", id, part_bytes,
                             PART_BYTES_MAX);
    }
    return complete(queue, id, token, part, part_bytes, err);
}

enum evq_status evq_queue_complete_and_claim(struct evq_queue *queue, const char *id,
                                             const char *token,
                                             const struct evq_claim_request *request,
                                             enum evq_status *ret_status,
                                             struct evq_claim **ret_claims,
                                             struct evq_claimed *ret_claimed, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    enum evq_status status = evq_queue_claim_check(request, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_queue_call_begin(queue, "complete_claim", false);
    attempt_words(queue, id, token);
    evq_queue_call_text(queue, "");
    evq_queue_claim_words(queue, request);
    status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    enum evq_status completed = read_complete(queue, id, evq_queue_reply_item(reply, 0), err);
    if (completed != EVQ_OK && completed != EVQ_E_LEASE_LOST) {
        status = completed;
    } else if (reply->item_count != 2) {
        status = evq_queue_call_malformed(queue, err);
    } else {
        status =
            evq_queue_claim_read(queue, request, reply->items[1], ret_claims, ret_claimed, err);
    }
    if (status == EVQ_OK) {
        *ret_status = completed;
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_fail(struct evq_queue *queue, const char *id, const char *token,
                               enum evq_fail_kind kind, const char *reason, const char *detail,
                               enum evq_job_state *ret_state, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    enum evq_job_state state = EVQ_JOB_DEAD;

    evq_queue_call_begin(queue, "fail", false);
    attempt_words(queue, id, token);
    evq_queue_call_text(queue, fail_words[kind]);
    evq_queue_call_cut(queue, reason, REASON_BYTES_MAX);
    evq_queue_call_cut(queue, detail, DETAIL_BYTES_MAX);
    evq_queue_call_text(queue, queue->worker);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (evq_queue_reply_is(reply, "stale")) {
        status = lease_lost(id, err);
    } else if (!evq_queue_reply_state(evq_queue_reply_item(reply, 0), &state)) {
        status = evq_queue_call_malformed(queue, err);
    } else if (ret_state != NULL) {
        *ret_state = state;
    }
    evq_reply_free(reply);
    return status;
}

/* Sends a call that answers one good word or "stale". */
static enum evq_status send_fenced(struct evq_queue *queue, const char *id, const char *good,
                                   struct evq_reply **ret_reply, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (evq_queue_reply_is(reply, "stale")) {
        status = lease_lost(id, err);
    } else if (!evq_queue_reply_is(reply, good)) {
        status = evq_queue_call_malformed(queue, err);
    }
    if (status == EVQ_OK && ret_reply != NULL) {
        *ret_reply = reply;
        reply = NULL;
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_release(struct evq_queue *queue, const char *id, const char *token,
                                  struct evq_error *err)
{
    evq_queue_call_begin(queue, "release", false);
    attempt_words(queue, id, token);
    return send_fenced(queue, id, "queued", NULL, err);
}

enum evq_status evq_queue_split(struct evq_queue *queue, const char *id, const char *token,
                                uint32_t shard_count, struct evq_error *err)
{
    if (shard_count < 2 || shard_count > SHARDS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "job %s split into %u shards, allowed 2 to %d", id,
                             (unsigned)shard_count, SHARDS_MAX);
    }
    evq_queue_call_begin(queue, "split", false);
    attempt_words(queue, id, token);
    evq_queue_call_number(queue, shard_count);
    return send_fenced(queue, id, "ok", NULL, err);
}

enum evq_status evq_queue_shard_parts(struct evq_queue *queue, const char *id, const char *token,
                                      struct evq_reply **ret_reply, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "parts", true);
    attempt_words(queue, id, token);
    enum evq_status status = send_fenced(queue, id, "ok", &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 1; status == EVQ_OK && i < reply->item_count; i++) {
        if (reply->items[i]->type != EVQ_REPLY_STRING) {
            status = evq_queue_call_malformed(queue, err);
        }
    }
    if (status != EVQ_OK || reply->type != EVQ_REPLY_ARRAY) {
        evq_reply_free(reply);
        return status != EVQ_OK ? status : evq_queue_call_malformed(queue, err);
    }
    reply->items++; // Skips "ok". The tree is still freed as one.
    reply->item_count--;
    *ret_reply = reply;
    return EVQ_OK;
}

enum evq_status evq_queue_adopt(struct evq_queue *queue, const char *worker,
                                const struct evq_claim *claim, int64_t lease_ms,
                                struct evq_error *err)
{
    char needs[256] = "";

    if (claim->job == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "job %s has no record to put back: %s", claim->id,
                             claim->record_error);
    }
    evq_queue_call_begin(queue, "adopt", false);
    evq_queue_call_worker(queue, worker);
    enum evq_status status = evq_codec_job_encode(claim->job, &queue->records, err);
    if (status == EVQ_OK && claim->job->needs_given) {
        status = evq_needs_text(&claim->job->needs, needs, sizeof needs, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    evq_queue_call_text(queue, worker);
    evq_queue_call_number(queue, lease_ms);
    attempt_words(queue, claim->id, claim->token);
    evq_queue_call_number(queue, claim->attempt);
    evq_queue_job_words(queue, claim->job, needs);
    evq_queue_call_bytes(queue, queue->records.data, queue->records.bytes);
    return send_fenced(queue, claim->id, "ok", NULL, err);
}
