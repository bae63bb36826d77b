/* Keeps the leases of this worker alive, and learns which jobs were cancelled or lost. */
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "worker/supervisor/supervisor.h"

#define BEATS_MAX 512 // Leases in one heartbeat call.

static void beats_answer(struct evq_supervisor *supervisor, const struct evq_beat *beats,
                         struct evq_lease *const *leases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (beats[i].answer == EVQ_BEAT_OK) {
            continue;
        }
        const bool cancelled = beats[i].answer == EVQ_BEAT_CANCEL;
        evq_log(EVQ_LOG_WARN, cancelled ? "job_cancelled" : "job_stale", "job=%s reason=%s",
                leases[i]->claim->id,
                cancelled ? "somebody cancelled it" : "its lease is not valid any more");
        evq_lease_list_drop(supervisor, leases[i],
                            cancelled ? EVQ_CAUSE_CANCELLED : EVQ_CAUSE_STALE);
    }
}

/* An emptied keyspace answers "stale" for every lease. Its new epoch tells this apart from a lost
 * lease. */
static bool stale_is_flush(struct evq_supervisor *supervisor, const struct evq_beat *beats,
                           size_t count)
{
    struct evq_error err;
    bool stale = false;
    bool new_epoch = false;

    for (size_t i = 0; i < count; i++) {
        stale = stale || beats[i].answer == EVQ_BEAT_STALE;
    }
    if (!stale || supervisor->adopt_due) {
        return false;
    }
    const enum evq_status status =
        evq_redis_session_check(&supervisor->redis, true, &new_epoch, &err);
    if (!evq_redis_session_note_read(&supervisor->redis, status, &err)) {
        return true; // That is not known yet. The next heartbeat asks again.
    }
    if (new_epoch) {
        supervisor->registered = false;
        supervisor->adopt_due = true;
    }
    return new_epoch;
}

/* Sends the heartbeat of as many leases, from *next on, as fit into one call, and moves *next
 * behind them. Returns false if Redis is away. */
static bool beats_send(struct evq_supervisor *supervisor, struct evq_lease **next)
{
    struct evq_beat beats[BEATS_MAX];
    struct evq_lease *leases[BEATS_MAX];
    struct evq_buffer json;
    struct evq_error err;
    size_t count = 0;
    int64_t version = supervisor->registry.version;

    for (; *next != NULL && count < BEATS_MAX; *next = (*next)->next) {
        const struct evq_lease *lease = *next;
        leases[count] = *next;
        beats[count++] = (struct evq_beat){.id = lease->claim->id,
                                           .token = lease->claim->token,
                                           .done = lease->done,
                                           .total = lease->total,
                                           .status = lease->status};
    }
    evq_buffer_init(&json, 0);
    evq_worker_status_json(supervisor, &json);
    const char *text = evq_buffer_string(&json);
    const enum evq_status status =
        evq_queue_heartbeat(supervisor->redis.queue, supervisor->name, text != NULL ? text : "",
                            supervisor->lease_ms, beats, count, &version, &err);
    evq_buffer_free(&json);
    if (!evq_redis_session_note(&supervisor->redis, status, &err)) {
        return false;
    }
    supervisor->beat_due_ms =
        evq_clock_mono_ms() +
        evq_clock_jitter_ms(&supervisor->redis.seed, supervisor->heartbeat_ms, 10);
    if (status != EVQ_OK) {
        evq_log(EVQ_LOG_ERROR, "heartbeat_refused", "reason=%s", err.message);
        return true;
    }
    supervisor->classes_stale =
        supervisor->classes_stale || version != supervisor->registry.version;
    if (!stale_is_flush(supervisor, beats, count)) {
        beats_answer(supervisor, beats, leases, count);
    }
    return true;
}

bool evq_heartbeat_send(struct evq_supervisor *supervisor)
{
    struct evq_lease *next = supervisor->leases;

    do {
        if (!beats_send(supervisor, &next)) {
            return false;
        }
    } while (next != NULL && !supervisor->adopt_due);
    return true;
}
