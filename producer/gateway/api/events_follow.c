/* The thread that follows the queue: the stream of results and, while a client listens, the running
 * jobs. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/api/events.h"
#include "shared/base/clock.h"
#include "shared/base/json_memory.h"
#include "shared/base/log.h"
#include "shared/queue/codec.h"
#include "shared/queue/keys.h"

#define BLOCK_MS     1000
#define LOOK_MS      1000
#define NEWS_MS      15000
#define ENTRIES      100
#define BEFORE_MAX   500 // Entries of before its start that it keeps.
#define RUNNING_MAX  500
#define RESTORED_MAX 100 // Runs whose metrics are read again at the start.
#define VANISHED_MAX 50

struct follow {
    struct evq_events_follower *follower;
    char results[EVQ_KEYS_BYTES_MAX]; // Key of the stream.
    char last[EVQ_EVENTS_ID_BYTES];   // Id of the newest entry that was sent.
    char epoch[48];
    bool primed;
    bool restored; // The metrics of earlier results were read.
    bool failing;
    json_t *running;   // Id -> fields as they were sent last; NULL: nobody listened.
    char numbers[512]; // The numbers of jobs as they were sent last.
    uint64_t seed;
    uint32_t tries;
};

/* The value of a field of an entry; NULL: there is none. */
static const struct evq_reply *field_of(const struct evq_reply *fields, const char *name)
{
    for (size_t i = 0; i + 1 < fields->item_count; i += 2) {
        const struct evq_reply *key = fields->items[i];
        if (key->type == EVQ_REPLY_STRING && strcmp(key->text, name) == 0 &&
            fields->items[i + 1]->type == EVQ_REPLY_STRING) {
            return fields->items[i + 1];
        }
    }
    return NULL;
}

/* Tells of one entry, of before its start or after; false: the reply is no entry. */
static bool tell_entry(struct follow *f, const struct evq_reply *entry, bool before)
{
    struct evq_result *result = NULL;
    struct evq_buffer json;
    if (entry->type != EVQ_REPLY_ARRAY || entry->item_count != 2 ||
        entry->items[0]->type != EVQ_REPLY_STRING ||
        entry->items[0]->bytes >= EVQ_EVENTS_ID_BYTES) {
        return false;
    }
    (void)snprintf(f->last, sizeof f->last, "%s", entry->items[0]->text);
    const struct evq_reply *fields = entry->items[1];
    const struct evq_reply *record =
        fields->type == EVQ_REPLY_ARRAY ? field_of(fields, "record") : NULL;
    if (record == NULL || evq_codec_result_decode((const uint8_t *)record->text, record->bytes,
                                                  &result, NULL) != EVQ_OK) {
        return true; // It was trimmed, or it is malformed. Loggers handle malformed records.
    }
    const struct evq_reply *finished = field_of(fields, "finished_ms");
    const long long finished_ms = finished != NULL ? strtoll(finished->text, NULL, 10) : 0;
    result->finished_ms = finished_ms > 0 ? finished_ms : result->finished_ms;
    evq_buffer_init(&json, 0);
    evq_result_json(result, &json);
    const char *data = evq_buffer_string(&json);
    if (data != NULL) {
        evq_events_add(f->follower->events, f->last, result->task[0] != '\0' ? "result" : "end",
                       result->run, data);
    }
    evq_buffer_free(&json);
    evq_metrics_registry_take(evq_events_metrics_registry(f->follower->events), result, before);
    evq_result_free(result);
    return true;
}

static enum evq_status call(struct follow *f, struct evq_reply **ret_reply, int64_t block_ms,
                            size_t count, const char *const *words, struct evq_error *err)
{
    return evq_conn_call(f->follower->conn, count, words, NULL,
                         evq_conn_deadline_ms(f->follower->conn, block_ms), ret_reply, err);
}

