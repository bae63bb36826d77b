#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "shared/queue/queue_call.h"

enum {
    RESULTS_COUNT = 100,
    ENTRIES_MAX = 10000,
    ACK_COUNT = 1000,
    LAST_ERROR_BYTES_MAX = 200,
    BAD_BYTES_MAX = 65536,
    BAD_REASON_BYTES_MAX = 512
};

enum evq_status evq_queue_run_results(struct evq_queue *queue, const char *run, int64_t *cursor,
                                      evq_result_fn on_result, void *context, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    int64_t next = 0;

    evq_queue_call_begin(queue, "results", true);
    evq_queue_call_text(queue, run);
    evq_queue_call_number(queue, *cursor);
    evq_queue_call_number(queue, RESULTS_COUNT);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (reply->type != EVQ_REPLY_ARRAY || reply->item_count % 2 != 1 ||
        !evq_queue_reply_within(reply->items[0], 0, INT64_MAX, &next)) {
        status = evq_queue_call_malformed(queue, err);
        goto out;
    }
    for (size_t i = 1; i < reply->item_count; i += 2) {
        const struct evq_reply *record = reply->items[i];
        struct evq_result *result = NULL;
        int64_t finished_ms = 0;
        if (evq_queue_reply_text(record) == NULL) {
            continue; // Deleted in the meantime.
        }
        status =
            evq_codec_result_decode((const uint8_t *)record->text, record->bytes, &result, err);
        if (status == EVQ_E_NOMEM) {
            goto out;
        }
        if (status != EVQ_OK) {
            continue; // Loggers quarantine it. Here it must not hide the results after it.
        }
        if (evq_queue_reply_number(reply->items[i + 1], &finished_ms) && finished_ms > 0) {
            result->finished_ms = finished_ms; // The server's time.
        }
        on_result(context, result);
        evq_result_free(result);
    }
    status = EVQ_OK;
    *cursor = next;
out:
    evq_reply_free(reply);
    return status;
}

static enum evq_status call_sink(struct evq_queue *queue, const char *function, const char *sink,
                                 struct evq_error *err)
{
    evq_queue_call_begin(queue, function, false);
    evq_queue_call_text(queue, sink);
    return evq_queue_call_send_ok(queue, err);
}

enum evq_status evq_queue_sink_open(struct evq_queue *queue, const char *sink,
                                    struct evq_error *err)
{
    return call_sink(queue, "sink_open", sink, err);
}

