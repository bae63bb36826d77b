#include "logger/forward.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "logger/sink_owner.h"
#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"

#define BATCH_MAX        256
#define HELD_MAX         4096
#define DONE_MAX         8192 // Most entries that a gathering sink takes before a flush.
#define GATHER_MS        500  // Longest time that it gathers before a flush.
#define READ_WAIT_MS     1000
#define HELD_WAIT_MS     100
#define STOP_LOOK_MS     50
#define BACKOFF_FIRST_MS 100
#define BACKOFF_MAX_MS   10000

struct evq_forward {
    const struct evq_config *config;
    const struct evq_sink_config *const *sinks; // All sinks of this logger.
    size_t sink_count;
    const struct evq_sink_config *sink; // The one served here.
    const struct evq_sink_ops *ops;
    pthread_t thread;
    struct evq_conn *conn;
    struct evq_queue *queue;
    struct evq_sink_context context;
    void *state;
    struct evq_entry *held; // The sink held them back. Owned.
    uint32_t held_count;
    struct evq_entry *done; // Taken by the sink, not yet acknowledged. Owned.
    uint32_t done_count;
    int64_t done_since_ms; // When the first of them was taken.
    bool registered;       // The group exists.
    bool sink_failed;      // The sink caused the error of this turn, not Redis.
    char pending[32];      // Entries that were delivered earlier and not acknowledged are read
                           // first, from behind this id on; "": none is left.
    uint32_t failures;     // In a row.
    enum evq_status said;  // The status of this outage that was logged.
    bool said_sink_failed; // sink_failed when it was logged.
    uint64_t random;
    atomic_bool stop;
    atomic_bool ended;
    atomic_uint_fast64_t count;
    struct evq_error error; // The error that ended the thread.
    struct evq_sink_owner owner;
};

static void entries_free(struct evq_entry *entries, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        evq_result_free(entries[i].result);
        entries[i].result = NULL;
    }
}

/* Drops the entries in memory. Everything that is not acknowledged is read again. */
static void taken_drop(struct evq_forward *forward)
{
    entries_free(forward->held, forward->held_count);
    forward->held_count = 0;
    forward->done_count = 0;
    (void)snprintf(forward->pending, sizeof(forward->pending), "0");
}

/* Sets aside a result that the sink refused for good. err says why. */
static enum evq_status entry_refuse(struct evq_forward *forward, const struct evq_result *result,
                                    struct evq_error *err)
{
    char id[EVQ_RESULT_ID_BYTES_MAX];
    struct evq_buffer text;
    const struct evq_error why = *err;

    evq_result_id(result, id);
    evq_buffer_init(&text, 0);
    evq_result_json(result, &text);
    const enum evq_status status = evq_sink_refuse(&forward->context, id, text.data,
                                                   text.failed ? 0 : text.bytes, why.message, err);
    evq_buffer_free(&text);
    return status;
}

/* Gives one entry to the sink. An entry that is taken moves to `done`, one that is held back moves
 * to `held`. Any other status: the sink is down.
 */
static enum evq_status entry_give(struct evq_forward *forward, struct evq_entry *entry,
                                  struct evq_error *err)
{
    enum evq_status status =
        entry->result == NULL ? EVQ_OK : forward->ops->write(forward->state, entry->result, err);

    if (status == EVQ_E_INCOMPLETE && forward->held_count < HELD_MAX) {
        forward->held[forward->held_count] = *entry;
        forward->held_count++;
        entry->result = NULL;
        return EVQ_OK;
    }
    forward->sink_failed = status != EVQ_OK;
    if (status == EVQ_E_INVALID || status == EVQ_E_LIMIT) {
        status = entry_refuse(forward, entry->result, err);
    }
    if (status == EVQ_OK) {
        forward->done_since_ms =
            forward->done_count == 0 ? evq_clock_mono_ms() : forward->done_since_ms;
        forward->done[forward->done_count] = *entry;
        forward->done[forward->done_count].result = NULL;
        forward->done_count++;
    }
    return status;
}

/* Acknowledges the entries that were written. status and err: how the next entry ended. If it
 * failed, the back-off starts again at its shortest wait, because earlier entries were stored. */
static enum evq_status done_acknowledge(struct evq_forward *forward, enum evq_status status,
                                        struct evq_error *err)
{
    struct evq_error failed = {0};
    const uint32_t count = forward->done_count;
    const enum evq_status acked =
        evq_queue_sink_ack(forward->queue, forward->sink->name, forward->done, count,
                           status == EVQ_OK ? forward->owner.text : err->message, &failed);

