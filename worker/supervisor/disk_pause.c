/*
 * Suites paused on this machine because its scratch disk is full or read-only, or because no file
 * can be opened. That is not the fault of their jobs, so the jobs go back to the queue uncharged,
 * and the worker claims no job of the suite until its next try.
 */
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

static struct evq_backoff *pause_of(const struct evq_supervisor *supervisor,
                                    const struct evq_suite *suite)
{
    return &supervisor->disk_pauses[suite - supervisor->config->suites];
}

void evq_disk_pause_begin(struct evq_supervisor *supervisor, const struct evq_suite *suite,
                          const char *reason)
{
    struct evq_backoff *pause = pause_of(supervisor, suite);

    if (pause->until_ms > 0) {
        return; // Another slot began its job before the suite was paused.
    }
    if (evq_cause_count_failure(EVQ_CAUSE_DISK_FULL, pause, &supervisor->redis.seed)) {
        evq_log(EVQ_LOG_WARN, "suite_paused", "suite=%s reason=%s", suite->name, reason);
        supervisor->beat_due_ms = 0; // `evalq status` shows it at once.
    }
}

void evq_disk_pause_end(struct evq_supervisor *supervisor, const struct evq_suite *suite)
{
    struct evq_backoff *pause = pause_of(supervisor, suite);

    if (pause->tries > 0) {
        evq_log(EVQ_LOG_INFO, "suite_resumed", "suite=%s tries=%u", suite->name, pause->tries);
        *pause = (struct evq_backoff){0};
    }
}

bool evq_disk_pause_active(const struct evq_supervisor *supervisor, const struct evq_suite *suite)
{
    return pause_of(supervisor, suite)->until_ms > 0;
}

bool evq_disk_pause_any(const struct evq_supervisor *supervisor)
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
        struct evq_backoff *pause = &supervisor->disk_pauses[i];
        if (pause->until_ms > 0 && pause->until_ms <= now_ms) {
            pause->until_ms = 0;
            supervisor->claim_due = true;
        }
    }
}
