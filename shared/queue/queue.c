#include "shared/queue/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/queue_call.h"

enum {
    DEFINITION_BYTES_MAX = 16384,
    // evalq_v1_info's reply.
    INFO_MAJOR = 0,
    INFO_BUILD,
    INFO_EPOCH,
    INFO_NOW,
    INFO_LEASE,
    INFO_HEARTBEAT
};

enum evq_status evq_queue_open(struct evq_conn *conn, const char *queue_name,
                               struct evq_queue **ret_queue, struct evq_error *err)
{
    struct evq_queue *queue = calloc(1, sizeof *queue);
    enum evq_status status = EVQ_OK;

    if (queue == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a queue");
    }
    queue->conn = conn;
    evq_buffer_init(&queue->records, 0);
    queue->arena = evq_arena_new(0);
    if (queue->arena == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for a queue");
        goto out;
    }
    if (queue_name == NULL) {
        queue_name = "main";
    }
    status = evq_keys_prefix(queue_name, queue->prefix, err);
    if (status != EVQ_OK) {
        goto out;
    }
    (void)snprintf(queue->name, sizeof queue->name, "%s", queue_name);
    *ret_queue = queue;
    queue = NULL;
out:
    evq_queue_close(queue);
    return status;
}

void evq_queue_close(struct evq_queue *queue)
{
    if (queue != NULL) {
        evq_arena_free(queue->arena);
        evq_buffer_free(&queue->records);
        free(queue->words);
        free(queue->word_bytes);
        free(queue);
    }
}

const char *evq_queue_name(const struct evq_queue *queue)
{
    return queue->name;
}

const char *evq_queue_prefix(const struct evq_queue *queue)
{
    return queue->prefix;
}

static enum evq_status read_info(struct evq_queue *queue, const struct evq_reply *reply,
                                 struct evq_queue_info *ret_info, struct evq_error *err)
{
    struct evq_queue_info info;
    int64_t major = 0;

    memset(&info, 0, sizeof info);
    if (!evq_queue_reply_number(evq_queue_reply_item(reply, INFO_MAJOR), &major) ||
        !evq_queue_reply_number(evq_queue_reply_item(reply, INFO_BUILD), &info.build)) {
        return evq_queue_call_malformed(queue, err);
    }
    // Checked first, because another major number may answer differently.
    enum evq_status status = evq_function_library_judge(queue->conn, major, info.build, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!evq_queue_reply_copy(evq_queue_reply_item(reply, INFO_EPOCH), info.epoch,
                              sizeof info.epoch) ||
        !evq_queue_reply_number(evq_queue_reply_item(reply, INFO_NOW), &info.now_ms) ||
        !evq_queue_reply_number(evq_queue_reply_item(reply, INFO_LEASE), &info.lease_ms) ||
        !evq_queue_reply_number(evq_queue_reply_item(reply, INFO_HEARTBEAT), &info.heartbeat_ms)) {
        return evq_queue_call_malformed(queue, err);
    }
    const char *failover = evq_conn_failover(queue->conn);
    if (info.epoch[0] != '\0' && *failover != '\0') {
        // A replica that took over may lack the newest data.
        const size_t used = strlen(info.epoch);
        (void)snprintf(info.epoch + used, sizeof info.epoch - used, ".%s", failover);
    }
    *ret_info = info;
    return EVQ_OK;
}

enum evq_status evq_queue_info(struct evq_queue *queue, struct evq_queue_info *ret_info,
                               struct evq_error *err)
{
    struct evq_error local;
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "info", true);
    enum evq_status status = evq_queue_call_send(queue, &reply, &local);
    if (status == EVQ_OK) {
        status = read_info(queue, reply, ret_info, &local);
    } else if (status == EVQ_E_VERSION) {
        (void)evq_function_library_missing_error(queue->conn, &local);
    }
    if (status != EVQ_OK && err != NULL) {
        *err = local;
    }
    evq_reply_free(reply);
    return status;
}

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
