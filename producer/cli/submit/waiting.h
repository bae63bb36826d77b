/*
 * Waits until jobs or runs have ended. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SUBMIT_WAITING_H
#define EVQ_PRODUCER_CLI_SUBMIT_WAITING_H

#include "producer/cli/cli.h"

/*
 * Waits until all jobs have ended and prints how each ended, with its metrics. Sets the exit code
 * EVQ_EXIT_JOB_FAILED if one did not end as done. EVQ_E_TIMEOUT: timeout_s (-1: none) passed.
 * EVQ_E_NOT_FOUND: a job does not exist.
 */
enum evq_status evq_waiting_jobs(struct evq_cli *cli, const char *const *ids, size_t id_count,
                                 int64_t timeout_s, struct evq_error *err) EVQ_CHECK_RESULT;

/* Waits for one job and prints only why it is blocked. EVQ_E_CONFLICT: it did not end as done.
 * Other errors are those of evq_waiting_jobs(). */
enum evq_status evq_waiting_one_job(struct evq_cli *cli, const char *id, int64_t timeout_s,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Like evq_waiting_jobs(), for all jobs of a run, without printing metrics. */
enum evq_status evq_waiting_run(struct evq_cli *cli, const char *run, int64_t timeout_s,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Opens the queue for a wait of at most *timeout_s (-1: no limit) and subtracts the time that Redis
 * needed to load its data. EVQ_E_TIMEOUT: Redis needed more.
 */
enum evq_status evq_waiting_open(struct evq_cli *cli, int64_t *timeout_s,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether to ask again after an error. looks: how many requests came before. An outage does not end
 * a wait, but a wait does not begin during an outage. */
bool evq_waiting_passes(enum evq_status status, uint32_t looks);

#endif
