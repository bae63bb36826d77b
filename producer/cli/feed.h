/*
 * Follows the results of one run, or of every run of the queue. One thread.
 */
#ifndef EVQ_CLI_FEED_H
#define EVQ_CLI_FEED_H

#include "shared/queue.h"

struct evq_feed;

/* Borrows queue. run NULL: every run, also those that appear later. NULL when out of memory. */
struct evq_feed *evq_feed_new(struct evq_queue *queue, const char *run);
void evq_feed_free(struct evq_feed *feed); // Accepts NULL.

/* Hands over everything that is new; on_result NULL skips it. */
enum evq_status evq_feed_poll(struct evq_feed *feed, evq_result_fn on_result, void *context,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Counts over the runs it follows. */
enum evq_status evq_feed_counts(struct evq_feed *feed, struct evq_run_counts *ret_counts,
                                struct evq_error *err) EVQ_CHECK_RESULT;

size_t evq_feed_run_count(const struct evq_feed *feed);
const char *evq_feed_run(const struct evq_feed *feed, size_t index); // In order of appearance.
/* Whether something of the index-th run was handed over, not skipped. */
bool evq_feed_run_active(const struct evq_feed *feed, size_t index);

#endif
