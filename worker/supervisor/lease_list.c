/* The list of the leases that this worker holds, and how a lease leaves it. */
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

/* Stops the slot that still works for the lease, because its result is not wanted any more. */
void evq_lease_list_detach(struct evq_supervisor *supervisor, const struct evq_lease *lease)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        if (slot->lease == lease) {
            slot->lease = NULL;
            evq_slot_cancel(slot, EVQ_CAUSE_STALE, EVQ_SLOT_GRACE_MS);
        }
    }
}

void evq_lease_list_remove(struct evq_supervisor *supervisor, struct evq_lease *lease)
{
    struct evq_lease **at = &supervisor->leases;

    while (*at != NULL && *at != lease) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = lease->next;
    }
    evq_lease_free(lease);
    if (supervisor->leases == NULL) {
        supervisor->idle_since_ms = evq_clock_mono_ms();
    }
}

void evq_lease_list_drop(struct evq_supervisor *supervisor, struct evq_lease *lease,
                         enum evq_cause cause)
{
    evq_lease_list_detach(supervisor, lease);
    evq_log(EVQ_LOG_INFO, "job_dropped", "job=%s why=%s", lease->claim->id,
            evq_cause_rule(cause)->name);
    evq_lease_list_remove(supervisor, lease);
}
