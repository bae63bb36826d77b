#include "shared/queue/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/queue_call.h"

enum {
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
