#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/clock.h"
#include "shared/log.h"
#include "worker/supervisor.h"

#define BLOCK_MS     5000
#define ROUND_CLAIMS 64 // Claims of one round, so that the children are looked after in between.
#define CLAIMS_MAX   64
#define BEATS_MAX    512

/* ---- leases ---- */

static void lease_unlink(struct evq_supervisor *supervisor, struct evq_lease *lease)
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

static void lease_append(struct evq_supervisor *supervisor, struct evq_lease *lease)
{
    struct evq_lease **at = &supervisor->leases;

    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = lease;
}

/* Whatever a slot still does for the lease is of no use any more. */
static void slot_detach(struct evq_supervisor *supervisor, const struct evq_lease *lease)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        if (slot->lease == lease) {
            slot->lease = NULL;
            evq_slot_cancel(slot, EVQ_ENDING_STALE, EVQ_SLOT_GRACE_MS);
        }
    }
}

void evq_dispatch_forget(struct evq_supervisor *supervisor, struct evq_lease *lease,
                         enum evq_slot_ending ending)
{
    slot_detach(supervisor, lease);
    evq_log(EVQ_LOG_INFO, "job_left", "job=%s why=%s", lease->claim->id,
            evq_slot_ending_name(ending));
    lease_unlink(supervisor, lease);
}

/* ---- which slot ---- */

static bool claim_fits(const struct evq_supervisor *supervisor, const struct evq_claim *claim,
                       const struct evq_slot *slot)
{
    const struct evq_suite *suite = evq_offer_suite(&supervisor->offer, claim->job->suite);
    const struct evq_needs *needs =
        claim->job->needs_given || suite == NULL ? &claim->job->needs : &suite->needs;

    return needs->gpus <= slot->gpus &&
           (needs->gpu_memory_bytes == 0 || needs->gpu_memory_bytes <= slot->memory_bytes);
}

static struct evq_slot *slot_find(struct evq_supervisor *supervisor, const struct evq_claim *claim)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        struct evq_slot *slot = &supervisor->slots[i];
        if (slot->state == EVQ_SLOT_IDLE && claim_fits(supervisor, claim, slot)) {
            return slot;
        }
    }
    return NULL;
}

static bool alone_present(const struct evq_supervisor *supervisor)
{
    for (const struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->claim->alone && lease->state != EVQ_LEASE_ENDING) {
            return true;
        }
    }
    return false;
}

/* Starts what is held and can run now: an `alone` job with nothing beside it, others in any slot
 * that is free. */
static void held_start(struct evq_supervisor *supervisor)
{
    for (struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->state != EVQ_LEASE_HELD) {
            continue;
        }
        if (lease->claim->alone && evq_children_count(supervisor, EVQ_SLOT_RUNNING) > 0) {
            continue;
        }
        struct evq_slot *slot = slot_find(supervisor, lease->claim);
        if (slot != NULL) {
            evq_children_work(supervisor, slot, lease);
        }
    }
}

static void claim_take(struct evq_supervisor *supervisor, struct evq_claim *claim)
{
    const struct evq_suite *suite =
        claim->job != NULL ? evq_offer_suite(&supervisor->offer, claim->job->suite) : NULL;

    struct evq_lease *lease = evq_lease_new(claim, suite, supervisor->name);
    if (lease == NULL) { // Its lease lapses and another takes it.
        evq_log(EVQ_LOG_ERROR, "out_of_memory", "job=%s", claim->id);
        evq_claim_free(claim);
        return;
    }
    lease_append(supervisor, lease);
    supervisor->jobs_taken++;
    if (claim->job == NULL) {
        (void)evq_lease_fail(lease, EVQ_FAIL_FATAL, claim->record_error, NULL);
    } else if (suite == NULL) {
        (void)evq_lease_fail(lease, EVQ_FAIL_RETRY, "this worker does not offer the job's suite",
                             NULL);
    } else if (claim->merge) {
        (void)evq_lease_end(lease, EVQ_OUTBOX_MERGE);
    } else if (suite->shards > 1 && claim->shard_count == 0) {
        (void)evq_lease_end(lease, EVQ_OUTBOX_SPLIT);
        supervisor->jobs_taken--; // Its shards count.
    } else {
        lease->state = EVQ_LEASE_HELD;
    }
}

