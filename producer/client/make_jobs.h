/*
 * Makes the jobs of one submit: one for each suite that it names. The sender's thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_MAKE_JOBS_H
#define EVQ_PRODUCER_CLIENT_MAKE_JOBS_H

#include "producer/client/locate.h"
#include "producer/client/sender.h"

/*
 * Fills item->jobs, which the item owns. fingerprint: "" if it is not known; manifest: the list of
 * files, or "". False: there is no memory, and the item has no jobs.
 */
bool evq_jobs_make(const struct evq_sender *sender, struct evq_pending *item,
                   const struct evq_place *place, const char *fingerprint, const char *manifest);
void evq_jobs_free(struct evq_pending *item);

#endif