    forward->done_count = 0;
    if (acked != EVQ_OK) {
        *err = failed;
        forward->sink_failed = false;
        return acked;
    }
    atomic_fetch_add(&forward->count, count);
    forward->failures = status == EVQ_OK ? forward->failures : 0;
    return EVQ_OK;
}

/* Flushes and acknowledges what is done, if anything. status, err: how the next entry ended. */
static enum evq_status done_settle(struct evq_forward *forward, enum evq_status status,
                                   struct evq_error *err)
{
    if (forward->done_count == 0) {
        return status;
    }
    if (status == EVQ_OK) {
        status = forward->ops->flush(forward->state, err);
        forward->sink_failed = status != EVQ_OK;
    }
    if (status == EVQ_OK || (forward->ops->each && forward->sink_failed)) {
        const enum evq_status acked = done_acknowledge(forward, status, err);
        status = acked != EVQ_OK ? acked : status;
    }
    return status;
}

/* Whether the flush can wait for more entries. A flush costs a sync of the disk, and late points of
 * TensorBoard cost a rewrite. */
static bool gathers(const struct evq_forward *forward, bool more)
{
    return more && forward->ops->gathers && forward->done_count <= DONE_MAX - BATCH_MAX &&
           evq_clock_mono_ms() - forward->done_since_ms < GATHER_MS;
}

/* Whether to stop before the next entry, because its receiver may take long. */
static bool stopped_between(const struct evq_forward *forward)
{
    return forward->ops->each && atomic_load(&forward->stop);
}

/* Gives entries, flushes, acknowledges, unless more wait and the sink gathers. Frees the entries.
 */
static enum evq_status batch_forward(struct evq_forward *forward, struct evq_entry *entries,
                                     uint32_t count, bool more, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (count > DONE_MAX - forward->done_count) {
        status = done_settle(forward, status, err);
    }
    for (uint32_t i = 0; i < count && status == EVQ_OK && !stopped_between(forward); i++) {
        status = entry_give(forward, &entries[i], err);
    }
    entries_free(entries, count);
    return status == EVQ_OK && gathers(forward, more) ? status : done_settle(forward, status, err);
}

/* Offers the held entries to the sink again. */
static enum evq_status held_forward(struct evq_forward *forward, struct evq_error *err)
{
    uint32_t count = forward->held_count;
    struct evq_entry *entries = NULL;

    if (count == 0) {
        return EVQ_OK;
    }
    entries = calloc(count, sizeof(*entries));
    if (entries == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "held results");
    }
    memcpy(entries, forward->held, count * sizeof(*entries));
    forward->held_count = 0;
    enum evq_status status = batch_forward(forward, entries, count, false, err);
    free(entries);
    return status;
}

static enum evq_status sinks_open(struct evq_queue *queue,
                                  const struct evq_sink_config *const *sinks, size_t count,
                                  struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        status = evq_queue_sink_open(queue, sinks[i]->name, err);
    }
    return status;
}

static enum evq_status sink_prepare(struct evq_forward *forward, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (!forward->registered) {
        struct evq_queue_info before;
        struct evq_queue_info after;
        status = evq_queue_info(forward->queue, &before, err);
        if (status == EVQ_OK) {
            // All sinks of this logger, so that nothing is trimmed in a new keyspace before they
            // exist.
            status = sinks_open(forward->queue, forward->sinks, forward->sink_count, err);
        }
        if (status == EVQ_OK) {
            status = evq_queue_info(forward->queue, &after, err);
        }
        if (status == EVQ_OK && strcmp(before.epoch, after.epoch) != 0) {
            // The keyspace was replaced in between, so the first sink may be registered in the old
            // one.
            status = evq_error_set(
                err, EVQ_E_RETRY,
                "the data of the queue in Redis was replaced while the logger started");
        }
        forward->registered = status == EVQ_OK;
    }
    if (status == EVQ_OK && forward->state == NULL) {
        forward->context = (struct evq_sink_context){
            forward->config, forward->sink,  forward->config->logger.directory,
            forward->queue,  &forward->stop, false};
        status = forward->ops->open(&forward->context, &forward->state, err);
        forward->sink_failed = status != EVQ_OK;
    }
    return status;
}

/* Stores the sink's error for `evalq status`. "": it has none. */
static void error_note(struct evq_forward *forward, const char *message)
{
    struct evq_error ignored;

    if (forward->registered) {
        (void)!evq_queue_sink_ack(forward->queue, forward->sink->name, NULL, 0, message, &ignored);
    }
}

/* Tells Redis that this logger serves the sink, and logs when another one does too. */
static enum evq_status sink_serve(struct evq_forward *forward, struct evq_error *err)
{
    struct evq_sink_owner *owner = &forward->owner;
    const bool first = !owner->said;
    bool changed = false;