/* ---- claiming ---- */

static uint64_t classes_in_time(const struct evq_supervisor *supervisor, uint64_t mask)
{
    const int64_t left_s = supervisor->options->deadline_s - evq_clock_unix_ms() / 1000;

    for (uint32_t i = 0; i < supervisor->offer.class_count && supervisor->options->deadline_s > 0;
         i++) {
        const struct evq_class *class = &supervisor->offer.classes[i];
        const struct evq_suite *suite = evq_offer_suite(&supervisor->offer, class->suite);
        if (suite != NULL &&
            supervisor->suite_seconds[suite - supervisor->config->suites] > (double)left_s) {
            mask &= ~evq_offer_bit(class->number);
        }
    }
    return mask;
}

struct want { // What the next claim asks for.
    uint32_t classes[EVQ_QUEUE_CLASSES_MAX];
    uint32_t class_count;
    uint32_t claims_max;
};

/* The idle slots that can run the same classes as the one numbered `first`. False: nothing to claim
 * there. */
static bool want_make(const struct evq_supervisor *supervisor, uint32_t first, struct want *want)
{
    const struct evq_slot *slot = &supervisor->slots[first];

    if (slot->state != EVQ_SLOT_IDLE) {
        return false;
    }
    want->class_count = evq_offer_classes(&supervisor->offer,
                                          classes_in_time(supervisor, slot->fits), want->classes);
    want->claims_max = 0;
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        const struct evq_slot *other = &supervisor->slots[i];
        const bool same = other->state == EVQ_SLOT_IDLE && other->fits == slot->fits;
        if (same && i < first) {
            return false; // That group was asked for already.
        }
        want->claims_max += same;
    }
    const int64_t jobs_left = supervisor->options->max_jobs - supervisor->jobs_taken;
    if (supervisor->options->max_jobs > 0 && jobs_left < want->claims_max) {
        want->claims_max = jobs_left > 0 ? (uint32_t)jobs_left : 0;
    }
    want->claims_max = want->claims_max > CLAIMS_MAX ? CLAIMS_MAX : want->claims_max;
    return want->class_count > 0 && want->claims_max > 0;
}

static bool may_claim(const struct evq_supervisor *supervisor)
{
    for (const struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->state == EVQ_LEASE_HELD) {
            return false;
        }
    }
    return !supervisor->draining && !supervisor->sick && supervisor->registered &&
           !alone_present(supervisor) &&
           (supervisor->options->max_jobs == 0 ||
            supervisor->jobs_taken < supervisor->options->max_jobs);
}

static struct evq_claim_request request_make(struct evq_supervisor *supervisor,
                                             const struct want *want)
{
    if (supervisor->request[0] == '\0') {
        (void)snprintf(supervisor->request, sizeof(supervisor->request), "%016llx%016llx",
                       (unsigned long long)evq_clock_random(),
                       (unsigned long long)evq_clock_random());
    }
    return (struct evq_claim_request){.worker = supervisor->name,
                                      .request = supervisor->request,
                                      .lease_ms = supervisor->lease_ms,
                                      .claims_max = want->claims_max,
                                      .classes = want->classes,
                                      .class_count = want->class_count};
}

static void claimed_take(struct evq_supervisor *supervisor, struct evq_claim *const *claims,
                         const struct evq_claimed *claimed)
{
    supervisor->request[0] = '\0'; // Answered: the next claim is another one.
    supervisor->reclass =
        supervisor->reclass || claimed->classes_version != supervisor->offer.version;
    supervisor->claim_again_ms =
        claimed->due_ms >= 0 ? evq_clock_mono_ms() + claimed->due_ms + 1 : 0;
    for (uint32_t i = 0; i < claimed->count; i++) {
        claim_take(supervisor, claims[i]);
    }
    held_start(supervisor);
}

/* One claim for each group of like slots. *ret_count: jobs that came. */
static enum evq_status claim_round(struct evq_supervisor *supervisor, uint32_t *ret_count,
                                   struct evq_error *err)
{
    struct evq_claim *claims[CLAIMS_MAX];
    struct evq_claimed claimed;
    struct want want;

