/* Claims jobs for the idle slots and starts them, or ends them if this worker cannot run them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

#define CLAIMS_MAX 64

static void lease_append(struct evq_supervisor *supervisor, struct evq_lease *lease)
{
    struct evq_lease **at = &supervisor->leases;

    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = lease;
}

/* The idle slot for the job; if possible, one whose model server has loaded its checkpoint. */
static struct evq_slot *slot_find(struct evq_supervisor *supervisor, const struct evq_claim *claim)
{
    struct evq_slot *found = NULL;

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        if (slot->state == EVQ_SLOT_IDLE && evq_claim_rules_fit(supervisor, claim->job, slot) &&
            (found == NULL || evq_claim_rules_warm(slot, claim->id))) {
            found = slot;
        }
    }
    return found;
}

/* Starts the held jobs that can run now: an `alone` job if no other job runs, others in any free
 * slot. */
void evq_claims_start(struct evq_supervisor *supervisor)
{
    for (struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->state != EVQ_LEASE_HELD || !evq_gpu_leases_current(supervisor)) {
            continue;
        }
        if (lease->claim->alone && evq_claim_rules_busy(supervisor) > 0) {
            continue;
        }
        struct evq_slot *slot = slot_find(supervisor, lease->claim);
        if (slot != NULL) {
            evq_child_notes_send_job(supervisor, slot, lease);
        }
    }
}

static void claim_take(struct evq_supervisor *supervisor, struct evq_claim *claim)
{
    const struct evq_suite *suite =
        claim->job != NULL ? evq_suite_registry_suite(&supervisor->registry, claim->job->suite)
                           : NULL;

    struct evq_lease *lease = evq_lease_new(claim, suite, supervisor->name);
    if (lease == NULL) { // The lease lapses, and another worker takes the job.
        evq_log(EVQ_LOG_ERROR, "out_of_memory", "job=%s", claim->id);
        evq_claim_free(claim);
        return;
    }
    lease_append(supervisor, lease);
    supervisor->jobs_taken++;
    if (claim->job == NULL) {
        (void)evq_lease_queue_fail(lease, EVQ_FAIL_FATAL, claim->record_error, NULL);
    } else if (suite == NULL) {
        (void)evq_lease_queue_fail(lease, EVQ_FAIL_RETRY,
                                   "this worker does not offer the job's suite", NULL);
    } else if (claim->merge) {
        (void)evq_lease_queue_end(lease, EVQ_OUTBOX_MERGE);
    } else if (suite->shards > 1 && claim->shard_count == 0) {
        (void)evq_lease_queue_end(lease, EVQ_OUTBOX_SPLIT);
        supervisor->jobs_taken--; // The shards of the job are counted instead.
    } else {
        lease->state = EVQ_LEASE_HELD;
    }
}

/* ---- claiming ---- */

struct want { // What the next claim asks for.
    uint32_t classes[EVQ_QUEUE_CLASSES_MAX];
    uint32_t class_count;
    uint32_t claims_max;
    char preferred[EVQ_QUEUE_PREFERRED_MAX][EVQ_JOB_ID_BYTES_MAX];
    uint32_t preferred_count;
};

/* Collects what the idle slots that fit the same classes as slot number `first` can claim. Returns
 * false if there is nothing to claim for them. */
static bool want_make(const struct evq_supervisor *supervisor, uint32_t first, struct want *want)
{
    const struct evq_slot *slot = &supervisor->slots[first];

    if (slot->state != EVQ_SLOT_IDLE) {
        return false;
    }
    want->class_count = evq_suite_registry_classes(
        &supervisor->registry, evq_claim_rules_classes(supervisor, slot->fits), want->classes);
    want->claims_max = want->preferred_count = 0;
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        const struct evq_slot *other = &supervisor->slots[i];
        const bool same = other->state == EVQ_SLOT_IDLE && other->fits == slot->fits;
        if (same && i < first) {
            return false; // An earlier slot of this group was asked for already.
        }
        want->claims_max += same;
        if (same) {
            want->preferred_count = evq_claim_rules_preferred(supervisor, other, want->preferred,
                                                              want->preferred_count);
        }
    }
    const int64_t jobs_left = supervisor->options->max_jobs - supervisor->jobs_taken;
    if (supervisor->options->max_jobs > 0 && jobs_left < want->claims_max) {
        want->claims_max = jobs_left > 0 ? (uint32_t)jobs_left : 0;
    }
    want->claims_max = want->claims_max > CLAIMS_MAX ? CLAIMS_MAX : want->claims_max;
    return want->class_count > 0 && want->claims_max > 0;
}