    const enum evq_status status =
        evq_sink_owner_say(owner, forward->queue, forward->sink->name, &changed, err);
    if (changed) {
        error_note(forward, owner->text);
    }
    if (changed && owner->text[0] != '\0') {
        evq_log(EVQ_LOG_WARN, "sink_shared", "sink=%s reason=%s", forward->sink->name, owner->text);
    } else if (changed && !first) {
        evq_log(EVQ_LOG_INFO, "sink_alone", "sink=%s", forward->sink->name);
    }
    return status;
}

/* One turn: held entries, then pending or new ones. */
static enum evq_status turn(struct evq_forward *forward, struct evq_error *err)
{
    struct evq_entry entries[BATCH_MAX];
    const bool old = forward->pending[0] != '\0';
    uint32_t count = 0;

    forward->sink_failed = false;
    enum evq_status status = sink_prepare(forward, err);
    if (status == EVQ_OK) {
        status = sink_serve(forward, err);
    }
    if (status == EVQ_OK) {
        forward->context.must_take = forward->held_count > HELD_MAX - BATCH_MAX;
        status = held_forward(forward, err);
    }
    if (status == EVQ_OK) {
        const int64_t wait_ms = forward->done_count > 0   ? 0
                                : forward->held_count > 0 ? HELD_WAIT_MS
                                                          : READ_WAIT_MS;
        status =
            evq_queue_sink_read(forward->queue, forward->sink->name, old ? forward->pending : NULL,
                                forward->ops->ends, wait_ms, entries, BATCH_MAX, &count, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const bool more = count == BATCH_MAX && !old;
    if (old) {
        (void)snprintf(forward->pending, sizeof(forward->pending), "%s",
                       count > 0 ? entries[count - 1].id : "");
    }
    return batch_forward(forward, entries, count, more, err);
}

/* Whether no retry can help. */
static bool is_final(enum evq_status status)
{
    return status == EVQ_E_AUTH || status == EVQ_E_VERSION || status == EVQ_E_CONFLICT ||
           status == EVQ_E_INVALID || status == EVQ_E_BUG;
}

static void turn_failed(struct evq_forward *forward, enum evq_status status,
                        const struct evq_error *error)
{
    int64_t wait_ms =
        evq_clock_backoff_ms(&forward->random, forward->failures, BACKOFF_FIRST_MS, BACKOFF_MAX_MS);

    if (status == EVQ_E_NOT_FOUND) {
        // The group was lost with the keyspace or the stream. The new group delivers everything
        // again, and the sink recognises each result by its id.
        forward->registered = false;
    }
    // Logged once, not with every attempt, because a disk may be full for days.
    const bool told = forward->failures > 0 && forward->said == status &&
                      forward->said_sink_failed == forward->sink_failed;
    forward->said = status;
    forward->said_sink_failed = forward->sink_failed;
    evq_log(told ? EVQ_LOG_DEBUG : EVQ_LOG_WARN, "sink_waits",
            "sink=%s status=%s wait_ms=%lld reason=%s", forward->sink->name,
            evq_status_name(status), (long long)wait_ms, error->message);
    taken_drop(forward);
    forward->failures++;
    if (forward->sink_failed || (status != EVQ_E_IO && status != EVQ_E_TIMEOUT)) {
        error_note(forward, error->message); // Without Redis nobody could read it.
    }
    int64_t deadline_ms = evq_clock_mono_ms() + wait_ms;
    while (!atomic_load(&forward->stop) && evq_clock_left_ms(deadline_ms) > 0) {
        (void)poll(NULL, 0, STOP_LOOK_MS); // Short, so that a stop is noticed soon.
    }
}

/* Before the thread ends: the sink takes the held results too, so that its files are complete while
 * no logger runs. After an error they come again at the next start. */
static void last_flush(struct evq_forward *forward)
{
    struct evq_error ignored;
    enum evq_status status = EVQ_OK;

    forward->context.must_take = true;
    if (forward->state != NULL) {
        status = held_forward(forward, &ignored);
    }
    if (status == EVQ_OK) {
        status = done_settle(forward, EVQ_OK, &ignored);
    }
    (void)status;
}

static void *forward_main(void *argument)
{
    struct evq_forward *forward = argument;

    while (!atomic_load(&forward->stop)) {
        struct evq_error error = {0};
        enum evq_status status = turn(forward, &error);
        if (status == EVQ_OK) {
            if (forward->failures > 0) {
                evq_log(EVQ_LOG_INFO, "sink_back", "sink=%s", forward->sink->name);
                error_note(forward, forward->owner.text);
            }
            forward->failures = 0;
            continue;
        }
        if (status == EVQ_E_STOPPED) {
            break;
        }
        // All sinks were registered before this thread began. If functions, permissions or the
        // stream disappear while the logger runs, it waits for them like every running program.
        const bool began =
            (status == EVQ_E_VERSION || status == EVQ_E_AUTH || status == EVQ_E_INVALID) &&
            !forward->sink_failed;
        if (is_final(status) && !began && forward->failures == 0 &&
            atomic_load(&forward->count) == 0) {
            evq_log(EVQ_LOG_ERROR, "sink_failed", "sink=%s status=%s reason=%s",
                    forward->sink->name, evq_status_name(status), error.message);
            forward->error = error;
            forward->error.status = status;
            break;
        }
        turn_failed(forward, status, &error);
    }
    last_flush(forward);
    taken_drop(forward);
    forward->ops->close(forward->state);
    atomic_store(&forward->ended, true);
    return NULL;
}

static void forward_free(struct evq_forward *forward)
{
    if (forward == NULL) {
        return;
    }
    evq_queue_close(forward->queue);
    evq_conn_close(forward->conn);
    free(forward->held);
    free(forward->done);
    free(forward);
}

static enum evq_status queue_open(const struct evq_config *config, struct evq_conn **ret_conn,
                                  struct evq_queue **ret_queue, struct evq_error *err)
{
    const struct evq_conn_config conn_config = evq_config_conn(config, "evalq-logger");

    enum evq_status status = evq_conn_open(&conn_config, ret_conn, err);
    if (status == EVQ_OK) {
        status = evq_queue_open(*ret_conn, config->redis.queue, ret_queue, err);
    }
    return status;
}

enum evq_status evq_forward_register(const struct evq_config *config,
                                     const struct evq_sink_config *const *sinks, size_t count,
                                     struct evq_error *err)
{
    struct evq_conn *conn = NULL;
    struct evq_queue *queue = NULL;
    struct evq_queue_info info;

    for (size_t i = 0; i < count; i++) {
        const enum evq_status checked = evq_sink_check(sinks[i], err);
        if (checked != EVQ_OK) {
            return checked;
        }
    }
    enum evq_status status = queue_open(config, &conn, &queue, err);
    if (status == EVQ_OK) {
        status = evq_queue_info(queue, &info, err);
    }
    if (status == EVQ_OK) {
        status = sinks_open(queue, sinks, count, err);
    }
    evq_queue_close(queue);
    evq_conn_close(conn);
    return status;
}

enum evq_status evq_forward_start(const struct evq_config *config,
                                  const struct evq_sink_config *const *sinks, size_t count,
                                  size_t which, struct evq_forward **ret_forward,
                                  struct evq_error *err)
{
    const struct evq_sink_config *sink = sinks[which];

    struct evq_forward *forward = calloc(1, sizeof(*forward));
    if (forward == NULL || (forward->held = calloc(HELD_MAX, sizeof(*forward->held))) == NULL ||
        (forward->done = calloc(DONE_MAX, sizeof(*forward->done))) == NULL) {
        forward_free(forward);
        return evq_error_set(err, EVQ_E_NOMEM, "sink '%s'", sink->name);
    }
    forward->config = config;
    forward->sinks = sinks;
    forward->sink_count = count;
    forward->sink = sink;
    forward->ops = evq_sink_find(sink->kind);
    forward->random = evq_clock_random();
    evq_sink_owner_init(&forward->owner, config->logger.directory);
    taken_drop(forward); // Reads the entries of an earlier process first.
    enum evq_status status = queue_open(config, &forward->conn, &forward->queue, err);
    if (status == EVQ_OK && pthread_create(&forward->thread, NULL, forward_main, forward) != 0) {
        status = evq_error_set(err, EVQ_E_NOMEM, "the thread of sink '%s'", sink->name);
    }
    if (status != EVQ_OK) {
        forward_free(forward);
        return status;
    }
    *ret_forward = forward;
    return EVQ_OK;
}

void evq_forward_stop(struct evq_forward *forward)
{
    atomic_store(&forward->stop, true);
}

bool evq_forward_ended(const struct evq_forward *forward)
{
    return atomic_load(&forward->ended);
}

enum evq_status evq_forward_join(struct evq_forward *forward, struct evq_error *err)
{
    (void)pthread_join(forward->thread, NULL); // Ours, joined once.
    enum evq_status status = forward->error.status;
    if (status != EVQ_OK && err != NULL) {
        *err = forward->error;
    }
    forward_free(forward);
    return status;
}
