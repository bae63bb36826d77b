#include "shared/queue/codec.h"
#include "shared/queue/queue_call.h"

enum { PEEK_ID = 1, PEEK_RECORD, PEEK_RUNNING, PEEK_ITEMS };

enum evq_status evq_queue_next_job(struct evq_queue *queue, const uint32_t *classes,
                                   uint32_t class_count, struct evq_next_job *ret_next,
                                   struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    struct evq_next_job peeked = {.job = NULL};

    if (class_count > EVQ_QUEUE_CLASSES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "a look at %u classes, allowed %d",
                             (unsigned)class_count, EVQ_QUEUE_CLASSES_MAX);
    }
    evq_queue_call_begin(queue, "peek", true);
    evq_queue_call_number(queue, class_count);
    for (uint32_t i = 0; i < class_count; i++) {
        evq_queue_call_number(queue, classes[i]);
    }
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (evq_queue_reply_is(reply, "job") && reply->item_count == PEEK_ITEMS &&
        evq_queue_reply_copy(reply->items[PEEK_ID], peeked.id, sizeof peeked.id) &&
        evq_queue_reply_within(reply->items[PEEK_RUNNING], 0, INT64_MAX, &peeked.running) &&
        evq_queue_reply_text(reply->items[PEEK_RECORD]) != NULL) {
        const struct evq_reply *record = reply->items[PEEK_RECORD];
        status =
            evq_codec_job_decode((const uint8_t *)record->text, record->bytes, &peeked.job, err);
        // A malformed record is for the claim to fail.
        status = status == EVQ_E_NOMEM ? status : EVQ_OK;
    } else if (!evq_queue_reply_is(reply, "none")) {
        status = evq_queue_call_shape(queue, err);
    }
    evq_reply_free(reply);
    if (status == EVQ_OK) {
        *ret_next = peeked;
    }
    return status;
}
