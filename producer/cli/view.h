/*
 * Fetches and parses the queue's JSON views. The caller calls json_decref() on them. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_VIEW_H
#define EVQ_PRODUCER_CLI_VIEW_H

#include "producer/cli/json.h"

enum evq_status evq_view_stats(struct evq_cli *cli, json_t **ret,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* EVQ_E_NOT_FOUND: no such job. */
enum evq_status evq_view_job(struct evq_cli *cli, const char *id, json_t **ret,
                             struct evq_error *err) EVQ_CHECK_RESULT;
/* The short fields of a job (state, reason, worker, ...) within a view from evq_view_job(). */
const json_t *evq_view_fields(const json_t *job);
/* Room for the longest cause, escaped. */
#define EVQ_VIEW_CAUSE_BYTES 2048
/* Writes why the job of a view from evq_view_job() is in its state: its reason, or, if the queue
 * cut that, the whole first line of its detail. Control bytes are escaped. Returns out. */
char *evq_view_cause(const json_t *job, char *out, size_t out_bytes);
/* Like evq_view_cause(), for a job by its id. Writes `reason` if the queue does not answer. */
char *evq_view_cause_of(struct evq_cli *cli, const char *id, const char *reason, char *out,
                        size_t out_bytes);
/* Replaces in an array of jobs each "reason" that the queue may have cut by the whole one. Asks the
 * queue for each such job, so the array should be short enough for a person to read. */
void evq_view_causes(struct evq_cli *cli, json_t *jobs);

/*
 * Appends at most count jobs of one state to the array *ret, newest first. run "": of any run.
 */
enum evq_status evq_view_jobs(struct evq_cli *cli, const char *state, const char *run, size_t count,
                              json_t **ret, struct evq_error *err) EVQ_CHECK_RESULT;
/* Appends the ids of all jobs of one state, as strings. run "": of any run. */
enum evq_status evq_view_ids(struct evq_cli *cli, const char *state, const char *run, json_t **ret,
                             struct evq_error *err) EVQ_CHECK_RESULT;

/* Called with each run of the queue. Anything but EVQ_OK ends the walk. */
typedef enum evq_status (*evq_view_run_fn)(void *context, const char *run, struct evq_error *err);
enum evq_status evq_view_each_run(struct evq_cli *cli, evq_view_run_fn on_run, void *context,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
