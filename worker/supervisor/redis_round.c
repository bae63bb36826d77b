/* One round with Redis: suites and classes, a new keyspace, the outboxes, heartbeats, claims, and
 * the wait for a wake-up marker. */
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

#define BLOCK_MS     5000
#define ROUND_CLAIMS 64 // Claims in one round. Between rounds, the children are served.

/* When to repeat a command that Redis refused, or that had no memory. */
static int64_t refusal_retry_ms(struct evq_supervisor *supervisor)
{
    return evq_clock_mono_ms() +
           evq_cause_wait_ms(EVQ_CAUSE_REDIS_REFUSES, 0, &supervisor->redis.seed);
}

/* ---- suites, classes and epochs ---- */

static void slots_fit(struct evq_supervisor *supervisor)
{
    supervisor->classes_stale = false;
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (!evq_slot_waits_for_gpus(&supervisor->slots[i]) &&
            evq_suite_registry_fit(&supervisor->registry, &supervisor->slots[i]) != EVQ_OK) {
            // Otherwise the classes that it could not read would never be claimed.
            supervisor->classes_stale = true;
            supervisor->classes_retry_ms = refusal_retry_ms(supervisor);
        }
    }
    supervisor->claim_due = true;
}

static bool classes_are_due(const struct evq_supervisor *supervisor, int64_t now_ms)
{
    return supervisor->classes_stale && now_ms >= supervisor->classes_retry_ms;
}

static bool registry_renew(struct evq_supervisor *supervisor, int64_t now_ms)
{
    struct evq_error err;
    bool ignored = false;

    if (supervisor->registered && !classes_are_due(supervisor, now_ms)) {
        return true;
    }
    const enum evq_status status =
        supervisor->registered
            ? evq_suite_registry_refresh(&supervisor->registry, supervisor->redis.queue, &err)
            : evq_suite_registry_register(&supervisor->registry, supervisor->redis.queue, &err);
    // The renewal only reads, so it does not end an outage of writes.
    if (!evq_redis_session_note_read(&supervisor->redis, status, &err)) {
        return false;
    }
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_ERROR, "suite_refused", "reason=%s", err.message);
        supervisor->exit_code =
            status == EVQ_E_CONFLICT ? EVQ_EXIT_CONFIG : evq_status_exit_code(status);
        evq_drain_begin(supervisor, "its suites were refused",
                        supervisor->config->worker.drain_seconds * 1000);
        supervisor->registered = true; // Running jobs may finish.
        supervisor->classes_stale = false;
        return true;
    }
    if (!supervisor->registered) {
        // The first write into an empty keyspace sets its epoch. That is not a new keyspace.
        const enum evq_status again =
            evq_redis_session_check(&supervisor->redis, true, &ignored, &err);
        if (!evq_redis_session_note_read(&supervisor->redis, again, &err)) {
            return false;
        }
    }
    supervisor->registered = true;
    slots_fit(supervisor);
    return true;
}

/* Puts our running jobs into the new keyspace after the old one was lost. */
static bool leases_adopt(struct evq_supervisor *supervisor)
{
    struct evq_error err;

    if (!supervisor->adopt_due) {
        return true;
    }
    for (struct evq_lease *lease = supervisor->leases; lease != NULL;) {
        struct evq_lease *next = lease->next;
        enum evq_status status = EVQ_E_LEASE_LOST;
        const bool part = lease->claim->merge || lease->claim->shard_count != 0;
        // After a failover, the shard is most likely still there. Its heartbeat will tell.
        if (part && supervisor->redis.failed_over) {
            lease = next;
            continue;
        }
        // The shards of a job were lost with the keyspace, so a shard cannot be put back alone.
        if (lease->claim->job != NULL && !part) {
            status = evq_queue_adopt(supervisor->redis.queue, supervisor->name, lease->claim,
                                     supervisor->lease_ms, &err);
        }
        if (!evq_redis_session_note(&supervisor->redis, status, &err)) {
            return false;
        }
        if (status == EVQ_OK) {
            evq_log(EVQ_LOG_WARN, "job_adopted", "job=%s", lease->claim->id);
        } else {
            evq_lease_list_drop(supervisor, lease, EVQ_CAUSE_STALE);
        }
        lease = next;
    }
    supervisor->adopt_due = false;
    return true;
}

