/*
 * Follows the results of one run, or of every run of the queue. One thread.
 */
#ifndef EVQ_CLI_FEED_H
#define EVQ_CLI_FEED_H

#include "shared/queue/queue.h"

struct evq_feed;

/* Borrows queue. run NULL: every run, also those that appear later. NULL when out of memory. */
struct evq_feed *evq_feed_new(struct evq_queue *queue, const char *run);
void evq_feed_free(struct evq_feed *feed); // Accepts NULL.

/*
 * Hands over everything that is new. on_result NULL: skips it, and makes what there is now the
 * baseline: runs in which nothing moves afterwards count for nothing.
 */
enum evq_status evq_feed_poll(struct evq_feed *feed, evq_result_fn on_result, void *context,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Jobs by state, as of the last poll when every run is followed, else as of now; of the runs in
 * which something moved since the baseline: open ones all, ended ones less those of the baseline.
 */
enum evq_status evq_feed_counts(struct evq_feed *feed, struct evq_run_counts *ret_counts,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* The next run in which something moved since the baseline and that no earlier call returned; NULL:
 * none. Valid until the next poll. */
const char *evq_feed_new_run(struct evq_feed *feed);

#endif
