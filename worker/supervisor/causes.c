#include "worker/supervisor/causes.h"

#include "shared/base/clock.h"

static const struct evq_cause_rule rules[EVQ_CAUSE_COUNT] = {
    [EVQ_CAUSE_NONE] = {.name = "none", .job = EVQ_CAUSE_JOB_FAIL, .suite_ran = true},
    [EVQ_CAUSE_TIMEOUT] = {.name = "timeout",
                           .job = EVQ_CAUSE_JOB_FAIL,
                           .fail = EVQ_FAIL_TIMEOUT,
                           .fail_reason = "ran longer than its time limit",
                           .suite_ran = true},
    [EVQ_CAUSE_HANG] = {.name = "hang",
                        .job = EVQ_CAUSE_JOB_FAIL,
                        .fail = EVQ_FAIL_TIMEOUT,
                        .fail_reason = "no sign of progress",
                        .suite_ran = true},
    [EVQ_CAUSE_CANCELLED] = {.name = "cancelled", .job = EVQ_CAUSE_JOB_DROP},
    [EVQ_CAUSE_STALE] = {.name = "stale", .job = EVQ_CAUSE_JOB_DROP},
    [EVQ_CAUSE_RELEASED] = {.name = "released", .job = EVQ_CAUSE_JOB_RELEASE},
    // The suite pauses on this machine. Other suites and other machines go on.
    [EVQ_CAUSE_DISK_FULL] = {.name = "disk_full",
                             .job = EVQ_CAUSE_JOB_RELEASE,
                             .first_ms = 500,
                             .most_ms = 30000,
                             .status = "no room"},
    [EVQ_CAUSE_FORK_FAILED] = {.name = "fork_failed", .first_ms = 200, .most_ms = 10000},
    [EVQ_CAUSE_CHILD_FAILED] = {.name = "child_failed",
                                .first_ms = 200,
                                .most_ms = 1000,
                                .limit = 3},
    // The slot's note says why. Each new child checks the device before it takes a job.
    [EVQ_CAUSE_SLOT_OUT] = {.name = "slot_out", .first_ms = 30000, .most_ms = 600000},
    // The worker claims nothing more until somebody restarts it.
    [EVQ_CAUSE_JOBS_CRASH] = {.name = "jobs_crash",
                              .limit = EVQ_CAUSE_CRASHED_JOBS_MAX,
                              .status = "sick"},
    [EVQ_CAUSE_REDIS_LOADING] = {.name = "redis_loading", .first_ms = 100, .most_ms = 2000},
    [EVQ_CAUSE_REDIS_AWAY] = {.name = "redis_away", .first_ms = 100, .most_ms = 5000},
    [EVQ_CAUSE_REDIS_REFUSES] = {.name = "redis_refuses", .first_ms = 1000, .most_ms = 1000},
};

const struct evq_cause_rule *evq_cause_rule(enum evq_cause cause)
{
    return &rules[cause];
}

int64_t evq_cause_wait_ms(enum evq_cause cause, uint32_t tries, uint64_t *seed)
{
    const struct evq_cause_rule *rule = &rules[cause];
    int64_t wait_ms = rule->first_ms;

    for (uint32_t i = 0; i < tries && wait_ms < rule->most_ms; i++) {
        wait_ms *= 2;
    }
    wait_ms = wait_ms < rule->most_ms ? wait_ms : rule->most_ms;
    return seed != NULL ? evq_clock_jitter_ms(seed, wait_ms, 25) : wait_ms;
}

bool evq_cause_count_failure(enum evq_cause cause, struct evq_backoff *backoff, uint64_t *seed)
{
    backoff->until_ms = evq_clock_mono_ms() + evq_cause_wait_ms(cause, backoff->tries, seed);
    return backoff->tries++ == 0;
}
