#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/queue_call.h"

static enum evq_status no_such_job(const struct evq_queue *queue, const char *id,
                                   struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_NOT_FOUND, "no job %s in queue '%s'", id, queue->name);
}

static void end_words(struct evq_queue *queue, const char *id, const char *reason, bool unclaimed)
{
    evq_queue_call_begin(queue, "cancel", false);
    evq_queue_call_text(queue, id);
    evq_queue_call_text(queue, reason);
    if (unclaimed) {
        evq_queue_call_text(queue, "unclaimed");
    }
}

static enum evq_status read_end(const struct evq_queue *queue, const char *id,
                                const struct evq_reply *reply, enum evq_job_state *ret_state,
                                struct evq_error *err)
{
    const char *word = evq_queue_reply_word(reply);

    if (word != NULL && strcmp(word, "not_found") == 0) {
        return no_such_job(queue, id, err);
    }
    return word == NULL || evq_job_state_parse(word, ret_state) != EVQ_OK
               ? evq_queue_call_malformed(queue, err)
               : EVQ_OK;
}

static enum evq_status job_end(struct evq_queue *queue, const char *id, const char *reason,
                               bool unclaimed, enum evq_job_state *ret_state, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    enum evq_job_state state = EVQ_JOB_CANCELLED;

    end_words(queue, id, reason, unclaimed);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status == EVQ_OK) {
        status = read_end(queue, id, reply, &state, err);
    }
    if (status == EVQ_OK && ret_state != NULL) {
        *ret_state = state;
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_cancel(struct evq_queue *queue, const char *id, const char *reason,
                                 enum evq_job_state *ret_state, struct evq_error *err)
{
    return job_end(queue, id, reason, false, ret_state, err);
}

enum evq_status evq_queue_withdraw(struct evq_queue *queue, const char *id, const char *reason,
                                   enum evq_job_state *ret_state, struct evq_error *err)
{
    return job_end(queue, id, reason, true, ret_state, err);
}

static void retry_words(struct evq_queue *queue, const char *id, const char *request)
{
    evq_queue_call_begin(queue, "retry", false);
    evq_queue_call_text(queue, id);
    evq_queue_call_text(queue, request);
}

static enum evq_status read_retry(const struct evq_queue *queue, const char *id,
                                  const struct evq_reply *reply, char ret_id[EVQ_JOB_ID_BYTES_MAX],
                                  struct evq_error *err)
{
    const char *second = evq_queue_reply_text(evq_queue_reply_item(reply, 1));

    if (evq_queue_reply_is(reply, "not_found")) {
        return no_such_job(queue, id, err);
    }
    if (evq_queue_reply_is(reply, "refused")) {
        return evq_error_set(err, EVQ_E_CONFLICT, "job %s is not queued again: %s", id,
                             second != NULL ? second : "refused");
    }
    return !evq_queue_reply_is(reply, "queued") || second == NULL || *second == '\0' ||
                   !evq_queue_reply_copy(evq_queue_reply_item(reply, 1), ret_id,
                                         EVQ_JOB_ID_BYTES_MAX)
               ? evq_queue_call_malformed(queue, err)
               : EVQ_OK;
}

enum evq_status evq_queue_retry(struct evq_queue *queue, const char *id, const char *request,
                                char ret_id[EVQ_JOB_ID_BYTES_MAX], struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    retry_words(queue, id, request);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status == EVQ_OK) {
        status = read_retry(queue, id, reply, ret_id, err);
    }
    evq_reply_free(reply);
    return status;
}

/* Sends one change. reason NULL: a retry. */
static void change_send(struct evq_queue *queue, struct evq_job_change *change, const char *reason)
{
    change->error.status = EVQ_OK;
    if (reason != NULL) {
        end_words(queue, change->id, reason, false);
    } else {
        retry_words(queue, change->id, "");
    }
    change->status = evq_queue_call_append(queue, &change->error);
}

