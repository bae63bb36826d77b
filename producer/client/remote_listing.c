#include "producer/client/remote_listing.h"

#include <stdio.h>

#include "shared/base/clock.h"

/* Asks the helper for the item's listing. */
static enum evq_status listing_begin(struct evq_sender *sender, const struct evq_pending *item,
                                     const struct evq_place *place, struct evq_error *err)
{
    char key[EVQ_JOB_NAME_BYTES_MAX + 1 + PATH_MAX];
    enum evq_status status = EVQ_OK;

    (void)snprintf(key, sizeof(key), "%s:%s", place->root->name, place->path);
    if (sender->remote == NULL) {
        status = evq_remote_open(sender->config->worker.python, &sender->remote, err);
    }
    if (status == EVQ_OK) {
        status = evq_remote_list_begin(sender->remote, place->real, key, err);
    }
    if (status == EVQ_OK) {
        sender->listed = item;
        sender->listed_ms = evq_clock_mono_ms() + EVQ_REMOTE_LIST_MS;
    }
    return status;
}

enum evq_status evq_remote_listing_take(struct evq_sender *sender, const struct evq_pending *item,
                                        const struct evq_place *place,
                                        struct evq_remote_listing *ret_listing,
                                        struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (sender->listed != NULL && sender->listed != item) {
        return EVQ_E_TIMEOUT; // The helper is making another listing.
    }
    if (sender->listed == NULL) {
        status = listing_begin(sender, item, place, err);
    }
    if (status == EVQ_OK) {
        status = evq_remote_list_next(sender->remote, 0, ret_listing, err);
        if (status == EVQ_E_TIMEOUT && evq_clock_left_ms(sender->listed_ms) > 0) {
            return status;
        }
    }
    sender->listed = NULL;
    const bool failed = status == EVQ_E_RETRY || status == EVQ_E_TIMEOUT;
    // The helper needs memory, so it ends if there is nothing to list.
    if (failed || status == EVQ_E_INCOMPLETE || item->next == NULL) {
        evq_remote_close(sender->remote);
        sender->remote = NULL;
    }
    if (status == EVQ_OK || status == EVQ_E_NOMEM) {
        return status;
    }
    status = failed ? EVQ_E_IO : status == EVQ_E_INCOMPLETE ? EVQ_E_UNSUPPORTED : status;
    err->status = status;
    return status;
}
