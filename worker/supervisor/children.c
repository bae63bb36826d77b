/* The child processes of the slots: notices their deaths, applies time limits, and starts new
 * ones. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/evaluators/failure.h"
#include "worker/supervisor/supervisor.h"

#define EXIT_GRACE_MS 3000 // At the end of the worker, from the request to exit to SIGKILL.

/* ---- a child dies ---- */

static void death_describe(const struct evq_slot *slot, int wait_status, const char *host,
                           char *reason, size_t reason_bytes, char *detail, size_t detail_bytes)
{
    char tail[EVQ_PROGRAM_LOG_TAIL_BYTES + 1];

    if (WIFSIGNALED(wait_status)) {
        (void)snprintf(reason, reason_bytes, "evaluator process died: signal %d (%s)",
                       WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    } else {
        (void)snprintf(reason, reason_bytes, "evaluator process died: exit status %d",
                       WEXITSTATUS(wait_status));
    }
    evq_program_log_tail(&slot->errors, tail, sizeof(tail));
    (void)snprintf(detail, detail_bytes, "%s\nhost: %s\nslot: %u\ndevices: %s\nstandard error:\n%s",
                   reason, host, slot->number, slot->devices[0] != '\0' ? slot->devices : "cpu",
                   tail);
}

/* A child that died without a fault of its device or its start is replaced at once. */
static int64_t restart_wait_ms(const struct evq_slot *slot)
{
    const uint32_t limit = evq_cause_rule(EVQ_CAUSE_CHILD_FAILED)->limit;

    if (slot->failures == 0) {
        return 0;
    }
    return slot->failures < limit
               ? evq_cause_wait_ms(EVQ_CAUSE_CHILD_FAILED, slot->failures - 1, NULL)
               : evq_cause_wait_ms(EVQ_CAUSE_SLOT_OUT, slot->failures - limit, NULL);
}

static void child_died(struct evq_supervisor *supervisor, struct evq_slot *slot, int wait_status)
{
    char reason[256];
    char detail[EVQ_FAILURE_DETAIL_BYTES];

    evq_child_notes_read(supervisor, slot); // Notes that the child sent before it died still count.
    death_describe(slot, wait_status, supervisor->host, reason, sizeof(reason), detail,
                   sizeof(detail));
    evq_log(EVQ_LOG_WARN, "child_died", "slot=%u reason=%s job=%s", slot->number, reason,
            slot->lease != NULL ? slot->lease->claim->id : "");
    evq_child_notes_job_failed(supervisor, slot, EVQ_FAIL_CRASH, reason, detail);
    if (slot->state == EVQ_SLOT_STARTING) {
        // This is what the child said about its failed start, if it said anything.
        char note[sizeof(slot->note)];
        memcpy(note, slot->note, sizeof(note));
        evq_child_notes_slot_failed(slot, note[0] != '\0' ? note : reason);
    } else if (slot->failures == 0) {
        slot->note[0] = '\0'; // The note came from the hello of the dead child.
    }
    slot->evaluators[0] = '\0';
    evq_sample_relay_drop(slot);
    evq_slot_close(slot);
    slot->start_ms = evq_clock_mono_ms() + restart_wait_ms(slot);
    if (slot->failures >= evq_cause_rule(EVQ_CAUSE_CHILD_FAILED)->limit) {
        evq_log(EVQ_LOG_ERROR, "slot_out", "slot=%u devices=%s failures=%u again_ms=%lld",
                slot->number, slot->devices, slot->failures, (long long)restart_wait_ms(slot));
    }
}

void evq_children_reap(struct evq_supervisor *supervisor)
{
    int wait_status = 0;

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (evq_slot_reap(&supervisor->slots[i], &wait_status)) {
            child_died(supervisor, &supervisor->slots[i], wait_status);
        }
    }
}

/* ---- time passes ---- */

/* Starts the child of a slot. If it cannot be forked, that is logged once and tried again. */
static void slot_begin(struct evq_supervisor *supervisor, struct evq_slot *slot)
{
    struct evq_error err;

    if (evq_slot_start(slot, &supervisor->spawn, &err) == EVQ_OK) {
        slot->start = (struct evq_backoff){0};
        return;
    }
    if (evq_cause_count_failure(EVQ_CAUSE_FORK_FAILED, &slot->start, &supervisor->redis.seed)) {
        evq_log(EVQ_LOG_ERROR, "child_start_failed", "slot=%u reason=%s", slot->number,
                err.message);
    }
    slot->start_ms = slot->start.until_ms;
}

static void slot_tick(struct evq_supervisor *supervisor, struct evq_slot *slot, int64_t now_ms)
{
    if (slot->kill_ms > 0 && now_ms >= slot->kill_ms) {
        evq_log(EVQ_LOG_WARN, "child_kill", "slot=%u ending=%s", slot->number,
                evq_cause_rule(slot->ending)->name);
        evq_slot_kill(slot);
        return;
    }
    switch (slot->state) {
    case EVQ_SLOT_DOWN:
        if (!supervisor->draining && now_ms >= slot->start_ms) {
            slot_begin(supervisor, slot);
        }
        break;
    case EVQ_SLOT_STARTING:
        if (now_ms >= slot->last_note_ms + EVQ_SLOT_START_MS) {
            evq_log(EVQ_LOG_ERROR, "child_start_slow", "slot=%u", slot->number);
            evq_child_notes_slot_failed(slot, "the evaluator process did not become ready in time");
            evq_slot_kill(slot);
        }
        break;
    case EVQ_SLOT_RUNNING:
        if (now_ms >= slot->limit_ms) {
            evq_slot_cancel(slot, EVQ_CAUSE_TIMEOUT, EVQ_SLOT_GRACE_MS);
        } else if (now_ms >= slot->last_note_ms + EVQ_SLOT_HANG_MS) {
            evq_slot_cancel(slot, EVQ_CAUSE_HANG, EVQ_SLOT_GRACE_MS);
        }
        break;
    default:
        break;
    }
}

void evq_children_tick(struct evq_supervisor *supervisor, int64_t now_ms)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        slot_tick(supervisor, &supervisor->slots[i], now_ms);
    }
}

void evq_children_stop(struct evq_supervisor *supervisor)
{
    const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    const int64_t kill_ms = evq_clock_mono_ms() + (supervisor->forced ? 0 : EXIT_GRACE_MS);
    const int64_t leave_ms = kill_ms + EXIT_GRACE_MS;
    int wait_status = 0;
    bool killed = false;

    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        evq_channel_tell(&supervisor->slots[i].channel, "exit");
    }
    for (uint32_t left = supervisor->slot_count; left > 0 && evq_clock_mono_ms() < leave_ms;) {
        left = 0;
        for (uint32_t i = 0; i < supervisor->slot_count; i++) {
            struct evq_slot *slot = &supervisor->slots[i];
            if (slot->pid > 0 && !evq_slot_reap(slot, &wait_status)) {
                (void)evq_program_log_read(
                    &slot->errors); // A child that waits for a full pipe could not exit.
                left++;
            }
            if (slot->pid > 0 && !killed && evq_clock_mono_ms() >= kill_ms) {
                evq_slot_kill(slot);
            }
        }
        killed = evq_clock_mono_ms() >= kill_ms;
        if (left > 0) {
            (void)nanosleep(&pause, NULL);
        }
    }
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        evq_sample_relay_drop(&supervisor->slots[i]);
        evq_slot_close(&supervisor->slots[i]);
    }
}
