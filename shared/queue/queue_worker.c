/* The calls about a worker itself, declared in queue.h: classes, suites, GPUs, heartbeat,
 * leave. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/queue_call.h"

enum { DEFINITION_BYTES_MAX = 16384, WORKER_JSON_BYTES_MAX = 8192, BEAT_STATUS_BYTES_MAX = 64 };

enum evq_status evq_queue_classes(struct evq_queue *queue, struct evq_class *ret_classes,
                                  uint32_t *ret_count, int64_t *ret_version, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    int64_t version = 0;

    evq_queue_call_begin(queue, "classes", true);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    size_t count = reply->type == EVQ_REPLY_ARRAY ? reply->item_count / 3 : 0;
    if (!evq_queue_reply_number(evq_queue_reply_item(reply, 0), &version) ||
        reply->item_count != count * 3 + 1 || count > EVQ_QUEUE_CLASSES_MAX) {
        status = evq_queue_call_malformed(queue, err);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t number = 0;
        struct evq_class *class = &ret_classes[i];
        if (!evq_queue_reply_within(evq_queue_reply_item(reply, 1 + i * 3), 1,
                                    EVQ_QUEUE_CLASSES_MAX, &number) ||
            !evq_queue_reply_copy(evq_queue_reply_item(reply, 2 + i * 3), class->suite,
                                  sizeof class->suite) ||
            !evq_queue_reply_copy(evq_queue_reply_item(reply, 3 + i * 3), class->needs,
                                  sizeof class->needs)) {
            status = evq_queue_call_malformed(queue, err);
            goto out;
        }
        class->number = (uint32_t)number;
    }
    *ret_count = (uint32_t)count;
    *ret_version = version;
out:
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_suite_register(struct evq_queue *queue,
                                         const struct evq_suite_offer *offer, bool replace,
                                         uint32_t *ret_class, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    int64_t number = 0;

    if (offer->definition != NULL && strlen(offer->definition) > DEFINITION_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT,
                             "the definition of suite '%s' is longer than %d bytes", offer->name,
                             DEFINITION_BYTES_MAX);
    }
    evq_queue_call_begin(queue, "suite", false);
    evq_queue_call_text(queue, offer->name);
    evq_queue_call_text(queue, offer->digest);
    evq_queue_call_text(queue, offer->needs);
    evq_queue_call_number(queue, offer->shards);
    evq_queue_call_number(queue, offer->every);
    evq_queue_call_text(queue, offer->definition);
    evq_queue_call_text(queue, offer->where);
    evq_queue_call_text(queue, replace ? "replace" : "register");
    evq_queue_call_text(queue, queue->worker);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *other = evq_queue_reply_text(evq_queue_reply_item(reply, 2));
    if (evq_queue_reply_is(reply, "conflict")) {
        status = evq_error_set(err, EVQ_E_CONFLICT,
                               "suite '%s' of %s differs from the one registered by %s: make them "
                               "equal, or run `evalq admin suite replace %s`",
                               offer->name, offer->where != NULL ? offer->where : "here",
                               other != NULL ? other : "another worker", offer->name);
    } else if (!evq_queue_reply_is(reply, "ok") ||
               !evq_queue_reply_within(evq_queue_reply_item(reply, 1), 1, EVQ_QUEUE_CLASSES_MAX,
                                       &number)) {
        status = evq_queue_call_malformed(queue, err);
    } else {
        *ret_class = (uint32_t)number;
    }
    evq_reply_free(reply);
    return status;
}

static bool read_beat(const struct evq_reply *word, struct evq_beat *beat)
{
    if (evq_queue_reply_is(word, "ok")) {
        beat->answer = EVQ_BEAT_OK;
    } else if (evq_queue_reply_is(word, "cancel")) {
        beat->answer = EVQ_BEAT_CANCEL;
    } else if (evq_queue_reply_is(word, "stale")) {
        beat->answer = EVQ_BEAT_STALE;
    } else {
        return false;
    }
    return true;
}

enum evq_status evq_queue_heartbeat(struct evq_queue *queue, const char *worker,
                                    const char *worker_json, int64_t lease_ms,
                                    struct evq_beat *beats, size_t beat_count,
                                    int64_t *ret_classes_version, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    int64_t version = 0;

    if (worker_json != NULL && strlen(worker_json) > WORKER_JSON_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "a worker's description of %zu bytes, allowed %d",
                             strlen(worker_json), WORKER_JSON_BYTES_MAX);
    }
    evq_queue_call_begin(queue, "heartbeat", false);
    evq_queue_call_worker(queue, worker);
    evq_queue_call_text(queue, worker);
    evq_queue_call_text(queue, worker_json);
    evq_queue_call_number(queue, lease_ms);
    evq_queue_call_number(queue, (int64_t)beat_count);
    for (size_t i = 0; i < beat_count; i++) {
        evq_queue_call_text(queue, beats[i].id);
        evq_queue_call_text(queue, beats[i].token);
        evq_queue_call_number(queue, beats[i].done);
        evq_queue_call_number(queue, beats[i].total);
        evq_queue_call_cut(queue, beats[i].status, BEAT_STATUS_BYTES_MAX);
    }
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    bool good = reply->type == EVQ_REPLY_ARRAY && reply->item_count == beat_count + 2 &&
                evq_queue_reply_number(reply->items[1], &version);
    for (size_t i = 0; i < beat_count && good; i++) {
        good = read_beat(reply->items[2 + i], &beats[i]);
    }
    if (!good) {
        status = evq_queue_call_malformed(queue, err);
    } else if (ret_classes_version != NULL) {
        *ret_classes_version = version;
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_worker_leave(struct evq_queue *queue, const char *worker,
                                       struct evq_error *err)
{
    evq_queue_call_begin(queue, "leave", false);
    evq_queue_call_text(queue, worker);
    return evq_queue_call_send_ok(queue, err);
}

enum evq_status evq_queue_gpus_lease(struct evq_queue *queue, const struct evq_gpu_request *request,
                                     struct evq_gpu_lease *gpus, uint32_t gpu_count,
                                     struct evq_error *err)
{
    char tokens[EVQ_QUEUE_GPUS_MAX][sizeof(gpus->token)];
    struct evq_reply *reply = NULL;

    if (gpu_count > EVQ_QUEUE_GPUS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%u GPUs to share out, allowed %d",
                             (unsigned)gpu_count, EVQ_QUEUE_GPUS_MAX);
    }
    evq_queue_call_begin(queue, "gpus", false);
    evq_queue_call_text(queue, request->worker);
    evq_queue_call_text(queue, request->boot);
    evq_queue_call_number(queue, request->lease_ms);
    evq_queue_call_number(queue, request->want);
    evq_queue_call_number(queue, request->several);
    evq_queue_call_number(queue, gpu_count);
    for (uint32_t i = 0; i < gpu_count; i++) {
        evq_queue_call_text(queue, gpus[i].uuid);
        evq_queue_call_text(queue, gpus[i].token);
    }
    const enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    bool good = reply->type == EVQ_REPLY_ARRAY && reply->item_count == gpu_count;
    for (uint32_t i = 0; good && i < gpu_count; i++) {
        good = evq_queue_reply_copy(reply->items[i], tokens[i], sizeof(tokens[i]));
    }
    evq_reply_free(reply);
    if (!good) {
        return evq_queue_call_malformed(queue, err);
    }
    for (uint32_t i = 0; i < gpu_count; i++) {
        memcpy(gpus[i].token, tokens[i], sizeof(tokens[i]));
    }
    return EVQ_OK;
}
