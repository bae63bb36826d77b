/* The call of idle, which finds free workers, declared in queue.h. */
#include <string.h>

#include "shared/queue/queue_call.h"

enum evq_status evq_queue_free_workers_take(struct evq_queue *queue, const char *run,
                                            const char *needs, const char *const *suites,
                                            uint32_t suite_count, uint64_t *ret_free,
                                            struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    uint64_t free_mask = 0;

    if (suite_count < 1 || suite_count > 64) {
        return evq_error_set(err, EVQ_E_INVALID, "%u suites are asked for, expected 1 to 64",
                             (unsigned)suite_count);
    }
    evq_queue_call_begin(queue, "idle", false);
    evq_queue_call_text(queue, run);
    evq_queue_call_text(queue, needs != NULL ? "1" : "0");
    evq_queue_call_text(queue, needs);
    for (uint32_t i = 0; i < suite_count; i++) {
        evq_queue_call_text(queue, suites[i]);
    }
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    bool good = reply->type == EVQ_REPLY_ARRAY && reply->item_count <= suite_count;
    for (size_t at = 0; good && at < reply->item_count; at++) {
        uint32_t which = 0;
        while (which < suite_count && !evq_queue_reply_is(reply->items[at], suites[which])) {
            which++;
        }
        good = which < suite_count;
        free_mask |= good ? UINT64_C(1) << which : 0;
    }
    evq_reply_free(reply);
    if (!good) {
        return evq_queue_call_malformed(queue, err);
    }
    *ret_free = free_mask;
    return EVQ_OK;
}