/* Reads the last id of a stream without entries. They were trimmed, or there never were any. */
static enum evq_status ask_last(struct follow *f, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    const char *const words[] = {"XINFO", "STREAM", f->results};
    const enum evq_status status = call(f, &reply, 0, 3, words, err);
    const struct evq_reply *last = status == EVQ_OK && reply->type == EVQ_REPLY_ARRAY
                                       ? field_of(reply, "last-generated-id")
                                       : NULL;
    if (last != NULL && last->bytes < sizeof f->last) {
        (void)snprintf(f->last, sizeof f->last, "%s", last->text);
    }
    evq_reply_free(reply);
    return status == EVQ_E_INVALID ? EVQ_OK : status; // No such key.
}

/* Reads the newest entries from before this gateway started, and the end of the stream. */
static enum evq_status prime(struct follow *f, struct evq_error *err)
{
    char count[16];
    struct evq_reply *reply = NULL;
    struct evq_queue_info info;
    (void)snprintf(count, sizeof count, "%d", BEFORE_MAX);
    const char *const range[] = {"XREVRANGE", f->results, "+", "-", "COUNT", count};
    enum evq_status status = evq_queue_info(f->follower->queue, &info, err);
    if (status == EVQ_OK) {
        status = call(f, &reply, 0, 6, range, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const bool anew = f->epoch[0] != '\0' && strcmp(f->epoch, info.epoch) != 0;
    (void)snprintf(f->epoch, sizeof f->epoch, "%s", info.epoch);
    if (anew || f->last[0] == '\0') {
        const size_t entries = reply->type == EVQ_REPLY_ARRAY ? reply->item_count : 0;
        (void)snprintf(f->last, sizeof f->last, "0-0");
        char floor[EVQ_EVENTS_ID_BYTES];
        if (entries == 0) {
            status = ask_last(f, err);
        }
        (void)snprintf(floor, sizeof floor, "%s", f->last);
        for (size_t i = entries; i > 0; i--) { // Oldest first.
            (void)tell_entry(f, reply->items[i - 1], true);
            if (i == entries) {
                (void)snprintf(floor, sizeof floor, "%s", f->last);
            }
        }
        if (status != EVQ_OK) {
            f->last[0] = '\0'; // To be asked again.
            evq_reply_free(reply);
            return status;
        }
        // This comes last, so that a thread that waits for it finds all events.
        evq_events_floor(f->follower->events, floor);
    }
    if (anew) {
        evq_events_add(f->follower->events, "", "reset", "",
                       "{\"why\": \"the queue was made anew\"}");
    }
    f->primed = true;
    evq_reply_free(reply);
    return EVQ_OK;
}

/* Waits for entries and tells of them; *ret_count: how many. */
static enum evq_status follow_stream(struct follow *f, size_t *ret_count, struct evq_error *err)
{
    char block[16];
    char count[16];
    struct evq_reply *reply = NULL;
    (void)snprintf(block, sizeof block, "%d", BLOCK_MS);
    (void)snprintf(count, sizeof count, "%d", ENTRIES);
    const char *const words[] = {"XREAD", "COUNT",   count,      "BLOCK",
                                 block,   "STREAMS", f->results, f->last};
    enum evq_status status = call(f, &reply, BLOCK_MS, 8, words, err);
    *ret_count = 0;
    if (status == EVQ_OK && reply->type == EVQ_REPLY_ARRAY && reply->item_count == 1) {
        const struct evq_reply *stream = reply->items[0];
        const struct evq_reply *entries =
            stream->type == EVQ_REPLY_ARRAY && stream->item_count == 2 ? stream->items[1] : NULL;
        for (size_t i = 0; entries != NULL && i < entries->item_count; i++) {
            *ret_count += tell_entry(f, entries->items[i], false);
        }
    }
    evq_reply_free(reply);
    return status;
}

/* A view of the queue as JSON; json_decref(). */
static enum evq_status parse(enum evq_status status, char *text, json_t **ret,
                             struct evq_error *err)
{
    if (status != EVQ_OK) {
        return status;
    }
    evq_json_memory_clear();
    *ret = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (evq_json_memory_failed()) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a view");
    }
    return json_is_object(*ret) ? EVQ_OK
                                : evq_error_set(err, EVQ_E_CORRUPT, "a view that is no object");
}

static void restore_one(void *context, const struct evq_result *result)
{
    evq_metrics_registry_take(context, result, true);
}

/* Reads the results of the newest runs, which Redis keeps. A result leaves the stream when all
 * sinks have it, but after a restart of the gateway, Prometheus still needs its metric. */
static enum evq_status restore_metrics(struct follow *f, struct evq_error *err)
{
    char *text = NULL;
    json_t *page = NULL;
    enum evq_status status = evq_queue_runs(f->follower->queue, "", &text, err);
    status = parse(status, text, &page, err);
    const json_t *runs = json_object_get(page, "runs");
    for (size_t i = 0; i < json_array_size(runs) && i < RESTORED_MAX; i++) {
        const char *run = json_string_value(json_object_get(json_array_get(runs, i), "run"));
        int64_t cursor = 0;
        for (int64_t from = -1; run != NULL && status == EVQ_OK && cursor != from;) {
            from = cursor;
            status =
                atomic_load(&f->follower->stop)
                    ? EVQ_E_STOPPED
                    : evq_queue_run_results(f->follower->queue, run, &cursor, restore_one,
                                            evq_events_metrics_registry(f->follower->events), err);
        }
    }
    json_decref(page);
    const bool again = status == EVQ_E_STOPPED || evq_conn_is_outage(status);
    f->restored = !again; // Any other error must not keep the gateway from following the queue.
    return again ? status : EVQ_OK;
}

static enum evq_status look_at_numbers(struct follow *f, bool *ret_news, struct evq_error *err)
{
    char *text = NULL;
    json_t *stats = NULL;
    enum evq_status status = evq_queue_stats(f->follower->queue, &text, err);
    status = parse(status, text, &stats, err);
    if (status == EVQ_OK) {
        json_t *states = json_object_get(stats, "states");
        json_t *event = json_pack("{s:O, s:I}", "states", states, "workers",
                                  (json_int_t)json_array_size(json_object_get(stats, "workers")));
        char *data = evq_json_memory_dumps(event, JSON_COMPACT | JSON_SORT_KEYS);
        if (data != NULL && strcmp(data, f->numbers) != 0 && strlen(data) < sizeof f->numbers) {
            (void)snprintf(f->numbers, sizeof f->numbers, "%s", data);
            evq_events_add(f->follower->events, "", "queue", "", data);
            *ret_news = true;
        }
        free(data);
        json_decref(event);
    }
    json_decref(stats);
    return status;
}

static void tell_state(struct follow *f, const json_t *job)
{
    const char *run = json_string_value(json_object_get(job, "run"));
    char *data = evq_json_memory_dumps(job, JSON_COMPACT | JSON_SORT_KEYS);
    if (data != NULL) {
        evq_events_add(f->follower->events, "", "state", run != NULL ? run : "", data);
    }
    free(data);
}

/* The fields of a job's hash that are sent: those that change while it runs; never its token. */
static json_t *told_of(const json_t *job)
{
    static const char *const fields[] = {"id",     "run",    "step",     "variant",  "suite",
                                         "state",  "worker", "attempts", "progress", "total",
                                         "status", "reason", "started"};
    json_t *told = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        json_t *value = json_object_get(job, fields[i]);
        if (value != NULL) {
            (void)json_object_set(told, fields[i], value); // If memory runs out, it is sent again.
        }
    }
    return told;
}

