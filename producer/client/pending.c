/* Takes submits out of a ring and keeps them until each is sent, spooled or refused. Declared in
 * sender.h. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/fork.h"
#include "producer/client/sender.h"
#include "shared/base/clock.h"

#define ITEMS_MAX 100000 // Most pending submits of one ring. Its size usually allows fewer.

static void item_free(struct evq_pending *item)
{
    for (size_t at = 0; at < item->job_count; at++) {
        evq_job_free(item->jobs[at]);
    }
    free(item->data);
    free(item);
}

void evq_pending_close(struct evq_submit_log *log, bool remove)
{
    while (log->first != NULL) {
        struct evq_pending *item = log->first;
        log->first = item->next;
        item_free(item);
    }
    evq_spool_close(log->spool);
    if (log->ring != NULL) {
        evq_fork_forget(evq_ring_fd(log->ring)); // Also waits for a fork that is going on.
    }
    evq_ring_close(log->ring, remove);
    memset(log, 0, sizeof(*log));
}

/* Copies a record out of the ring. Returns false if memory runs out; the record stays there. */
static bool log_push(struct evq_sender *sender, struct evq_submit_log *log, const uint8_t *data,
                     size_t bytes)
{
    struct evq_pending *item = calloc(1, sizeof(*item));
    uint8_t *copy = malloc(bytes);
    struct evq_error error = {.status = EVQ_OK};

    if (item == NULL || copy == NULL) {
        free(item);
        free(copy);
        return false;
    }
    memcpy(copy, data, bytes);
    item->data = copy;
    item->end = log->cursor;
    item->since_ms = evq_clock_mono_ms();
    if (evq_submit_record_unpack(copy, bytes, &item->request, &error) != EVQ_OK) {
        evq_warn(&sender->warner, EVQ_WARN_CORRUPT, "%s", error.message);
        atomic_fetch_add(&sender->lost, 1);
        item->done = true;
    } else {
        item->path_hash = XXH3_64bits(item->request.path, strlen(item->request.path));
    }
    if (log->last != NULL) {
        log->last->next = item;
    } else {
        log->first = item;
    }
    log->last = item;
    log->has_new = true;
    if (log->ring != sender->ring || log->cursor <= sender->inherited) {
        atomic_fetch_add(&sender->waiting, 1); // evalq_client_submit() counted the others.
    }
    return true;
}

void evq_pending_take(struct evq_sender *sender, struct evq_submit_log *log)
{
    uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    uint64_t before = log->cursor;
    size_t bytes = 0;

    for (int taken = 0; taken < ITEMS_MAX; taken++) {
        before = log->cursor;
        if (evq_ring_take(log->ring, &log->cursor, payload, &bytes) != EVQ_OK) {
            break;
        }
        if (!log_push(sender, log, payload, bytes)) {
            log->cursor = before;
            break;
        }
    }
    if (evq_ring_corrupt(log->ring) > 0) {
        evq_warn(&sender->warner, EVQ_WARN_CORRUPT, "a submit in '%s' is damaged and left out",
                 evq_ring_path(log->ring));
    }
}

bool evq_pending_has_later(struct evq_sender *sender, const struct evq_pending *item)
{
    for (size_t at = 0; at < sender->log_count; at++) {
        evq_pending_take(sender, &sender->logs[at]); // A submit may have arrived just now.
        bool is_later = false;                       // In the item's own ring, its order decides.
        for (const struct evq_pending *other = sender->logs[at].first; other != NULL;
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

bool evq_pending_release(struct evq_sender *sender, struct evq_submit_log *log)
{
    bool released = false;

    for (struct evq_pending *item = log->first; item != NULL; item = item->next) {
        if (item->done && !item->counted) {
            item->counted = true;
            atomic_fetch_sub(&sender->waiting, 1);
        }
    }
    while (log->first != NULL && log->first->done) {
        struct evq_pending *item = log->first;
        evq_ring_release(log->ring, item->end);
        log->first = item->next;
        if (log->first == NULL) {
            log->last = NULL;
        }
        item_free(item);
        released = true;
    }
    if (log->first == NULL && log->cursor > evq_ring_head(log->ring)) {
        evq_ring_release(log->ring, log->cursor); // Also releases torn records at the end.
        released = true;
    }
    return released;
}

uint64_t evq_pending_settled(const struct evq_submit_log *log)
{
    const struct evq_pending *item = log->first;
    uint64_t settled = evq_ring_head(log->ring);

    for (; item != NULL && (item->done || item->parked); item = item->next) {
        settled = item->end;
    }
    return item == NULL && log->cursor > settled ? log->cursor : settled;
}
