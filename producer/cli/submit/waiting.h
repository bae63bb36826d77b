/*
 * Waiting for jobs or runs to end. One thread.
 */
#ifndef EVQ_CLI_WAITING_H
#define EVQ_CLI_WAITING_H

#include "producer/cli/cli.h"

/*
 * Until all jobs have ended, or timeout_s (-1: for ever): EVQ_E_TIMEOUT. Prints how each ended and
 * its metrics. Sets the exit code EVQ_EXIT_JOB_FAILED when one did not end as done.
 * EVQ_E_NOT_FOUND: a job is not there.
 */
enum evq_status evq_waiting_jobs(struct evq_cli *cli, const char *const *ids, size_t id_count,
                                 int64_t timeout_s, struct evq_error *err) EVQ_CHECK_RESULT;

/* The same for all jobs of a run, without printing metrics. */
enum evq_status evq_waiting_run(struct evq_cli *cli, const char *run, int64_t timeout_s,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Opens the queue for a wait of at most *timeout_s (-1: for ever), from which the time is taken
 * that Redis needed to load its data. EVQ_E_TIMEOUT: it needed more.
 */
enum evq_status evq_waiting_open(struct evq_cli *cli, int64_t *timeout_s,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether an error of look number `looks` (from 0) is worth another: an outage does not end a wait,
 * but none begins with one. */
bool evq_waiting_passes(enum evq_status status, uint32_t looks);

#endif
