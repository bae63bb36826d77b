/* Sends the items of the leases' outboxes to Redis, in batches, and handles what Redis refuses. */
#include "shared/base/log.h"
#include "worker/supervisor/shard_merge.h"
#include "worker/supervisor/supervisor.h"

#define PUBLISH_MAX 64 // Results in one call.

/* Handles an item that Redis did not accept. Returns false if the lease is gone or must wait. */
static bool refusal_handle(struct evq_supervisor *supervisor, struct evq_lease *lease,
                           enum evq_outbox_kind kind, enum evq_status status,
                           const struct evq_error *err)
{
    if (status == EVQ_E_LEASE_LOST || status == EVQ_E_CHANGED) {
        evq_log(EVQ_LOG_WARN, status == EVQ_E_CHANGED ? "job_changed" : "job_stale",
                "job=%s reason=%s", lease->claim->id, err->message);
        evq_lease_list_drop(supervisor, lease, EVQ_CAUSE_STALE);
        return false;
    }
    if (status == EVQ_E_NOMEM) {
        return false; // It is sent again later.
    }
    // Redis will refuse this again and again, so the job is ended as failed.
    evq_log(EVQ_LOG_ERROR, "job_refused", "job=%s status=%s reason=%s", lease->claim->id,
            evq_status_name(status), err->message);
    const bool again = kind == EVQ_OUTBOX_FAIL || kind == EVQ_OUTBOX_RELEASE;
    evq_lease_list_detach(supervisor, lease);
    evq_lease_outbox_clear(lease);
    if (again || !evq_lease_queue_fail(lease, EVQ_FAIL_FATAL, err->message, NULL)) {
        evq_lease_list_drop(supervisor, lease, EVQ_CAUSE_STALE);
        return false;
    }
    return true;
}

/* Merges the parts of a job's shards, and queues the results and the end of the job. */
static enum evq_status merge_send(struct evq_lease *lease, struct evq_queue *queue,
                                  struct evq_error *err)
{
    struct evq_results results = {0};

    enum evq_status status = evq_shard_merge_run(queue, lease->claim->id, lease->claim->token,
                                                 lease->suite, &results, err);
    if (status == EVQ_E_LEASE_LOST || evq_conn_is_outage(status) || status == EVQ_E_NOMEM) {
        return status;
    }
    if (status != EVQ_OK) {
        // The parts do not match. Another attempt of the merge would not change that.
        return evq_lease_queue_fail(lease,
                                    status == EVQ_E_CHANGED ? EVQ_FAIL_CHANGED : EVQ_FAIL_FATAL,
                                    err != NULL ? err->message : "merge", NULL)
                   ? EVQ_OK
                   : EVQ_E_NOMEM;
    }
    bool kept = true;
    for (size_t i = 0; i < results.count; i++) {
        kept = evq_lease_complete_result(lease, results.items[i]) && kept;
        kept = evq_lease_queue_publish(lease, results.items[i]) && kept;
        results.items[i] = NULL;
    }
    evq_results_free(&results);
    return kept && evq_lease_queue_end(lease, EVQ_OUTBOX_COMPLETE) ? EVQ_OK : EVQ_E_NOMEM;
}

/*
 * Sends the first item. EVQ_OK: it was accepted and removed. EVQ_E_LEASE_LOST, EVQ_E_CHANGED: the
 * job is no longer ours. After other errors the call may be repeated.
 */
static enum evq_status item_send(struct evq_lease *lease, struct evq_queue *queue,
                                 struct evq_error *err)
{
    const struct evq_outbox_item *item = lease->first;
    const char *id = lease->claim->id;
    const char *token = lease->claim->token;
    enum evq_status status = EVQ_E_BUG;
    enum evq_job_state state;
    bool duplicate = false;

    switch (item->kind) {
    case EVQ_OUTBOX_PUBLISH:
        status = evq_queue_publish(queue, id, token, item->result, &duplicate, err);
        break;
    case EVQ_OUTBOX_COMPLETE:
        status = evq_queue_complete(queue, id, token, err);
        break;
    case EVQ_OUTBOX_COMPLETE_SHARD:
        status =
            evq_queue_complete_shard(queue, id, token, lease->part.data, lease->part.bytes, err);
        break;
    case EVQ_OUTBOX_FAIL:
        status = evq_queue_fail(queue, id, token, item->fail, item->reason,
                                item->detail != NULL ? item->detail : "", &state, err);
        break;
    case EVQ_OUTBOX_RELEASE:
        status = evq_queue_release(queue, id, token, err);
        break;
    case EVQ_OUTBOX_SPLIT:
        status = evq_queue_split(queue, id, token, lease->suite->shards, err);
        break;
    case EVQ_OUTBOX_MERGE:
        status = merge_send(lease, queue, err);
        break;
    }
    if (status == EVQ_OK) {
        evq_lease_outbox_pop(lease);
    }
    return status;
}

/* Sends the outbox of one lease. hold: stop before a complete, which is sent together with others.
 * Returns false if Redis is away; the rest is sent later. */
