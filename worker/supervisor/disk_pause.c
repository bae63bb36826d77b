/*
 * Suites that find no room on this machine: the disk of scratch is full or read-only, or no file
 * can be opened. That is no fault of their jobs: they are given back uncharged, and none is claimed
 * here until a later try, while other suites and other machines go on.
 */
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

#define TRY_FIRST_MS 500
#define TRY_MAX_MS   30000

static struct evq_disk_pause *room_of(const struct evq_supervisor *supervisor,
                                      const struct evq_suite *suite)
{
    return &supervisor->disk_pauses[suite - supervisor->config->suites];
}

void evq_disk_pause_lack(struct evq_supervisor *supervisor, const struct evq_suite *suite,
                         const char *reason)
{
    struct evq_disk_pause *room = room_of(supervisor, suite);
    if (room->until_ms > 0) {
        return; // Of slots that began before it was known: no further try.
    }
    const int64_t wait_ms =
        evq_clock_backoff_ms(&supervisor->redis.seed, room->tries, TRY_FIRST_MS, TRY_MAX_MS);

    if (room->tries++ == 0) { // Once, not with every try.
        evq_log(EVQ_LOG_WARN, "no_room", "suite=%s reason=%s", suite->name, reason);
        supervisor->beat_due_ms = 0; // Status shows it at once.
    }
    room->until_ms = evq_clock_mono_ms() + wait_ms;
}

void evq_disk_pause_found(struct evq_supervisor *supervisor, const struct evq_suite *suite)
{
    struct evq_disk_pause *room = room_of(supervisor, suite);

    if (room->tries > 0) {
        evq_log(EVQ_LOG_INFO, "room_again", "suite=%s tries=%u", suite->name, room->tries);
        *room = (struct evq_disk_pause){0};
    }
}

bool evq_disk_pause_held(const struct evq_supervisor *supervisor, const struct evq_suite *suite)
{
    return room_of(supervisor, suite)->until_ms > 0;
}

bool evq_disk_pause_lacks(const struct evq_supervisor *supervisor)
{
    for (size_t i = 0; i < supervisor->config->suite_count; i++) {
        if (supervisor->disk_pauses[i].tries > 0) {
            return true;
        }
    }
    return false;
}

int64_t evq_disk_pause_due_ms(const struct evq_supervisor *supervisor)
{
    int64_t due_ms = INT64_MAX;

    for (size_t i = 0; i < supervisor->config->suite_count; i++) {
        const int64_t until_ms = supervisor->disk_pauses[i].until_ms;
        due_ms = until_ms > 0 && until_ms < due_ms ? until_ms : due_ms;
    }
    return due_ms;
}

void evq_disk_pause_tick(struct evq_supervisor *supervisor, int64_t now_ms)
{
    for (size_t i = 0; i < supervisor->config->suite_count; i++) {
        if (supervisor->disk_pauses[i].until_ms > 0 &&
            supervisor->disk_pauses[i].until_ms <= now_ms) {
            supervisor->disk_pauses[i].until_ms = 0;
            supervisor->claim_due = true;
        }
    }
}