enum evq_status evq_queue_sink_serve(struct evq_queue *queue, const char *sink, const char *logger,
                                     const char *place, char ret_other[EVQ_SINK_PLACE_BYTES_MAX],
                                     struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "sink_serve", false);
    evq_queue_call_text(queue, sink);
    evq_queue_call_text(queue, logger);
    evq_queue_call_cut(queue, place, EVQ_SINK_PLACE_BYTES_MAX - 1);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_reply *last = evq_queue_reply_item(reply, 0);
    if (evq_queue_reply_text(last) == NULL ||
        !evq_queue_reply_copy(evq_queue_reply_item(reply, 1), ret_other,
                              EVQ_SINK_PLACE_BYTES_MAX)) {
        status = evq_queue_call_malformed(queue, err);
    } else if (evq_queue_reply_is(last, logger)) {
        ret_other[0] = '\0';
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_sink_replay(struct evq_queue *queue, const char *sink,
                                      struct evq_error *err)
{
    return call_sink(queue, "sink_replay", sink, err);
}

enum evq_status evq_queue_loss_forget(struct evq_queue *queue, const char *sink,
                                      struct evq_error *err)
{
    return call_sink(queue, "loss_forget", sink, err);
}

enum evq_status evq_queue_republish(struct evq_queue *queue, const char *run, int64_t from_ms,
                                    int64_t to_ms, int64_t *cursor, int64_t *ret_count,
                                    bool *ret_more, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    int64_t next = 0;
    int64_t count = 0;

    evq_queue_call_begin(queue, "republish", false);
    evq_queue_call_text(queue, run);
    evq_queue_call_number(queue, *cursor);
    evq_queue_call_number(queue, from_ms);
    evq_queue_call_number(queue, to_ms);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_reply *more = evq_queue_reply_item(reply, 2);
    if (!evq_queue_reply_within(evq_queue_reply_item(reply, 0), 0, INT64_MAX, &next) ||
        !evq_queue_reply_within(evq_queue_reply_item(reply, 1), 0, INT64_MAX, &count) ||
        evq_queue_reply_text(more) == NULL) {
        status = evq_queue_call_malformed(queue, err);
    } else {
        *cursor = next;
        *ret_count = count;
        *ret_more = evq_queue_reply_is(more, "1");
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_sink_ack(struct evq_queue *queue, const char *sink,
                                   const struct evq_entry *entries, uint32_t entry_count,
                                   const char *last_error, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    uint32_t at = 0;

    do { // Also without entries, because the error must be recorded.
        uint32_t count = entry_count - at < ACK_COUNT ? entry_count - at : ACK_COUNT;
        evq_queue_call_begin(queue, "sink_ack", false);
        evq_queue_call_text(queue, sink);
        evq_queue_call_cut(queue, last_error, LAST_ERROR_BYTES_MAX);
        for (uint32_t i = 0; i < count; i++) {
            evq_queue_call_text(queue, entries[at + i].id);
        }
        status = evq_queue_call_send_ok(queue, err);
        at += count;
    } while (status == EVQ_OK && at < entry_count);
    return status;
}

/* The value of a field of a stream entry; NULL when it has none. */
static const struct evq_reply *entry_field(const struct evq_reply *fields, const char *name)
{
    const size_t bytes = strlen(name);

    for (size_t i = 0; fields != NULL && i + 1 < fields->item_count; i += 2) {
        const char *text = evq_queue_reply_text(fields->items[i]);
        if (text != NULL && fields->items[i]->bytes == bytes && memcmp(text, name, bytes) == 0) {
            return fields->items[i + 1];
        }
    }
    return NULL;
}

/* Quarantines one entry and acknowledges it, so that it is not delivered forever. */
static enum evq_status set_aside(struct evq_queue *queue, const char *sink,
                                 const struct evq_entry *entry, const struct evq_reply *record,
                                 const char *why, struct evq_error *err)
{
    char reason[320];
    const char *text = evq_queue_reply_text(record);

    (void)snprintf(reason, sizeof reason, "results entry %s: %.200s", entry->id, why);
    enum evq_status status =
        evq_queue_quarantine(queue, text, text != NULL ? record->bytes : 0, reason, err);
    if (status == EVQ_OK) {
        status = evq_queue_sink_ack(queue, sink, entry, 1, reason, err);
    }
    return status;
}

/* Reads one [id, [field, value, ...]] of the stream. Nil fields: it was trimmed while pending. */
static enum evq_status read_entry(struct evq_queue *queue, const char *sink, bool ends,
                                  const struct evq_reply *reply, struct evq_entry *entry,
                                  struct evq_error *err)
{
    struct evq_error why = {EVQ_OK, "it has no field `record`"};
    const struct evq_reply *fields = evq_queue_reply_item(reply, 1);
    int64_t finished_ms = 0;

    entry->result = NULL;
    if (fields == NULL || !evq_queue_reply_copy(reply->items[0], entry->id, sizeof entry->id)) {
        return evq_queue_call_malformed(queue, err);
    }
    if (fields->type != EVQ_REPLY_ARRAY) {
        // Whoever trimmed it has recorded the loss. It cannot be delivered any more.
        return evq_queue_sink_ack(queue, sink, entry, 1, "", err);
    }
    if (!ends && evq_queue_reply_is(entry_field(fields, "task"), "")) {
        return EVQ_OK; // The end of a job has no task.
    }
    const struct evq_reply *record = entry_field(fields, "record");
    if (evq_queue_reply_text(record) != NULL) {
        enum evq_status status = evq_codec_result_decode((const uint8_t *)record->text,
                                                         record->bytes, &entry->result, &why);
        if (status == EVQ_E_NOMEM) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory for a result");
        }
        if (status == EVQ_OK) {
            if (evq_queue_reply_number(entry_field(fields, "finished_ms"), &finished_ms)) {
                entry->result->finished_ms = finished_ms; // The server's time.
            }
            return EVQ_OK;
        }
        entry->result = NULL;
    }
    return set_aside(queue, sink, entry, record, why.message, err);
}

static enum evq_status read_stream(struct evq_queue *queue, const char *sink, const char *behind,
                                   int64_t timeout_ms, uint32_t entries_max,
                                   struct evq_reply **ret_reply, struct evq_error *err)
{
    char results[EVQ_KEYS_BYTES_MAX];
    char count[16];
    char block[24];
    const char *words[16];
    size_t word_count = 0;

    evq_keys_results(queue->prefix, results);
    (void)snprintf(count, sizeof count, "%u", (unsigned)entries_max);
    (void)snprintf(block, sizeof block, "%lld", (long long)timeout_ms);
    words[word_count++] = "XREADGROUP";
    words[word_count++] = "GROUP";
    words[word_count++] = sink;
    // Always the same consumer name, because another name after a restart would strand pending
    // entries.
    words[word_count++] = "logger";
    words[word_count++] = "COUNT";
    words[word_count++] = count;
    if (behind == NULL && timeout_ms > 0) { // BLOCK 0 would wait forever.
        words[word_count++] = "BLOCK";
        words[word_count++] = block;
    }
    words[word_count++] = "STREAMS";
    words[word_count++] = results;
    words[word_count++] = behind != NULL ? behind : ">";
    queue->function = "XREADGROUP"; // For messages.
    return evq_conn_call(queue->conn, word_count, words, NULL,
                         evq_conn_deadline_ms(queue->conn, timeout_ms > 0 ? timeout_ms : 0),
                         ret_reply, err);
}

enum evq_status evq_queue_sink_read(struct evq_queue *queue, const char *sink, const char *behind,
                                    bool ends, int64_t timeout_ms, struct evq_entry *ret_entries,
                                    uint32_t entries_max, uint32_t *ret_count,
                                    struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    uint32_t count = 0;

    if (entries_max < 1 || entries_max > ENTRIES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "a read of %u entries, allowed 1 to %d",
                             (unsigned)entries_max, ENTRIES_MAX);
    }
    enum evq_status status = read_stream(queue, sink, behind, timeout_ms, entries_max, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (reply->type == EVQ_REPLY_NIL) {
        *ret_count = 0;
        goto out;
    }
    // [[stream, [entry, ...]]]
    const struct evq_reply *list = evq_queue_reply_item(evq_queue_reply_item(reply, 0), 1);
    if (list == NULL || list->type != EVQ_REPLY_ARRAY || list->item_count > entries_max) {
        status = evq_queue_call_malformed(queue, err);
        goto out;
    }
    for (size_t i = 0; i < list->item_count && status == EVQ_OK; i++) {
        status = read_entry(queue, sink, ends, list->items[i], &ret_entries[i], err);
        count += status == EVQ_OK ? 1 : 0;
    }
    if (status == EVQ_OK) {
        *ret_count = count;
    } else { // The entries stay pending and are read again.
        for (uint32_t i = 0; i < count; i++) {
            evq_result_free(ret_entries[i].result);
            ret_entries[i].result = NULL;
        }
    }
out:
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_best_put(struct evq_queue *queue, const struct evq_best *best,
                                   struct evq_error *err)
{
    evq_queue_call_begin(queue, "best_put", false);
    evq_queue_call_text(queue, best->run);
    evq_queue_call_text(queue, best->metric);
    evq_queue_call_double(queue, best->value);
    evq_queue_call_number(queue, best->step);
    evq_queue_call_text(queue, best->job);
    evq_queue_call_text(queue, best->checkpoint);
    return evq_queue_call_send_ok(queue, err);
}

/* The reply {metric, value, step, job, checkpoint}. */
static enum evq_status best_read(struct evq_queue *queue, const struct evq_reply *reply,
                                 const char *run, struct evq_best *ret_best, struct evq_error *err)
{
    struct evq_best best;

    memset(&best, 0, sizeof best);
    if (!evq_queue_reply_copy(evq_queue_reply_item(reply, 0), best.metric, sizeof best.metric) ||
        !evq_queue_reply_double(evq_queue_reply_item(reply, 1), &best.value) ||
        !evq_queue_reply_number(evq_queue_reply_item(reply, 2), &best.step) ||
        !evq_queue_reply_copy(evq_queue_reply_item(reply, 3), best.job, sizeof best.job) ||
        !evq_queue_reply_copy(evq_queue_reply_item(reply, 4), best.checkpoint,
                              sizeof best.checkpoint)) {
        return evq_queue_call_malformed(queue, err);
    }
    (void)snprintf(best.run, sizeof best.run, "%s", run);
    *ret_best = best;
    return EVQ_OK;
}

enum evq_status evq_queue_best_get(struct evq_queue *queue, const char *run, const char *metric,
                                   struct evq_best *ret_best, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "best_get", true);
    evq_queue_call_text(queue, run);
    evq_queue_call_text(queue, metric);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status == EVQ_OK) {
        status = reply->type == EVQ_REPLY_NIL
                     ? evq_error_set(err, EVQ_E_NOT_FOUND, "run '%s' has no best checkpoint", run)
                     : best_read(queue, reply, run, ret_best, err);
    }
    evq_reply_free(reply);
    return status;
}

/* The names in the reply {"", why, name...}, separated by ", ", as many as fit. */
static void names_join(const struct evq_reply *reply, char *out, size_t out_bytes)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 2; i < reply->item_count; i++) {
        const char *name = reply->items[i]->text;
        if (name == NULL || used + strlen(name) + 8 > out_bytes) {
            (void)snprintf(out + used, out_bytes - used, ", ...");
            return;
        }
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i > 2 ? ", " : "", name);
    }
}