static bool redis_check(struct evq_supervisor *supervisor)
{
    struct evq_error err;
    bool new_epoch = false;

    const enum evq_status status =
        evq_redis_session_check(&supervisor->redis, false, &new_epoch, &err);
    if (!evq_redis_session_note_read(&supervisor->redis, status, &err)) {
        return false;
    }
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_ERROR, "info_refused", "reason=%s", err.message);
        return false;
    }
    if (new_epoch) {
        supervisor->adopt_due = supervisor->adopt_due || supervisor->leases != NULL;
        supervisor->registered = false;
    }
    return true;
}

/* ---- waiting ---- */

static bool supervisor_quiet(const struct evq_supervisor *supervisor)
{
    return supervisor->leases == NULL && evq_claim_rules_idle(supervisor) == supervisor->slot_count;
}

static void wait_begin(struct evq_supervisor *supervisor)
{
    const int64_t now_ms = evq_clock_mono_ms();
    uint32_t classes[EVQ_QUEUE_CLASSES_MAX];
    struct evq_error err;
    uint64_t mask = 0;

    if (supervisor->redis.waiting != NULL || !evq_claim_rules_allow(supervisor)) {
        return;
    }
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        mask |= supervisor->slots[i].state == EVQ_SLOT_IDLE ? supervisor->slots[i].fits : 0;
    }
    const uint32_t count = evq_suite_registry_classes(
        &supervisor->registry, evq_claim_rules_classes(supervisor, mask), classes);
    if (count == 0) {
        return;
    }
    const bool quiet = supervisor_quiet(supervisor);
    if (quiet && supervisor->redis.second != NULL) {
        // So that very many idle workers need only one connection each.
        evq_conn_drop(supervisor->redis.second);
    }
    int64_t block_ms = evq_clock_jitter_ms(&supervisor->redis.seed, BLOCK_MS * 4 / 5, 25);
    if (supervisor->claim_again_ms > 0 && supervisor->claim_again_ms - now_ms < block_ms) {
        block_ms = supervisor->claim_again_ms - now_ms;
    }
    if (quiet && supervisor->beat_due_ms - now_ms < block_ms) {
        // The connection must be free when the heartbeat is due.
        block_ms = supervisor->beat_due_ms - now_ms;
    }
    const enum evq_status status =
        evq_redis_session_wait(&supervisor->redis, classes, count, block_ms, quiet, &err);
    (void)evq_redis_session_note_read(&supervisor->redis, status,
                                      &err); // After a failure, this sets the time of the next try.
}

/* If Redis refuses to wait for wake markers, the worker claims at intervals instead. */
static void wait_answered(struct evq_supervisor *supervisor, enum evq_status status,
                          const struct evq_error *err)
{
    const bool refused = status != EVQ_OK;

    if (refused) {
        evq_log(supervisor->wait_refused ? EVQ_LOG_DEBUG : EVQ_LOG_ERROR, "wait_refused",
                "reason=%s", err->message);
        supervisor->redis.backoff.until_ms = refusal_retry_ms(supervisor);
    }
    supervisor->wait_refused = refused;
}

void evq_redis_round_wake(struct evq_supervisor *supervisor, bool readable)
{
    struct evq_error err;
    bool over = false;

    if (supervisor->redis.waiting == NULL) {
        return;
    }
    const enum evq_status status =
        evq_redis_session_wait_end(&supervisor->redis, readable, &over, &err);
    if (over && evq_redis_session_note(&supervisor->redis, status, &err)) {
        supervisor->claim_due = true;
        wait_answered(supervisor, status, &err);
    }
}

/* A refused claim stays refused until somebody repairs the cause. It is logged once and repeated at
 * intervals. */
static void claim_answered(struct evq_supervisor *supervisor, enum evq_status status,
                           const struct evq_error *err)
{
    const bool refused = status != EVQ_OK;

    if (refused) {
        evq_log(supervisor->claim_refused ? EVQ_LOG_DEBUG : EVQ_LOG_ERROR, "claim_refused",
                "reason=%s", err->message);
    } else if (supervisor->claim_refused) {
        evq_log(EVQ_LOG_INFO, "claim_back", "worker=%s", supervisor->name);
    }
    supervisor->claim_refused = refused;
}

/* ---- the round ---- */

/* If nothing runs and the command connection is blocked, the heartbeat waits until the block ends,
 * which was timed for that. Ending the block early could lose a wake marker. */