    *ret_count = 0;
    for (uint32_t i = 0; i < supervisor->slot_count && may_claim(supervisor); i++) {
        if (!want_make(supervisor, i, &want)) {
            continue;
        }
        const struct evq_claim_request request = request_make(supervisor, &want);
        const enum evq_status status =
            evq_queue_claim(supervisor->link.queue, &request, claims, &claimed, err);
        if (status != EVQ_OK) {
            return status;
        }
        *ret_count += claimed.count;
        claimed_take(supervisor, claims, &claimed);
    }
    return EVQ_OK;
}

/* ---- outboxes ---- */

/* complete and the next claim in one call, when complete is all that is left to say. */
static enum evq_status complete_fused(struct evq_supervisor *supervisor, struct evq_lease *lease,
                                      enum evq_status *ret_status, bool *ret_done,
                                      struct evq_error *err)
{
    struct evq_claim *claims[CLAIMS_MAX];
    struct evq_claimed claimed;
    struct want want;
    uint32_t first = 0;

    *ret_done = false;
    if (lease->first->kind != EVQ_OUTBOX_COMPLETE || !may_claim(supervisor)) {
        return EVQ_OK;
    }
    while (first < supervisor->slot_count && !want_make(supervisor, first, &want)) {
        first++;
    }
    if (first == supervisor->slot_count) {
        return EVQ_OK;
    }
    const struct evq_claim_request request = request_make(supervisor, &want);
    const enum evq_status status =
        evq_queue_complete_and_claim(supervisor->link.queue, lease->claim->id, lease->claim->token,
                                     &request, ret_status, claims, &claimed, err);
    if (status == EVQ_OK) {
        *ret_done = true;
        evq_lease_outbox_pop(lease);
        claimed_take(supervisor, claims, &claimed);
        supervisor->claim_due = true; // Other groups, or more of this one.
    }
    return status;
}

/* False: Redis is away; the rest is for later. */
static bool lease_flush(struct evq_supervisor *supervisor, struct evq_lease *lease)
{
    struct evq_error err = {0};

    while (lease->first != NULL) {
        enum evq_status status = EVQ_OK;
        bool fused = false;
        const enum evq_outbox_kind kind = lease->first->kind;
        enum evq_status call = complete_fused(supervisor, lease, &status, &fused, &err);
        if (call == EVQ_OK && !fused) {
            call = status = evq_lease_send(lease, supervisor->link.queue, &err);
        }
        if (!evq_link_note(&supervisor->link, call, &err)) {
            return false;
        }
        status = call != EVQ_OK ? call : status;
        if (status == EVQ_E_LEASE_LOST || status == EVQ_E_CHANGED) {
            evq_log(EVQ_LOG_WARN, status == EVQ_E_CHANGED ? "job_changed" : "job_stale",
                    "job=%s reason=%s", lease->claim->id, err.message);
            evq_dispatch_forget(supervisor, lease, EVQ_ENDING_STALE);
            return true;
        }
        if (status == EVQ_E_NOMEM) {
            return true; // Another time.
        }
        if (status != EVQ_OK) {
            // Redis refuses what we say and will go on refusing: the job must not hang on it.
            evq_log(EVQ_LOG_ERROR, "job_refused", "job=%s status=%s reason=%s", lease->claim->id,
                    evq_status_name(status), err.message);
            const bool again = kind == EVQ_OUTBOX_FAIL || kind == EVQ_OUTBOX_RELEASE;
            slot_detach(supervisor, lease);
            evq_lease_outbox_clear(lease);
            if (again || !evq_lease_fail(lease, EVQ_FAIL_FATAL, err.message, NULL)) {
                evq_dispatch_forget(supervisor, lease, EVQ_ENDING_STALE);
                return true;
            }
        }
        if (status == EVQ_OK && kind == EVQ_OUTBOX_SPLIT) {
            supervisor->claim_due = true;
        }
    }
    if (lease->state == EVQ_LEASE_ENDING) {
        lease_unlink(supervisor, lease);
    }
    return true;
}

static bool outboxes_flush(struct evq_supervisor *supervisor)
{
    for (struct evq_lease *lease = supervisor->leases; lease != NULL;) {
        struct evq_lease *next = lease->next; // Claims are appended: next stays good.
        if (lease->first != NULL && !lease_flush(supervisor, lease)) {
            return false;
        }
        lease = next;
    }
    return true;
}

