/*
 * Lists the checkpoints of remote stores for the sender, without waiting for the store. The helper
 * (shared/remote/remote.h) makes one listing at a time, and the sender asks for it until it is
 * there. Only the sender's thread may call this.
 */
#ifndef EVQ_PRODUCER_CLIENT_REMOTE_LISTING_H
#define EVQ_PRODUCER_CLIENT_REMOTE_LISTING_H

#include "producer/client/locate.h"
#include "producer/client/sender.h"
#include "shared/remote/remote.h"

#define EVQ_REMOTE_LISTING_PAUSE_MS 20 // When to ask again for a listing that is not there yet.

/*
 * Returns the listing of the item's checkpoint, whose root is remote. EVQ_E_TIMEOUT: ask again in
 * EVQ_REMOTE_LISTING_PAUSE_MS. EVQ_E_GONE: the checkpoint does not exist. EVQ_E_IO: the store
 * failed; try again later. EVQ_E_UNSUPPORTED: this machine cannot list it, for example because a
 * package or credentials are missing. EVQ_E_INVALID, EVQ_E_NOMEM.
 */
enum evq_status evq_remote_listing_take(struct evq_sender *sender, const struct evq_pending *item,
                                        const struct evq_place *place,
                                        struct evq_remote_listing *ret_listing,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

#endif