static bool beat_is_due(const struct evq_supervisor *supervisor, int64_t now_ms)
{
    const bool blocked =
        supervisor->redis.waiting != NULL && supervisor->redis.waiting == supervisor->redis.conn;

    return now_ms >= supervisor->beat_due_ms &&
           (!blocked || supervisor->leases != NULL || supervisor->draining);
}

static bool work_waits(const struct evq_supervisor *supervisor, int64_t now_ms)
{
    return !supervisor->registered || classes_are_due(supervisor, now_ms) ||
           supervisor->adopt_due || evq_result_outbox_pending(supervisor) ||
           evq_sample_relay_pending(supervisor) || now_ms >= supervisor->beat_due_ms ||
           (supervisor->claim_due && evq_claim_rules_allow(supervisor)) ||
           supervisor->redis.waiting == NULL;
}

void evq_redis_round_run(struct evq_supervisor *supervisor)
{
    struct evq_redis_session *session = &supervisor->redis;
    const int64_t now_ms = evq_clock_mono_ms();
    struct evq_error err;

    evq_claims_start(supervisor);
    evq_disk_pause_tick(supervisor, now_ms);
    if (!evq_redis_session_ready(session, now_ms) || !work_waits(supervisor, now_ms)) {
        return;
    }
    // Commands must not wait behind a blocked command, and a worker without a free slot must not
    // consume a wake marker.
    if (session->waiting == session->conn || evq_claim_rules_idle(supervisor) == 0 ||
        !evq_claim_rules_allow(supervisor)) {
        evq_redis_session_wait_drop(session);
    }
    if (!redis_check(supervisor) || !registry_renew(supervisor, now_ms) ||
        !(evq_gpu_leases_current(supervisor) || evq_gpu_leases_renew(supervisor)) ||
        !leases_adopt(supervisor) || !evq_result_outbox_flush(supervisor)) {
        return;
    }
    if (beat_is_due(supervisor, now_ms) &&
        (!evq_heartbeat_send(supervisor) || !evq_gpu_leases_renew(supervisor))) {
        return;
    }
    if (!evq_sample_relay_flush(supervisor)) {
        return;
    }
    for (int i = 0; i < ROUND_CLAIMS && supervisor->claim_due && evq_claim_rules_allow(supervisor);
         i++) {
        const enum evq_status status = evq_claims_round(supervisor, &err);
        if (!evq_redis_session_note(session, status, &err)) {
            return;
        }
        claim_answered(supervisor, status, &err);
        if (status != EVQ_OK) {
            // A claim is also refused if a class that it names no longer exists.
            supervisor->classes_stale = true;
            session->backoff.until_ms = refusal_retry_ms(supervisor);
            return;
        }
        if (!evq_result_outbox_flush(supervisor)) {
            return;
        }
    }
    evq_claims_start(supervisor);
    wait_begin(supervisor);
}

int64_t evq_redis_round_due_ms(const struct evq_supervisor *supervisor)
{
    int64_t due_ms = beat_is_due(supervisor, INT64_MAX) ? supervisor->beat_due_ms
                                                        : supervisor->redis.wait_end_ms;

    if (supervisor->claim_due && evq_claim_rules_allow(supervisor) &&
        evq_claim_rules_idle(supervisor) > 0) {
        due_ms = 0;
    }
    if (supervisor->classes_stale && supervisor->classes_retry_ms < due_ms) {
        due_ms = supervisor->classes_retry_ms;
    }
    if (evq_result_outbox_pending(supervisor) || evq_sample_relay_pending(supervisor) ||
        !supervisor->registered || supervisor->adopt_due) {
        due_ms = 0;
    }
    if (supervisor->redis.waiting != NULL && supervisor->redis.wait_end_ms < due_ms) {
        due_ms = supervisor->redis.wait_end_ms;
    }
    if (supervisor->claim_again_ms > 0 && supervisor->claim_again_ms < due_ms &&
        evq_claim_rules_idle(supervisor) > 0 && evq_claim_rules_allow(supervisor) &&
        supervisor->redis.waiting == NULL) {
        due_ms = supervisor->claim_again_ms;
    }
    const int64_t room_ms = evq_disk_pause_due_ms(supervisor);
    due_ms = room_ms < due_ms ? room_ms : due_ms;
    return due_ms < supervisor->redis.backoff.until_ms ? supervisor->redis.backoff.until_ms
                                                       : due_ms;
}