/* A job that runs no longer and has no end: it waits again. */
static enum evq_status look_at_vanished(struct follow *f, const char *id, bool *ret_news,
                                        struct evq_error *err)
{
    char *text = NULL;
    json_t *view = NULL;
    enum evq_status status = evq_queue_show(f->follower->queue, id, &text, err);
    if (status == EVQ_E_NOT_FOUND) {
        return EVQ_OK;
    }
    status = parse(status, text, &view, err);
    if (status == EVQ_OK) {
        json_t *job = json_object_get(view, "job");
        const char *state = json_string_value(json_object_get(job, "state"));
        if (state != NULL && (strcmp(state, "queued") == 0 || strcmp(state, "delayed") == 0)) {
            (void)json_object_set_new(job, "id", json_string(id));
            json_t *told = told_of(job);
            tell_state(f, told);
            json_decref(told);
            *ret_news = true;
        }
    }
    json_decref(view);
    return status;
}

static enum evq_status look_at_running(struct follow *f, bool *ret_news, struct evq_error *err)
{
    char *text = NULL;
    json_t *page = NULL;
    json_t *now = json_object();
    json_t *job = NULL;
    const char *id = NULL;
    size_t index = 0;
    int vanished = 0;
    enum evq_status status =
        evq_queue_jobs(f->follower->queue, "running", "", "", RUNNING_MAX, &text, err);
    status = parse(status, text, &page, err);
    json_array_foreach(json_object_get(page, "jobs"), index, job)
    {
        id = json_string_value(json_object_get(job, "id"));
        json_t *told = told_of(job);
        if (id != NULL && !json_equal(told, json_object_get(f->running, id))) {
            tell_state(f, told);
            *ret_news = true;
        }
        (void)json_object_set_new(now, id != NULL ? id : "", told);
    }
    json_object_foreach(f->running, id, job)
    {
        if (status == EVQ_OK && json_object_get(now, id) == NULL && ++vanished <= VANISHED_MAX) {
            status = look_at_vanished(f, id, ret_news, err);
        }
    }
    if (status == EVQ_OK) {
        json_decref(f->running);
        f->running = now;
        now = NULL;
    }
    json_decref(now);
    json_decref(page);
    return status;
}

