/*
 * Paths that one step after another is saved to: whether what lies there is the step's own. The
 * sender's thread.
 */
#ifndef EVQ_PRODUCER_REUSE_H
#define EVQ_PRODUCER_REUSE_H

#include "producer/client/sender.h"

enum evq_reuse {
    EVQ_REUSE_OWN,
    EVQ_REUSE_UNSETTLED, // It was written so lately that it may be a later step's: item->due_ms.
    EVQ_REUSE_EARLIER,   // It is still what was saved for the step before.
    EVQ_REUSE_LATER      // A later step was, or may have been, saved over it.
};

/*
 * Of the item's checkpoint at path, relative to root_fd, which was just read. held: of a copy that
 * is the step's own; this only remembers the path then. Sets item->reused.
 */
enum evq_reuse evq_reuse_look(struct evq_sender *sender, struct evq_item *item, int root_fd,
                              const char *path, bool held);

#endif
