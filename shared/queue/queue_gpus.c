/* The call of gpus, which leases GPUs, declared in queue.h. */
#include <string.h>

#include "shared/queue/queue_call.h"

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