/* Says what keeps it from following, once, and waits before the next try. */
static void wait_after(struct follow *f, const struct evq_error *err)
{
    if (!f->failing && err->status != EVQ_E_STOPPED) {
        evq_log(EVQ_LOG_WARN, "events_interrupted", "error=%s", err->message);
    }
    f->failing = true;
    f->primed = false;
    enum evq_status waited = evq_conn_wait(
        f->follower->conn, evq_clock_backoff_ms(&f->seed, f->tries++, 250, 5000), NULL);
    (void)waited; // Stopped: the loop sees it.
}

static enum evq_status step(struct follow *f, int64_t *look_at_ms, bool *ret_news,
                            struct evq_error *err)
{
    size_t count = 0;
    enum evq_status status = f->primed ? EVQ_OK : prime(f, err);
    if (status == EVQ_OK && !f->restored) {
        status = restore_metrics(f, err);
    }
    if (status == EVQ_OK) {
        status = follow_stream(f, &count, err);
    }
    *ret_news = count > 0;
    const int64_t now = evq_clock_mono_ms();
    if (evq_events_listeners(f->follower->events) == 0) {
        json_decref(f->running);
        f->running = NULL;
        f->numbers[0] = '\0';
    } else if (status == EVQ_OK && now >= *look_at_ms) {
        *look_at_ms = now + LOOK_MS;
        status = look_at_numbers(f, ret_news, err);
        if (status == EVQ_OK) {
            status = look_at_running(f, ret_news, err);
        }
    }
    return status;
}

void *evq_events_follow(void *context)
{
    struct evq_events_follower *follower = context;
    struct follow f = {.follower = follower, .seed = evq_clock_random()};
    int64_t look_at_ms = 0;
    int64_t news_at_ms = 0;

    evq_keys_results(evq_queue_prefix(follower->queue), f.results);
    while (!atomic_load(&follower->stop)) {
        struct evq_error err = {EVQ_OK, ""};
        bool news = false;
        const enum evq_status status = step(&f, &look_at_ms, &news, &err);
        if (news || evq_clock_mono_ms() >= news_at_ms) {
            news_at_ms = evq_clock_mono_ms() + NEWS_MS;
            follower->config.on_news(follower->config.context);
        }
        if (status != EVQ_OK) {
            err.status = status;
            wait_after(&f, &err);
        } else if (f.failing) {
            f.failing = false;
            f.tries = 0;
            evq_log(EVQ_LOG_INFO, "events_resumed", "after=%s", f.last);
        }
    }
    json_decref(f.running);
    return NULL;
}
