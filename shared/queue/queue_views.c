/* The calls that show the queue to people, declared in queue.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/queue_call.h"

enum { JOBS_COUNT_MAX = 1000 };

enum evq_status evq_queue_run_counts(struct evq_queue *queue, const char *run,
                                     struct evq_run_counts *ret_counts, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    struct evq_run_counts counts = {.open = 0};

    evq_queue_call_begin(queue, "counts", true);
    evq_queue_call_text(queue, run);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    bool good = reply->type == EVQ_REPLY_ARRAY && reply->item_count == EVQ_JOB_STATE_COUNT;
    for (size_t i = 0; good && i < EVQ_JOB_STATE_COUNT; i++) {
        good = evq_queue_reply_within(reply->items[i], 0, INT64_MAX / EVQ_JOB_STATE_COUNT,
                                      &counts.by_state[i]);
    }
    if (good) {
        counts.open = counts.by_state[EVQ_JOB_QUEUED] + counts.by_state[EVQ_JOB_DELAYED] +
                      counts.by_state[EVQ_JOB_RUNNING];
        *ret_counts = counts;
    } else {
        status = evq_queue_call_malformed(queue, err);
    }
    evq_reply_free(reply);
    return status;
}

int64_t evq_run_counts_total(const struct evq_run_counts *counts)
{
    int64_t all = 0;

    for (size_t i = 0; i < EVQ_JOB_STATE_COUNT; i++) {
        all += counts->by_state[i];
    }
    return all;
}

/* Sends the call of a view. A nil reply is EVQ_E_NOT_FOUND without a message. */
static enum evq_status send_json(struct evq_queue *queue, char **ret_json, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *text = evq_queue_reply_text(reply);
    if (reply->type == EVQ_REPLY_NIL) {
        status = EVQ_E_NOT_FOUND;
    } else if (text == NULL || strlen(text) != reply->bytes) {
        status = evq_queue_call_malformed(queue, err);
    } else {
        char *json = strdup(text);
        if (json == NULL) {
            status =
                evq_error_set(err, EVQ_E_NOMEM, "no memory for a view of %zu bytes", reply->bytes);
        } else {
            *ret_json = json;
        }
    }
    evq_reply_free(reply);
    return status;
}

/* Sends the call of a view that always has a value. */
static enum evq_status send_view(struct evq_queue *queue, char **ret_json, struct evq_error *err)
{
    enum evq_status status = send_json(queue, ret_json, err);
    return status == EVQ_E_NOT_FOUND ? evq_queue_call_malformed(queue, err) : status;
}

enum evq_status evq_queue_stats(struct evq_queue *queue, char **ret_json, struct evq_error *err)
{
    evq_queue_call_begin(queue, "stats", true);
    return send_view(queue, ret_json, err);
}

enum evq_status evq_queue_show(struct evq_queue *queue, const char *id, char **ret_json,
                               struct evq_error *err)
{
    evq_queue_call_begin(queue, "show", true);
    evq_queue_call_text(queue, id);
    enum evq_status status = send_json(queue, ret_json, err);
    return status == EVQ_E_NOT_FOUND
               ? evq_error_set(err, EVQ_E_NOT_FOUND, "no job %s in queue '%s'", id, queue->name)
               : status;
}

enum evq_status evq_queue_jobs(struct evq_queue *queue, const char *state, const char *run,
                               const char *cursor, uint32_t count, char **ret_json,
                               struct evq_error *err)
{
    if (count < 1 || count > JOBS_COUNT_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "a list of %u jobs, allowed 1 to %d",
                             (unsigned)count, JOBS_COUNT_MAX);
    }
    evq_queue_call_begin(queue, "jobs", true);
    evq_queue_call_text(queue, state);
    evq_queue_call_text(queue, run);
    evq_queue_call_text(queue, cursor);
    evq_queue_call_number(queue, count);
    return send_view(queue, ret_json, err);
}

enum evq_status evq_queue_runs(struct evq_queue *queue, const char *cursor, char **ret_json,
                               struct evq_error *err)
{
    evq_queue_call_begin(queue, "runs", true);
    evq_queue_call_text(queue, cursor);
    return send_view(queue, ret_json, err);
}