/* Says why a run has no best checkpoint by a metric: the reply {"", why, name...}. */
static enum evq_status best_none(struct evq_queue *queue, const struct evq_reply *reply,
                                 const char *run, const char *metric, struct evq_error *err)
{
    char why[16];
    char names[400];

    if (!evq_queue_reply_copy(evq_queue_reply_item(reply, 1), why, sizeof why)) {
        return evq_queue_call_malformed(queue, err);
    }
    names_join(reply, names, sizeof names);
    if (strcmp(why, "run") == 0) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "queue '%s' has no run '%s'",
                             evq_queue_name(queue), run);
    }
    if (strcmp(why, "sink") == 0) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "no logger of queue '%s' ever had a sink `best`, which keeps the best "
                             "checkpoints: start evalq-logger, without `enabled: false` for it",
                             evq_queue_name(queue));
    }
    if (strcmp(why, "metric") == 0) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "run '%s' has no best by '%s', only by: %s", run,
                             metric, names);
    }
    if (strcmp(why, "several") == 0) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "'%s' is part of several metrics of run '%s', name one: %s", metric,
                             run, names);
    }
    return evq_error_set(err, EVQ_E_NOT_FOUND,
                         "no result of run '%s' has reached a logger's sink `best` yet", run);
}

enum evq_status evq_queue_best_find(struct evq_queue *queue, const char *run, const char *metric,
                                    struct evq_best *ret_best, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    metric = metric != NULL ? metric : "";
    evq_queue_call_begin(queue, "best_get", true);
    evq_queue_call_text(queue, run);
    evq_queue_call_text(queue, metric);
    evq_queue_call_text(queue, "find");
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status == EVQ_OK) {
        const struct evq_reply *first = evq_queue_reply_item(reply, 0);
        const bool none = first != NULL && first->text != NULL && first->text[0] == '\0';
        status = none ? best_none(queue, reply, run, metric, err)
                      : best_read(queue, reply, run, ret_best, err);
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_quarantine(struct evq_queue *queue, const void *data, size_t bytes,
                                     const char *reason, struct evq_error *err)
{
    evq_queue_call_begin(queue, "bad", false);
    // The beginning of an oversized record is enough to see what it was.
    evq_queue_call_bytes(queue, data, bytes < BAD_BYTES_MAX ? bytes : BAD_BYTES_MAX);
    evq_queue_call_cut(queue, reason, BAD_REASON_BYTES_MAX);
    return evq_queue_call_send_ok(queue, err);
}