static bool outbox_waits(const struct evq_supervisor *supervisor)
{
    for (const struct evq_lease *lease = supervisor->leases; lease != NULL; lease = lease->next) {
        if (lease->first != NULL) {
            return true;
        }
    }
    return false;
}

/* ---- heartbeats ---- */

static void beats_answer(struct evq_supervisor *supervisor, const struct evq_beat *beats,
                         struct evq_lease *const *leases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (beats[i].answer == EVQ_BEAT_OK) {
            continue;
        }
        const bool cancelled = beats[i].answer == EVQ_BEAT_CANCEL;
        evq_log(EVQ_LOG_WARN, cancelled ? "job_cancelled" : "job_stale", "job=%s reason=%s",
                leases[i]->claim->id, "heartbeat");
        evq_dispatch_forget(supervisor, leases[i],
                            cancelled ? EVQ_ENDING_CANCELLED : EVQ_ENDING_STALE);
    }
}

/* A keyspace that was emptied answers stale to all: told from the loss of a lease by its epoch. */
static bool stale_is_flush(struct evq_supervisor *supervisor, const struct evq_beat *beats,
                           size_t count)
{
    struct evq_error err;
    bool stale = false;
    bool new_epoch = false;

    for (size_t i = 0; i < count; i++) {
        stale = stale || beats[i].answer == EVQ_BEAT_STALE;
    }
    if (!stale || supervisor->adopt) {
        return false;
    }
    const enum evq_status status = evq_link_check(&supervisor->link, true, &new_epoch, &err);
    if (!evq_link_note(&supervisor->link, status, &err)) {
        return true; // Not known yet: the next heartbeat asks again.
    }
    if (new_epoch) {
        supervisor->registered = false;
        supervisor->adopt = true;
    }
    return new_epoch;
}

static bool heartbeat(struct evq_supervisor *supervisor)
{
    struct evq_beat beats[BEATS_MAX];
    struct evq_lease *leases[BEATS_MAX];
    struct evq_buffer json;
    struct evq_error err;
    size_t count = 0;
    int64_t version = supervisor->offer.version;

    for (struct evq_lease *lease = supervisor->leases; lease != NULL && count < BEATS_MAX;
         lease = lease->next) {
        leases[count] = lease;
        beats[count++] = (struct evq_beat){.id = lease->claim->id,
                                           .token = lease->claim->token,
                                           .done = lease->done,
                                           .total = lease->total,
                                           .status = lease->status};
    }
    evq_buffer_init(&json, 0);
    evq_status_json(supervisor, &json);
    const char *text = evq_buffer_string(&json);
    const enum evq_status status =
        evq_queue_heartbeat(supervisor->link.queue, supervisor->name, text != NULL ? text : "",
                            supervisor->lease_ms, beats, count, &version, &err);
    evq_buffer_free(&json);
    if (!evq_link_note(&supervisor->link, status, &err)) {
        return false;
    }
    supervisor->beat_due_ms =
        evq_clock_mono_ms() +
        evq_clock_jitter_ms(&supervisor->link.seed, supervisor->heartbeat_ms, 10);
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_ERROR, "heartbeat_refused", "reason=%s", err.message);
        return true;
    }
    supervisor->reclass = supervisor->reclass || version != supervisor->offer.version;
    if (!stale_is_flush(supervisor, beats, count)) {
        beats_answer(supervisor, beats, leases, count);
    }
    return true;
}

/* ---- offers and epochs ---- */

static void slots_fit(struct evq_supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        evq_offer_fit(&supervisor->offer, &supervisor->slots[i]);
    }
    supervisor->reclass = false;
    supervisor->claim_due = true;
}

