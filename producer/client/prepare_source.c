/* Prepares the submits of one ring that are due. */
#include "producer/client/sender.h"
#include "shared/base/clock.h"

// Between two looks at a checkpoint while a flush or a close waits.
#define HURRY_MS 100

/* When to look at the item's checkpoint again. While a flush or a close waits, this is soon, so
 * that a save that ends just before them is not missed. */
static int64_t item_due_ms(const struct evq_sender *sender, struct evq_item *item)
{
    const int64_t hurry_ms = evq_clock_mono_ms() + HURRY_MS;

    if (item->due_ms > hurry_ms && !item->parked && atomic_load(&sender->flushing) > 0) {
        item->due_ms = hurry_ms;
    }
    return item->due_ms;
}

int64_t evq_prepare_source(struct evq_sender *sender, struct evq_source *source)
{
    // Not those that come meanwhile: what is ready is to be sent first.
    const struct evq_item *last = source->last;
    int64_t next = INT64_MAX;

    source->unseen = false;
    for (struct evq_item *item = source->first; item != NULL && !atomic_load(&sender->stop);
         item = item == last ? NULL : item->next) {
        if (!item->ready && !item->done && item->due_ms <= evq_clock_mono_ms()) {
            evq_prepare_item(sender, item);
        }
        if (!item->ready && !item->done) {
            const int64_t due_ms = item_due_ms(sender, item);
            next = due_ms < next ? due_ms : next;
        }
    }
    return next;
}
