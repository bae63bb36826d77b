/* A ring and the submits that were taken out of it, until each is through. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/fork.h"
#include "producer/client/sender.h"
#include "shared/base/clock.h"

#define ITEMS_MAX 100000 // Taken from one ring at a time; the ring bounds it sooner.

static void item_free(struct evq_item *item)
{
    for (size_t at = 0; at < item->job_count; at++) {
        evq_job_free(item->jobs[at]);
    }
    free(item->data);
    free(item);
}

void evq_source_close(struct evq_source *source, bool remove)
{
    while (source->first != NULL) {
        struct evq_item *item = source->first;
        source->first = item->next;
        item_free(item);
    }
    evq_spool_close(source->spool);
    if (source->ring != NULL) {
        evq_fork_forget(evq_ring_fd(source->ring)); // Also waits for a fork that is going on.
    }
    evq_ring_close(source->ring, remove);
    memset(source, 0, sizeof(*source));
}

/* Copies a record out of the ring. false: no memory now; it stays there. */
static bool source_push(struct evq_sender *sender, struct evq_source *source, const uint8_t *data,
                        size_t bytes)
{
    struct evq_item *item = calloc(1, sizeof(*item));
    uint8_t *copy = malloc(bytes);
    struct evq_error error = {.status = EVQ_OK};

    if (item == NULL || copy == NULL) {
        free(item);
        free(copy);
        return false;
    }
    memcpy(copy, data, bytes);
    item->data = copy;
    item->end = source->cursor;
    item->since_ms = evq_clock_mono_ms();
    if (evq_request_unpack(copy, bytes, &item->request, &error) != EVQ_OK) {
        evq_warn(&sender->warner, EVQ_WARN_CORRUPT, "%s", error.message);
        atomic_fetch_add(&sender->lost, 1);
        item->done = true;
    } else {
        item->path_hash = XXH3_64bits(item->request.path, strlen(item->request.path));
    }
    if (source->last != NULL) {
        source->last->next = item;
    } else {
        source->first = item;
    }
    source->last = item;
    source->unseen = true;
    if (source->ring != sender->ring || source->cursor <= sender->inherited) {
        atomic_fetch_add(&sender->waiting, 1); // A submit of this client was counted by itself.
    }
    return true;
}

void evq_source_take(struct evq_sender *sender, struct evq_source *source)
{
    uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    uint64_t before = source->cursor;
    size_t bytes = 0;

    for (int taken = 0; taken < ITEMS_MAX; taken++) {
        before = source->cursor;
        if (evq_ring_take(source->ring, &source->cursor, payload, &bytes) != EVQ_OK) {
            break;
        }
        if (!source_push(sender, source, payload, bytes)) {
            source->cursor = before;
            break;
        }
    }
    if (evq_ring_corrupt(source->ring) > 0) {
        evq_warn(&sender->warner, EVQ_WARN_CORRUPT, "a submit in '%s' is damaged and left out",
                 evq_ring_path(source->ring));
    }
}

bool evq_source_has_later(struct evq_sender *sender, const struct evq_item *item)
{
    for (size_t at = 0; at < sender->source_count; at++) {
        evq_source_take(sender, &sender->sources[at]); // A submit may have come this moment.
        bool is_later = false;                         // In the item's own ring, by its place.
        for (const struct evq_item *other = sender->sources[at].first; other != NULL;
             other = other->next) {
            is_later = is_later || other == item;
            if ((is_later || other->request.created_ms > item->request.created_ms) &&
                other->path_hash == item->path_hash && other->request.step != item->request.step) {
                return true;
            }
        }
    }
    return false;
}

bool evq_source_release(struct evq_sender *sender, struct evq_source *source)
{
    bool released = false;

    for (struct evq_item *item = source->first; item != NULL; item = item->next) {
        if (item->done && !item->counted) {
            item->counted = true;
            atomic_fetch_sub(&sender->waiting, 1);
        }
    }
    while (source->first != NULL && source->first->done) {
        struct evq_item *item = source->first;
        evq_ring_release(source->ring, item->end);
        source->first = item->next;
        if (source->first == NULL) {
            source->last = NULL;
        }
        item_free(item);
        released = true;
    }
    if (source->first == NULL && source->cursor > evq_ring_head(source->ring)) {
        evq_ring_release(source->ring, source->cursor); // Torn records at the end.
        released = true;
    }
    return released;
}

uint64_t evq_source_settled(const struct evq_source *source)
{
    const struct evq_item *item = source->first;
    uint64_t settled = evq_ring_head(source->ring);

    for (; item != NULL && (item->done || item->parked); item = item->next) {
        settled = item->end;
    }
    return item == NULL && source->cursor > settled ? source->cursor : settled;
}
