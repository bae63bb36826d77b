/* The state machine of a slot, and when it needs attention. */
#include "worker/supervisor/slot.h"

#include <string.h>

#include "shared/base/clock.h"

void evq_slot_init(struct evq_slot *slot, uint32_t number)
{
    memset(slot, 0, sizeof(*slot));
    slot->number = number;
    slot->channel.fd = -1;
    slot->errors.read_fd = slot->errors.write_fd = slot->errors.file_fd = -1;
    slot->state = EVQ_SLOT_DOWN;
    slot->since_unix_ms = evq_clock_unix_ms();
}

void evq_slot_move(struct evq_slot *slot, enum evq_slot_event event)
{
    enum { STAY = EVQ_SLOT_STATE_COUNT };
    // clang-format off
    static const uint8_t next[EVQ_SLOT_STATE_COUNT][EVQ_SLOT_EVENT_COUNT] = {
        // GPUS_GIVEN, GPUS_LOST, STARTED, HELLO, JOB, END_JOB, JOB_OVER, LEAVES, CHILD_DIED
        [EVQ_SLOT_NO_GPUS] = {EVQ_SLOT_DOWN, STAY, STAY, STAY, STAY, STAY, STAY, STAY, STAY},
        [EVQ_SLOT_DOWN] = {STAY, EVQ_SLOT_NO_GPUS, EVQ_SLOT_STARTING, STAY, STAY, STAY, STAY, STAY, STAY},
        [EVQ_SLOT_STARTING] = {STAY, EVQ_SLOT_LOSING_GPUS, STAY, EVQ_SLOT_IDLE, STAY, STAY, STAY, EVQ_SLOT_LEAVING, EVQ_SLOT_DOWN},
        [EVQ_SLOT_IDLE] = {STAY, EVQ_SLOT_LOSING_GPUS, STAY, STAY, EVQ_SLOT_RUNNING, STAY, STAY, EVQ_SLOT_LEAVING, EVQ_SLOT_DOWN},
        [EVQ_SLOT_RUNNING] = {STAY, EVQ_SLOT_LOSING_GPUS, STAY, STAY, STAY, EVQ_SLOT_ENDING, EVQ_SLOT_IDLE, EVQ_SLOT_LEAVING, EVQ_SLOT_DOWN},
        [EVQ_SLOT_ENDING] = {STAY, EVQ_SLOT_LOSING_GPUS, STAY, STAY, STAY, STAY, EVQ_SLOT_IDLE, EVQ_SLOT_LEAVING, EVQ_SLOT_DOWN},
        [EVQ_SLOT_LEAVING] = {STAY, EVQ_SLOT_LOSING_GPUS, STAY, STAY, STAY, STAY, STAY, STAY, EVQ_SLOT_DOWN},
        [EVQ_SLOT_LOSING_GPUS] = {STAY, STAY, STAY, STAY, STAY, STAY, STAY, STAY, EVQ_SLOT_NO_GPUS},
    };
    // clang-format on
    const uint8_t state = next[slot->state][event];

    if (state != STAY) {
        slot->state = (enum evq_slot_state)state;
        slot->since_unix_ms = evq_clock_unix_ms();
    }
}

const char *evq_slot_state_name(enum evq_slot_state state)
{
    static const char *const names[EVQ_SLOT_STATE_COUNT] = {
        "down", "down", "starting", "idle", "running", "running", "starting", "down"};

    return names[state];
}

bool evq_slot_has_job(const struct evq_slot *slot)
{
    return slot->state == EVQ_SLOT_RUNNING || slot->state == EVQ_SLOT_ENDING || slot->lease != NULL;
}

bool evq_slot_changes(const struct evq_slot *slot)
{
    return slot->state == EVQ_SLOT_STARTING || slot->state == EVQ_SLOT_LEAVING;
}

bool evq_slot_waits_for_gpus(const struct evq_slot *slot)
{
    return slot->state == EVQ_SLOT_NO_GPUS || slot->state == EVQ_SLOT_LOSING_GPUS;
}

void evq_slot_cancel(struct evq_slot *slot, enum evq_cause cause, int64_t grace_ms)
{
    if (slot->ending == EVQ_CAUSE_NONE) {
        slot->ending = cause;
        // A child that is gone, or no longer reads, is ended at kill_ms.
        evq_channel_tell(&slot->channel, "cancel");
    } else if (cause == EVQ_CAUSE_STALE) {
        slot->ending = cause; // The job is another worker's: we report nothing about it.
    }
    const int64_t kill_ms = evq_clock_mono_ms() + grace_ms;
    slot->kill_ms = slot->kill_ms == 0 || kill_ms < slot->kill_ms ? kill_ms : slot->kill_ms;
    evq_slot_move(slot, EVQ_SLOT_ON_END_JOB);
}

int64_t evq_slot_due_ms(const struct evq_slot *slot)
{
    int64_t due_ms = INT64_MAX;

    switch (slot->state) {
    case EVQ_SLOT_DOWN:
        due_ms = slot->start_ms;
        break;
    case EVQ_SLOT_STARTING:
        due_ms = slot->last_note_ms + EVQ_SLOT_START_MS;
        break;
    case EVQ_SLOT_RUNNING:
        due_ms = slot->last_note_ms + EVQ_SLOT_HANG_MS;
        due_ms = slot->limit_ms > 0 && slot->limit_ms < due_ms ? slot->limit_ms : due_ms;
        break;
    default:
        break;
    }
    return slot->kill_ms > 0 && slot->kill_ms < due_ms ? slot->kill_ms : due_ms;
}