static bool lease_flush(struct evq_supervisor *supervisor, struct evq_lease *lease, bool hold)
{
    struct evq_error err = {0};

    while (lease->first != NULL) {
        const enum evq_outbox_kind kind = lease->first->kind;
        if (hold && kind == EVQ_OUTBOX_COMPLETE) {
            return true;
        }
        const enum evq_status status = item_send(lease, supervisor->redis.queue, &err);
        if (!evq_redis_session_note(&supervisor->redis, status, &err)) {
            return false;
        }
        if (status != EVQ_OK && !refusal_handle(supervisor, lease, kind, status, &err)) {
            return true;
        }
        if (status == EVQ_OK && kind == EVQ_OUTBOX_SPLIT) {
            supervisor->claim_due = true;
        }
    }
    if (lease->state == EVQ_LEASE_ENDING) {
        evq_lease_list_remove(supervisor, lease);
    }
    return true;
}

/* Publishes the results at the heads of all outboxes in one call. Returns false if Redis is away.
 */
static bool publishes_flush(struct evq_supervisor *supervisor)
{
    struct evq_publication results[PUBLISH_MAX];
    struct evq_lease *leases[PUBLISH_MAX];
    struct evq_error err = {0};
    size_t count = 0;

    for (struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        for (const struct evq_outbox_item *item = lease->first;
             item != NULL && item->kind == EVQ_OUTBOX_PUBLISH && count < PUBLISH_MAX;
             item = item->next) {
            results[count] = (struct evq_publication){
                .id = lease->claim->id, .token = lease->claim->token, .result = item->result};
            leases[count++] = lease;
        }
    }
    if (count == 0) {
        return true;
    }
    const enum evq_status call =
        evq_queue_publish_many(supervisor->redis.queue, results, count, &err);
    if (!evq_redis_session_note(&supervisor->redis, call, &err)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        struct evq_lease *lease = leases[i];
        if (lease != NULL && results[i].status == EVQ_OK) {
            evq_lease_outbox_pop(lease);
        } else if (lease != NULL) {
            // Later results of this lease were dropped with it, or will be sent again.
            for (size_t k = i; k < count; k++) {
                leases[k] = leases[k] == lease ? NULL : leases[k];
            }
            (void)refusal_handle(supervisor, lease, EVQ_OUTBOX_PUBLISH, results[i].status,
                                 &results[i].error);
        }
    }
    return true;
}

/* Completes all ended jobs in one call, together with the next claim. Returns false if Redis is
 * away. */
static bool completes_flush(struct evq_supervisor *supervisor)
{
    struct evq_completion done[EVQ_QUEUE_COMPLETIONS_MAX];
    struct evq_lease *leases[EVQ_QUEUE_COMPLETIONS_MAX];
    struct evq_error err = {0};
    size_t count = 0;

    for (struct evq_lease *lease = supervisor->leases;
         lease != NULL && count < EVQ_QUEUE_COMPLETIONS_MAX; lease = lease->next) {
        if (lease->first != NULL && lease->first->kind == EVQ_OUTBOX_COMPLETE) {
            done[count] =
                (struct evq_completion){.id = lease->claim->id, .token = lease->claim->token};
            leases[count++] = lease;
        }
    }
    if (count == 0) {
        return true;
    }
    enum evq_status completed = EVQ_OK;
    const enum evq_status call = evq_claims_fused(supervisor, done, count, &completed, &err);
    if (!evq_redis_session_note(&supervisor->redis, call, &err) ||
        !evq_redis_session_note(&supervisor->redis, completed, &err)) {
        return false;
    }
    // If the call failed, each job is completed by itself afterwards.
    for (size_t i = 0; i < count && completed == EVQ_OK; i++) {
        if (done[i].status == EVQ_OK) {
            evq_lease_outbox_pop(leases[i]);
            evq_lease_list_remove(supervisor, leases[i]);
            // A corrupt job tells its reason when it is completed by itself.
        } else if (done[i].status != EVQ_E_CORRUPT) {
            (void)refusal_handle(supervisor, leases[i], EVQ_OUTBOX_COMPLETE, done[i].status, &err);
        }
    }
    return true;
}

static bool outboxes_pass(struct evq_supervisor *supervisor, bool hold)
{
    for (struct evq_lease *lease = supervisor->leases; lease != NULL;) {
        struct evq_lease *next = lease->next; // Claims append to the list, so next stays valid.
        if (lease->first != NULL && !lease_flush(supervisor, lease, hold)) {
            return false;
        }
        lease = next;
    }
    return true;
}

bool evq_result_outbox_flush(struct evq_supervisor *supervisor)
{
    return publishes_flush(supervisor) && outboxes_pass(supervisor, true) &&
           completes_flush(supervisor) && outboxes_pass(supervisor, false);
}

bool evq_result_outbox_pending(const struct evq_supervisor *supervisor)
{
    for (const struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->first != NULL) {
            return true;
        }
    }
    return false;
}
