/*
 * Removes samples that nobody will ask for. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SAMPLES_SAMPLE_GC_H
#define EVQ_PRODUCER_CLI_SAMPLES_SAMPLE_GC_H

#include "producer/cli/cli.h"

/*
 * Removes temporary files of writers that were killed, and the samples of runs that the queue does
 * not know and that got no file for 90 days. The queue is open. *ret_removed counts files.
 */
enum evq_status evq_sample_gc(struct evq_cli *cli, int64_t *ret_removed,
                              struct evq_error *err) EVQ_CHECK_RESULT;

#endif
