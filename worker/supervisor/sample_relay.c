/* Passes pieces of samples files from the children on to Redis, with the tokens of their jobs. A
 * child waits for the answer to each piece, so there is at most one for each slot. */
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/queue/sample_pieces.h"
#include "worker/supervisor/supervisor.h"

void evq_sample_relay_take(struct evq_slot *slot, struct evq_note *piece)
{
    evq_sample_relay_drop(slot);
    slot->piece = piece;
    if (slot->limit_ms > 0) { // An outage of Redis does not use up the time of the job.
        slot->piece_left_ms = slot->limit_ms - evq_clock_mono_ms();
        slot->limit_ms = INT64_MAX;
    }
}

void evq_sample_relay_drop(struct evq_slot *slot)
{
    if (slot->piece != NULL && slot->limit_ms == INT64_MAX) {
        slot->limit_ms = evq_clock_mono_ms() + slot->piece_left_ms;
    }
    evq_codec_note_free(slot->piece);
    slot->piece = NULL;
}

static void answer(struct evq_slot *slot, enum evq_status status, const struct evq_error *err)
{
    const struct evq_field fields[] = {
        evq_channel_integer("status", status),
        evq_channel_text("message", status == EVQ_OK ? "" : err->message)};

    evq_sample_relay_drop(slot);
    // If the child is dead, SIGCHLD tells.
    (void)!evq_channel_send(&slot->channel, "piece", fields, sizeof(fields) / sizeof(fields[0]),
                            NULL);
}

/* Sends the piece of one slot. Returns false if Redis is away. */
static bool piece_send(struct evq_supervisor *supervisor, struct evq_slot *slot)
{
    const struct evq_field *data = evq_codec_note_field(slot->piece, "data");
    struct evq_lease *lease = slot->lease;
    struct evq_error err = {0};

    if (lease == NULL || data == NULL || data->type != EVQ_FIELD_BYTES) {
        evq_sample_relay_drop(slot); // The job is no longer ours, and its child is told to stop.
        return true;
    }
    const struct evq_sample_piece piece = {.job = lease->claim->id,
                                           .token = lease->claim->token,
                                           .task = evq_channel_get_text(slot->piece, "task"),
                                           .digest = evq_channel_get_text(slot->piece, "digest"),
                                           .bytes =
                                               evq_channel_get_integer(slot->piece, "bytes", 0),
                                           .at = evq_channel_get_integer(slot->piece, "at", 0),
                                           .data = data->bytes,
                                           .data_bytes = data->byte_count};
    const enum evq_status status = evq_sample_piece_add(
        supervisor->redis.queue, &piece, supervisor->config->samples.stream_bytes, &err);
    if (status == EVQ_E_RETRY || status == EVQ_E_AUTH || status == EVQ_E_VERSION) {
        // Redis works, but its memory is full, or this function or its permission is missing. The
        // child repeats the piece for a while. Heartbeats must go on.
        answer(slot, EVQ_E_FULL, &err);
        return true;
    }
    if (!evq_redis_session_note(&supervisor->redis, status, &err)) {
        return false;
    }
    if (status == EVQ_E_LEASE_LOST) {
        evq_log(EVQ_LOG_WARN, "job_stale", "job=%s reason=%s", lease->claim->id, err.message);
        evq_sample_relay_drop(slot);
        evq_lease_list_drop(supervisor, lease, EVQ_CAUSE_STALE);
        return true;
    }
    answer(slot, status, &err);
    return true;
}

bool evq_sample_relay_flush(struct evq_supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (supervisor->slots[i].piece != NULL && !piece_send(supervisor, &supervisor->slots[i])) {
            return false;
        }
    }
    return true;
}

bool evq_sample_relay_pending(const struct evq_supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->slot_count; i++) {
        if (supervisor->slots[i].piece != NULL) {
            return true;
        }
    }
    return false;
}