static bool offer_renew(struct evq_supervisor *supervisor)
{
    struct evq_error err;
    bool ignored = false;

    if (supervisor->registered && !supervisor->reclass) {
        return true;
    }
    const enum evq_status status =
        supervisor->registered
            ? evq_offer_refresh(&supervisor->offer, supervisor->link.queue, &err)
            : evq_offer_register(&supervisor->offer, supervisor->link.queue, &err);
    if (!evq_link_note(&supervisor->link, status, &err)) {
        return false;
    }
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_ERROR, "suite_refused", "reason=%s", err.message);
        supervisor->exit_code =
            status == EVQ_E_CONFLICT ? EVQ_EXIT_CONFIG : evq_status_exit(status);
        evq_supervisor_drain(supervisor, "its suites were refused",
                             supervisor->config->worker.drain_seconds * 1000);
        supervisor->registered = true; // What runs may end.
        supervisor->reclass = false;
        return true;
    }
    if (!supervisor->registered) {
        // The first write of a keyspace gives it its epoch: that is not another keyspace.
        const enum evq_status again = evq_link_check(&supervisor->link, true, &ignored, &err);
        if (!evq_link_note(&supervisor->link, again, &err)) {
            return false;
        }
    }
    supervisor->registered = true;
    slots_fit(supervisor);
    return true;
}

/* Running jobs of a keyspace that was lost are put into the new one. */
static bool leases_adopt(struct evq_supervisor *supervisor)
{
    struct evq_error err;

    if (!supervisor->adopt) {
        return true;
    }
    for (struct evq_lease *lease = supervisor->leases; lease != NULL;) {
        struct evq_lease *next = lease->next;
        enum evq_status status = EVQ_E_LEASE_LOST;
        // The parts of a sharded job went with the keyspace: nothing of it can be put back.
        if (lease->claim->job != NULL && !lease->claim->merge && lease->claim->shard_count == 0) {
            status = evq_queue_adopt(supervisor->link.queue, supervisor->name, lease->claim,
                                     supervisor->lease_ms, &err);
        }
        if (!evq_link_note(&supervisor->link, status, &err)) {
            return false;
        }
        if (status == EVQ_OK) {
            evq_log(EVQ_LOG_WARN, "job_adopted", "job=%s", lease->claim->id);
        } else {
            evq_dispatch_forget(supervisor, lease, EVQ_ENDING_STALE);
        }
        lease = next;
    }
    supervisor->adopt = false;
    return true;
}

static bool link_check(struct evq_supervisor *supervisor)
{
    struct evq_error err;
    bool new_epoch = false;

    const enum evq_status status = evq_link_check(&supervisor->link, false, &new_epoch, &err);
    if (!evq_link_note(&supervisor->link, status, &err)) {
        return false;
    }
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_ERROR, "info_refused", "reason=%s", err.message);
        return false;
    }
    if (new_epoch) {
        supervisor->adopt = supervisor->adopt || supervisor->leases != NULL;
        supervisor->registered = false;
    }
    return true;
}

/* ---- waiting ---- */

static bool supervisor_quiet(const struct evq_supervisor *supervisor)
{
    return supervisor->leases == NULL &&
           evq_children_count(supervisor, EVQ_SLOT_IDLE) == supervisor->slot_count;
}

static void wait_begin(struct evq_supervisor *supervisor)
{
    const int64_t now_ms = evq_clock_mono_ms();
    uint32_t classes[EVQ_QUEUE_CLASSES_MAX];
    struct evq_error err;
    uint64_t mask = 0;

    if (supervisor->link.waiting != NULL || !may_claim(supervisor)) {
        return;
    }
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        mask |= supervisor->slots[i].state == EVQ_SLOT_IDLE ? supervisor->slots[i].fits : 0;
    }
    const uint32_t count =
        evq_offer_classes(&supervisor->offer, classes_in_time(supervisor, mask), classes);
    if (count == 0) {
        return;
    }
    const bool quiet = supervisor_quiet(supervisor);
    if (quiet && supervisor->link.second != NULL) {
        evq_conn_drop(
            supervisor->link.second); // One connection for each of very many idle workers.
    }
    int64_t block_ms = evq_clock_jitter_ms(&supervisor->link.seed, BLOCK_MS * 4 / 5, 25);
    if (supervisor->claim_again_ms > 0 && supervisor->claim_again_ms - now_ms < block_ms) {
        block_ms = supervisor->claim_again_ms - now_ms;
    }
    if (quiet && supervisor->beat_due_ms - now_ms < block_ms) {
        block_ms =
            supervisor->beat_due_ms - now_ms; // The connection must be free for the heartbeat.
    }
    const enum evq_status status =
        evq_link_wait(&supervisor->link, classes, count, block_ms, quiet, &err);
    (void)evq_link_note(&supervisor->link, status, &err);
}