static void change_read(struct evq_queue *queue, struct evq_job_change *change, const char *reason)
{
    struct evq_reply *reply = NULL;

    change->status = evq_queue_call_read(queue, &reply, &change->error);
    if (change->status == EVQ_OK && reason != NULL) {
        (void)snprintf(change->now, sizeof change->now, "%s", change->id);
        change->status = read_end(queue, change->id, reply, &change->state, &change->error);
    } else if (change->status == EVQ_OK) {
        change->state = EVQ_JOB_QUEUED;
        change->status = read_retry(queue, change->id, reply, change->now, &change->error);
    }
    evq_reply_free(reply);
}

static void change_many(struct evq_queue *queue, struct evq_job_change *changes, size_t count,
                        const char *reason)
{
    for (size_t i = 0; i < count; i++) {
        change_send(queue, &changes[i], reason);
    }
    for (size_t i = 0; i < count; i++) {
        if (changes[i].status == EVQ_OK) { // Else it was not sent.
            change_read(queue, &changes[i], reason);
        }
    }
}

void evq_queue_cancel_many(struct evq_queue *queue, struct evq_job_change *changes, size_t count,
                           const char *reason)
{
    change_many(queue, changes, count, reason != NULL ? reason : "");
}

void evq_queue_retry_many(struct evq_queue *queue, struct evq_job_change *changes, size_t count)
{
    change_many(queue, changes, count, NULL);
}

enum evq_status evq_queue_pause(struct evq_queue *queue, enum evq_pause_kind kind, const char *name,
                                bool paused, struct evq_error *err)
{
    static const char *const words[] = {"queue", "suite", "run"};

    evq_queue_call_begin(queue, "pause", false);
    evq_queue_call_text(queue, words[kind]);
    evq_queue_call_text(queue, name);
    evq_queue_call_text(queue, paused ? "1" : "0");
    return evq_queue_call_send_ok(queue, err);
}

enum evq_status evq_queue_limit(struct evq_queue *queue, const char *kind, const char *name,
                                int64_t value, struct evq_error *err)
{
    evq_queue_call_begin(queue, "limit", false);
    evq_queue_call_text(queue, kind);
    evq_queue_call_text(queue, name);
    evq_queue_call_number(queue, value);
    return evq_queue_call_send_ok(queue, err);
}

enum evq_status evq_queue_forget(struct evq_queue *queue, const char *run, int64_t *ret_left,
                                 struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "forget", false);
    evq_queue_call_text(queue, run);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (evq_queue_reply_is(reply, "running")) {
        status =
            evq_error_set(err, EVQ_E_CONFLICT,
                          "jobs of run '%s' are running: cancel them or wait, then forget it", run);
    } else if (!evq_queue_reply_within(reply, 0, INT64_MAX, ret_left)) {
        status = evq_queue_call_malformed(queue, err);
    }
    evq_reply_free(reply);
    return status;
}

/* Sends a call whose reply is one number. */
static enum evq_status send_number(struct evq_queue *queue, int64_t low, int64_t *ret_number,
                                   struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    int64_t number = 0;

    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!evq_queue_reply_within(reply, low, INT64_MAX, &number)) {
        status = evq_queue_call_malformed(queue, err);
    } else if (ret_number != NULL) {
        *ret_number = number;
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_gc(struct evq_queue *queue, int64_t *ret_removed, struct evq_error *err)
{
    evq_queue_call_begin(queue, "gc", false);
    return send_number(queue, 0, ret_removed, err);
}

enum evq_status evq_queue_smallest_open_step(struct evq_queue *queue, const char *run,
                                             const char *variant, const char *suite,
                                             int64_t *ret_step, struct evq_error *err)
{
    evq_queue_call_begin(queue, "flow_open", true);
    evq_queue_call_text(queue, run);
    evq_queue_call_text(queue, variant);
    evq_queue_call_text(queue, suite);
    return send_number(queue, -1, ret_step, err);
}