static struct evq_claim_request request_make(struct evq_supervisor *supervisor, struct want *want)
{
    if (supervisor->request[0] == '\0') {
        (void)snprintf(supervisor->request, sizeof(supervisor->request), "%016llx%016llx",
                       (unsigned long long)supervisor->request_nonce,
                       (unsigned long long)++supervisor->request_number);
    }
    return (struct evq_claim_request){.worker = supervisor->name,
                                      .request = supervisor->request,
                                      .lease_ms = supervisor->lease_ms,
                                      .claims_max = want->claims_max,
                                      .claims_room = CLAIMS_MAX,
                                      .classes = want->classes,
                                      .class_count = want->class_count,
                                      .preferred = want->preferred,
                                      .preferred_count = want->preferred_count};
}

static void claimed_take(struct evq_supervisor *supervisor, const struct want *want,
                         struct evq_claim *const *claims, const struct evq_claimed *claimed)
{
    // The request was answered, so the next claim needs a new id. If Redis gave fewer jobs than we
    // asked for, there are no more, and the next job sets a wake marker.
    supervisor->request[0] = '\0';
    supervisor->claim_due = supervisor->claim_due || claimed->count >= want->claims_max;
    supervisor->classes_stale =
        supervisor->classes_stale || claimed->classes_version != supervisor->registry.version;
    supervisor->claim_again_ms =
        claimed->due_ms >= 0 ? evq_clock_mono_ms() + claimed->due_ms + 1 : 0;
    for (uint32_t i = 0; i < claimed->count; i++) {
        claim_take(supervisor, claims[i]);
    }
    evq_claims_start(supervisor);
}

enum evq_status evq_claims_round(struct evq_supervisor *supervisor, struct evq_error *err)
{
    struct evq_claim *claims[CLAIMS_MAX];
    struct evq_claimed claimed;
    struct want want;

    supervisor->claim_due = false;
    for (uint32_t i = 0; i < supervisor->slot_count && evq_claim_rules_allow(supervisor); i++) {
        if (!want_make(supervisor, i, &want)) {
            continue;
        }
        const struct evq_claim_request request = request_make(supervisor, &want);
        const enum evq_status status =
            evq_queue_claim(supervisor->redis.queue, &request, claims, &claimed, err);
        if (status != EVQ_OK) {
            supervisor->claim_due = true;
            return status;
        }
        claimed_take(supervisor, &want, claims, &claimed);
    }
    return EVQ_OK;
}

/* The first slot of a group that has something to claim; slot_count if there is none. */
static uint32_t want_first(const struct evq_supervisor *supervisor, struct want *want)
{
    uint32_t first = 0;

    while (first < supervisor->slot_count && !want_make(supervisor, first, want)) {
        first++;
    }
    return evq_claim_rules_allow(supervisor) ? first : supervisor->slot_count;
}

/* Whether idle slots exist that fit other classes than the slot numbered `first`. */
static bool others_idle(const struct evq_supervisor *supervisor, uint32_t first)
{
    const uint64_t fits = supervisor->slots[first].fits;

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (supervisor->slots[i].state == EVQ_SLOT_IDLE && supervisor->slots[i].fits != fits) {
            return true;
        }
    }
    return false;
}

enum evq_status evq_claims_fused(struct evq_supervisor *supervisor, struct evq_completion *done,
                                 size_t count, enum evq_status *ret_completed,
                                 struct evq_error *err)
{
    struct evq_queue *queue = supervisor->redis.queue;
    struct evq_claim *claims[CLAIMS_MAX];
    struct evq_claimed claimed;
    struct want want;

    const uint32_t first = want_first(supervisor, &want);
    if (first == supervisor->slot_count) {
        *ret_completed = evq_queue_complete_many(queue, done, count, err);
        return *ret_completed;
    }
    const struct evq_claim_request request = request_make(supervisor, &want);
    enum evq_status status = EVQ_OK;
    if (count == 1) {
        status = evq_queue_complete_and_claim(queue, done->id, done->token, &request, &done->status,
                                              claims, &claimed, err);
        *ret_completed = status;
    } else {
        *ret_completed = EVQ_E_NOMEM; // This stays if the command is never sent.
        status = evq_queue_complete_many_and_claim(queue, done, count, &request, ret_completed,
                                                   claims, &claimed, err);
    }
    supervisor->claim_due = status != EVQ_OK || others_idle(supervisor, first);
    if (status == EVQ_OK) {
        claimed_take(supervisor, &want, claims, &claimed);
    }
    return status;
}
