/*
 * Follows the results of one run, or of every run of the queue. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_INSPECT_FEED_H
#define EVQ_PRODUCER_CLI_INSPECT_FEED_H

#include "shared/queue/queue.h"

struct evq_feed;

/* Borrows queue. run NULL: follows every run, also those that appear later. Returns NULL if memory
 * runs out. */
struct evq_feed *evq_feed_new(struct evq_queue *queue, const char *run);
void evq_feed_free(struct evq_feed *feed); // Accepts NULL.

/*
 * Calls on_result with every result since the last poll. With on_result NULL, skips all results so
 * far and sets the baseline: evq_feed_counts() then leaves out the jobs that ended before it, and
 * the runs that have not changed since.
 */
enum evq_status evq_feed_poll(struct evq_feed *feed, evq_result_fn on_result, void *context,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Counts jobs by state: as of the last poll if every run is followed, else as of now. Counts only
 * runs that changed since the baseline, and only jobs that ended after it.
 */
enum evq_status evq_feed_counts(struct evq_feed *feed, struct evq_run_counts *ret_counts,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* The next run that changed since the baseline and that no earlier call returned. NULL: there is
 * none. Valid until the next poll. */
const char *evq_feed_next_run(struct evq_feed *feed);

#endif