void evq_dispatch_wake(struct evq_supervisor *supervisor, bool readable)
{
    struct evq_error err;
    bool over = false;

    if (supervisor->link.waiting == NULL) {
        return;
    }
    const enum evq_status status = evq_link_wait_end(&supervisor->link, readable, &over, &err);
    if (over) {
        supervisor->claim_due =
            evq_link_note(&supervisor->link, status, &err) || supervisor->claim_due;
    }
}

/* ---- the round ---- */

/* While nothing runs and the command connection blocks, the heartbeat waits for the end of the
 * block, which was chosen for it: giving the block up could lose a marker. */
static bool beat_is_due(const struct evq_supervisor *supervisor, int64_t now_ms)
{
    const bool blocked =
        supervisor->link.waiting != NULL && supervisor->link.waiting == supervisor->link.conn;

    return now_ms >= supervisor->beat_due_ms &&
           (!blocked || supervisor->leases != NULL || supervisor->draining);
}

static bool work_waits(const struct evq_supervisor *supervisor, int64_t now_ms)
{
    return !supervisor->registered || supervisor->reclass || supervisor->adopt ||
           outbox_waits(supervisor) || now_ms >= supervisor->beat_due_ms ||
           (supervisor->claim_due && may_claim(supervisor)) || supervisor->link.waiting == NULL;
}

void evq_dispatch_round(struct evq_supervisor *supervisor)
{
    struct evq_link *link = &supervisor->link;
    const int64_t now_ms = evq_clock_mono_ms();
    struct evq_error err;

    held_start(supervisor);
    if (!evq_link_ready(link, now_ms) || !work_waits(supervisor, now_ms)) {
        return;
    }
    // Commands must not queue behind a block; a marker must not be eaten by a worker with no slot
    // for its job.
    if (link->waiting == link->conn || evq_children_count(supervisor, EVQ_SLOT_IDLE) == 0 ||
        !may_claim(supervisor)) {
        evq_link_wait_drop(link);
    }
    if (!link_check(supervisor) || !offer_renew(supervisor) || !leases_adopt(supervisor) ||
        !outboxes_flush(supervisor)) {
        return;
    }
    if (beat_is_due(supervisor, now_ms) && !heartbeat(supervisor)) {
        return;
    }
    for (int i = 0; i < ROUND_CLAIMS && supervisor->claim_due && may_claim(supervisor); i++) {
        uint32_t count = 0;
        supervisor->claim_due = false;
        const enum evq_status status = claim_round(supervisor, &count, &err);
        if (!evq_link_note(link, status, &err)) {
            supervisor->claim_due = true;
            return;
        }
        if (status != EVQ_OK) {
            evq_log(EVQ_LOG_ERROR, "claim_refused", "reason=%s", err.message);
            supervisor->reclass = true; // Classes we no longer know of are one way to be refused.
            link->retry_ms = evq_clock_mono_ms() + 1000;
            return;
        }
        supervisor->claim_due = supervisor->claim_due || count > 0;
        if (!outboxes_flush(supervisor)) {
            return;
        }
    }
    held_start(supervisor);
    wait_begin(supervisor);
}

int64_t evq_dispatch_due_ms(const struct evq_supervisor *supervisor)
{
    int64_t due_ms =
        beat_is_due(supervisor, INT64_MAX) ? supervisor->beat_due_ms : supervisor->link.wait_end_ms;

    if (supervisor->claim_due && may_claim(supervisor) &&
        evq_children_count(supervisor, EVQ_SLOT_IDLE) > 0) {
        due_ms = 0;
    }
    if (outbox_waits(supervisor) || !supervisor->registered || supervisor->reclass ||
        supervisor->adopt) {
        due_ms = 0;
    }
    if (supervisor->link.waiting != NULL && supervisor->link.wait_end_ms < due_ms) {
        due_ms = supervisor->link.wait_end_ms;
    }
    if (supervisor->claim_again_ms > 0 && supervisor->claim_again_ms < due_ms &&
        evq_children_count(supervisor, EVQ_SLOT_IDLE) > 0 && may_claim(supervisor) &&
        supervisor->link.waiting == NULL) {
        due_ms = supervisor->claim_again_ms;
    }
    return due_ms < supervisor->link.retry_ms ? supervisor->link.retry_ms : due_ms;
}
