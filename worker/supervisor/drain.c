/* How a worker ends: when it stops claiming, and how long running jobs may continue. */
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

// Time after a second signal for telling Redis which jobs are released.
#define FORCED_MS        3000
#define RELEASE_GRACE_MS 2000 // Time from the end of the drain until running jobs are killed.
#define DEADLINE_SPARE_S 5

void evq_drain_begin(struct evq_supervisor *supervisor, const char *why, int64_t within_ms)
{
    const int64_t end_ms = evq_clock_mono_ms() + within_ms;

    if (!supervisor->draining) {
        evq_log(EVQ_LOG_INFO, "drain", "why=%s within_ms=%lld running=%u", why,
                (long long)within_ms, evq_claim_rules_busy(supervisor));
    }
    supervisor->drain_ms =
        supervisor->draining && supervisor->drain_ms < end_ms ? supervisor->drain_ms : end_ms;
    supervisor->draining = true;
    supervisor->beat_due_ms = 0;
    for (struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->state == EVQ_LEASE_HELD) {
            (void)evq_lease_queue_end(lease, EVQ_OUTBOX_RELEASE);
        }
    }
}

void evq_drain_force(struct evq_supervisor *supervisor)
{
    evq_log(EVQ_LOG_WARN, "drain_forced", "running=%u", evq_claim_rules_busy(supervisor));
    supervisor->forced = true;
    supervisor->exit_code = EVQ_EXIT_INTERRUPTED;
    supervisor->drain_ms = evq_clock_mono_ms() + FORCED_MS;
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        if (evq_slot_has_job(slot)) {
            slot->ending = slot->ending == EVQ_CAUSE_NONE ? EVQ_CAUSE_RELEASED : slot->ending;
            evq_slot_kill(slot);
        }
    }
}

/* Whether a due claim can be made. If not (the worker is sick, or Redis is away), the worker counts
 * as idle. */
static bool may_still_claim(const struct evq_supervisor *supervisor)
{
    return evq_claim_rules_allow(supervisor) && supervisor->redis.backoff.tries == 0;
}

void evq_drain_tick(struct evq_supervisor *supervisor, int64_t now_ms)
{
    const struct evq_options *options = supervisor->options;
    const int64_t drain_ms = supervisor->config->worker.drain_seconds * 1000;

    if (!supervisor->draining) {
        const int64_t left_ms =
            options->deadline_s > 0
                ? (options->deadline_s - DEADLINE_SPARE_S) * 1000 - evq_clock_unix_ms()
                : INT64_MAX;
        if (left_ms <= drain_ms) {
            evq_drain_begin(supervisor, "deadline", left_ms > 0 ? left_ms : 0);
        } else if (supervisor->leases == NULL && options->max_jobs > 0 &&
                   supervisor->jobs_taken >= options->max_jobs) {
            evq_drain_begin(supervisor, "max-jobs", drain_ms);
        } else if (supervisor->leases == NULL && options->idle_exit_s >= 0 &&
                   !(supervisor->claim_due && may_still_claim(supervisor)) &&
                   !evq_claim_rules_changing(supervisor) &&
                   now_ms - supervisor->idle_since_ms >= options->idle_exit_s * 1000) {
            evq_drain_begin(supervisor, "idle", drain_ms);
        }
        return;
    }
    if (supervisor->forced || now_ms < supervisor->drain_ms) {
        return;
    }
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (supervisor->slots[i].state == EVQ_SLOT_RUNNING) {
            evq_slot_cancel(&supervisor->slots[i], EVQ_CAUSE_RELEASED, RELEASE_GRACE_MS);
        }
    }
}

bool evq_drain_over(const struct evq_supervisor *supervisor, int64_t now_ms)
{
    if (!supervisor->draining) {
        return false;
    }
    const int64_t last_ms =
        supervisor->drain_ms + (supervisor->forced ? 0 : RELEASE_GRACE_MS + FORCED_MS);
    return supervisor->leases == NULL || now_ms >= last_ms;
}
