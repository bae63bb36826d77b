/*
 * One named job queue in Redis over one connection. Not for sharing between threads: open one per
 * thread. docs/protocol.md describes job states, keys and functions. Most calls are one FCALL; some
 * pipeline several, and sink_read is an XREADGROUP. Each may be repeated with the same arguments
 * after EVQ_E_IO, EVQ_E_TIMEOUT or EVQ_E_RETRY: it takes effect once. Errors of all calls: EVQ_E_IO
 * and EVQ_E_TIMEOUT (the next call reconnects; also after a malformed reply), EVQ_E_RETRY (wait,
 * repeat), EVQ_E_AUTH, EVQ_E_VERSION, EVQ_E_STOPPED, EVQ_E_NOMEM. err may be NULL.
 */
#ifndef EVQ_SHARED_QUEUE_QUEUE_H
#define EVQ_SHARED_QUEUE_QUEUE_H

#include "shared/queue/job.h"
#include "shared/queue/result.h"
#include "shared/redis/conn.h"

#define EVQ_QUEUE_LEASE_MS        15000
#define EVQ_QUEUE_HEARTBEAT_MS    3000
#define EVQ_QUEUE_CLASSES_MAX     64
#define EVQ_QUEUE_PREFERRED_MAX   64
#define EVQ_QUEUE_BATCH_MAX       500
#define EVQ_QUEUE_COMPLETIONS_MAX 64
#define EVQ_QUEUE_TOKEN_BYTES_MAX 64

struct evq_queue;

/* Borrows conn, which must outlive the queue and must not be used otherwise. queue_name NULL:
 * "main". No I/O. */
enum evq_status evq_queue_open(struct evq_conn *conn, const char *queue_name,
                               struct evq_queue **ret_queue,
                               struct evq_error *err) EVQ_CHECK_RESULT;
void evq_queue_close(struct evq_queue *queue); // Accepts NULL; leaves conn open.
const char *evq_queue_name(const struct evq_queue *queue);
const char *evq_queue_prefix(const struct evq_queue *queue);

struct evq_queue_info {
    int64_t build;
    // Random, made with the keyspace; with sentinels, ".N" for the failover is appended. Another
    // epoch means FLUSHALL or a failover.
    char epoch[48];
    int64_t now_ms;   // Server time.
    int64_t lease_ms; // What the queue is configured for.
    int64_t heartbeat_ms;
};
/* Also checks the version of the function library (EVQ_E_VERSION says what to do). */
enum evq_status evq_queue_info(struct evq_queue *queue, struct evq_queue_info *ret_info,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- submitting ---- */

enum evq_submit_answer {
    EVQ_SUBMIT_QUEUED,    // New.
    EVQ_SUBMIT_DUPLICATE, // Same id and fingerprint: nothing changed; state says where it is.
    EVQ_SUBMIT_REPLACED,  // A waiting job took the new record.
    EVQ_SUBMIT_FOLLOWED, // The earlier job runs or ended with other weights. The new id ends in ~N.
    EVQ_SUBMIT_SKIPPED   // A newer step of the flow exists already (policy latest).
};
struct evq_submitted {
    enum evq_submit_answer answer;
    enum evq_job_state state;
    char id[EVQ_JOB_ID_BYTES_MAX];
    char reason[128]; // Of skipped: "every" (not due, no job was made) or why; else "".
};
/* EVQ_E_INVALID: refused, with the reason. delay_ms >= 0. */
enum evq_status evq_queue_submit(struct evq_queue *queue, const struct evq_job *job,
                                 int64_t delay_ms, struct evq_submitted *ret_submitted,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Submits up to EVQ_QUEUE_BATCH_MAX jobs in one call. ret_statuses gets each job's status, and err
 * the first reason of a refusal, also on EVQ_OK. With ret_statuses NULL the first refusal is the
 * returned status, although the other jobs are submitted.
 */
enum evq_status evq_queue_submit_batch(struct evq_queue *queue, const struct evq_job *const *jobs,
                                       size_t job_count, struct evq_submitted *ret_submitted,
                                       enum evq_status *ret_statuses,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- working ---- */

struct evq_class {
    uint32_t number; // 1 to EVQ_QUEUE_CLASSES_MAX.
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    char needs[256]; // Canonical text.
};
/* Reads all classes of the queue; ret_classes has room for EVQ_QUEUE_CLASSES_MAX. */
enum evq_status evq_queue_classes(struct evq_queue *queue, struct evq_class *ret_classes,
                                  uint32_t *ret_count, int64_t *ret_version,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_claim { // What one attempt holds. Owned by the caller: evq_claim_free().
    char id[EVQ_JOB_ID_BYTES_MAX];
    char token[EVQ_QUEUE_TOKEN_BYTES_MAX];
    struct evq_job *job; // NULL: the record was malformed; fail it as fatal with `record_error`.
    char record_error[256];
    int32_t attempt;     // From 1.
    int32_t shard;       // -1: not a shard.
    int32_t shard_count; // 0: not a shard.
    bool merge; // All shards are complete: add their parts (evq_queue_shard_parts) and complete.
    bool alone; // It crashed workers before: run nothing else at the same time.
    int64_t queued_ms; // Time from submit to this claim.
    char **tasks_done; // Tasks already published by an earlier attempt.
    size_t task_done_count;
};
void evq_claim_free(struct evq_claim *claim); // Accepts NULL.

struct evq_claim_request {
    const char *worker; // Random id of this supervisor process.
    // New for each claim; the same again returns the same claims that are still valid.
    const char *request;
    int64_t lease_ms;
    uint32_t claims_max; // 1 to 64.
    // Room of ret_claims if larger: a repeated request returns all claims that it returned before,
    // however few are wanted now.
    uint32_t claims_room;
    const uint32_t *classes; // Class numbers that fit, in any order.
    uint32_t class_count;
    // Ids of jobs to take first, as long as that is fair to other runs. At most
    // EVQ_QUEUE_PREFERRED_MAX.
    char (*preferred)[EVQ_JOB_ID_BYTES_MAX];
    uint32_t preferred_count;
};
struct evq_claimed {
    uint32_t count;
    int64_t classes_version; // Differs from the caller's: ask evq_queue_classes() again.
    int64_t due_ms;          // Milliseconds until a delayed job is due; -1: none is.
    int64_t now_ms;
};
/* Claims up to claims_max jobs. ret_claims has room for claims_max pointers, or claims_room; the
 * first ret_claimed->count are set. Never waits. */
enum evq_status evq_queue_claim(struct evq_queue *queue, const struct evq_claim_request *request,
                                struct evq_claim **ret_claims, struct evq_claimed *ret_claimed,
                                struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_beat_answer { EVQ_BEAT_OK, EVQ_BEAT_CANCEL, EVQ_BEAT_STALE };
struct evq_beat {
    const char *id;
    const char *token;
    int64_t done;       // Progress, in samples; -1 unknown.
    int64_t total;      // -1 unknown.
    const char *status; // Short text for people, <= 64 bytes: "load", "compute", tail of a log. May
                        // be NULL.
    enum evq_beat_answer answer; // Set on EVQ_OK.
};
/* Renews leases and reports progress. worker_json is what `evalq status` shows of this worker
 * (host, pid, slots, suites, labels, backend, version), at most 8 KiB. */
enum evq_status evq_queue_heartbeat(struct evq_queue *queue, const char *worker,
                                    const char *worker_json, int64_t lease_ms,
                                    struct evq_beat *beats, size_t beat_count,
                                    int64_t *ret_classes_version,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Removes the worker's record. Its jobs must have been completed or released. */
enum evq_status evq_queue_worker_leave(struct evq_queue *queue, const char *worker,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- the GPUs of a machine, shared out between its workers ---- */

#define EVQ_QUEUE_GPUS_MAX 64

struct evq_gpu_lease {
    char uuid[64];  // As the driver names it.
    char token[24]; // "": not held.
};
struct evq_gpu_request {
    const char *worker; // Random id of this supervisor process.
    const char *boot;   // Identifies the machine since its last start.
    int64_t lease_ms;
    uint32_t want;    // How many GPUs in all, at most EVQ_QUEUE_GPUS_MAX.
    uint32_t several; // Takes at least this many at once; 1 or more.
};
/*
 * Shares a machine's GPUs between its workers: renews the ones held, takes free ones up to want,
 * and frees held ones that gpus does not list. Sets every token; "": the GPU is not held, or no
 * longer. May be repeated.
 */
enum evq_status evq_queue_gpus_lease(struct evq_queue *queue, const struct evq_gpu_request *request,
                                     struct evq_gpu_lease *gpus, uint32_t gpu_count,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* The verbs below are fenced by the token: EVQ_E_LEASE_LOST if it is stale. */

/* Publishes one task's result once; *ret_duplicate: it was published before. EVQ_E_CHANGED: weights
 * or suite differ from the first publish, and the job has ended as skipped. */
enum evq_status evq_queue_publish(struct evq_queue *queue, const char *id, const char *token,
                                  const struct evq_result *result, bool *ret_duplicate,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
struct evq_publication {
    const char *id;
    const char *token;
    const struct evq_result *result;
    enum evq_status status; // Set: as evq_queue_publish() returns it.
    struct evq_error error; // Set if status is not EVQ_OK.
};
/*
 * Publishes several results. All are sent before the first reply is read, so they share one round
 * trip and one sync of Redis' file. EVQ_OK: each has its own status. Any other status is an outage;
 * all may be repeated.
 */
enum evq_status evq_queue_publish_many(struct evq_queue *queue,
                                       struct evq_publication *publications, size_t count,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
/* Completes a shard with its part: the encoded sums of all its tasks (opaque to Redis, at most 64
 * KiB). */
enum evq_status evq_queue_complete_shard(struct evq_queue *queue, const char *id, const char *token,
                                         const void *part, size_t part_bytes,
                                         struct evq_error *err) EVQ_CHECK_RESULT;
/* Repeating it after success is EVQ_OK. */
enum evq_status evq_queue_complete(struct evq_queue *queue, const char *id, const char *token,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
struct evq_completion {
    const char *id;
    const char *token;
    enum evq_status status; // Set on EVQ_OK: EVQ_OK, EVQ_E_LEASE_LOST, or EVQ_E_CORRUPT.
};
/* Completes up to EVQ_QUEUE_COMPLETIONS_MAX jobs (no shards) in one call. err keeps the first
 * reason of a job that was not completed, also on EVQ_OK. */
enum evq_status evq_queue_complete_many(struct evq_queue *queue, struct evq_completion *completions,
                                        size_t count, struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * complete_many and then claim, sent together. *ret_completed is complete_many's status, the
 * returned status is claim's; err belongs to the first that failed. If nothing could be sent,
 * *ret_completed is unchanged.
 */
enum evq_status evq_queue_complete_many_and_claim(struct evq_queue *queue,
                                                  struct evq_completion *completions, size_t count,
                                                  const struct evq_claim_request *request,
                                                  enum evq_status *ret_completed,
                                                  struct evq_claim **ret_claims,
                                                  struct evq_claimed *ret_claimed,
                                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* complete, then claim, in one call. *ret_status is complete's own (EVQ_OK or EVQ_E_LEASE_LOST). */
enum evq_status
evq_queue_complete_and_claim(struct evq_queue *queue, const char *id, const char *token,
                             const struct evq_claim_request *request, enum evq_status *ret_status,
                             struct evq_claim **ret_claims, struct evq_claimed *ret_claimed,
                             struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_fail_kind {
    EVQ_FAIL_RETRY,     // May succeed later: delayed, or dead when attempts are used up.
    EVQ_FAIL_FATAL,     // Cannot succeed: dead.
    EVQ_FAIL_CRASH,     // The child died; counts a crash of this worker.
    EVQ_FAIL_TIMEOUT,   // The time limit.
    EVQ_FAIL_VANISHED,  // The checkpoint is gone: skipped.
    EVQ_FAIL_CHANGED,   // The checkpoint changed: skipped.
    EVQ_FAIL_INCOMPLETE // Not completely written yet: delayed, uncharged, up to a bound.
};
/* reason: one sentence, cut at 64 bytes for the hash. detail: exit status, end of stderr and so on,
 * at most 8 KiB. */
enum evq_status evq_queue_fail(struct evq_queue *queue, const char *id, const char *token,
                               enum evq_fail_kind kind, const char *reason, const char *detail,
                               enum evq_job_state *ret_state,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Returns the job to its place in the queue and refunds the attempt. */
enum evq_status evq_queue_release(struct evq_queue *queue, const char *id, const char *token,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* The claimed job becomes shard_count shard jobs (2 to 1024); the claimer's attempt on it ends
 * uncharged. */
enum evq_status evq_queue_split(struct evq_queue *queue, const char *id, const char *token,
                                uint32_t shard_count, struct evq_error *err) EVQ_CHECK_RESULT;
/* Reads all parts of a job in shard order. *ret_reply is an array of shard_count strings; free it
 * with evq_reply_free(). */
enum evq_status evq_queue_shard_parts(struct evq_queue *queue, const char *id, const char *token,
                                      struct evq_reply **ret_reply,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* After a new epoch: restores a running job that Redis forgot. EVQ_E_LEASE_LOST: another attempt
 * holds it. */
enum evq_status evq_queue_adopt(struct evq_queue *queue, const char *worker,
                                const struct evq_claim *claim, int64_t lease_ms,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * A suite that a worker offers. EVQ_E_CONFLICT: another definition has this name; the message names
 * both places. replace: an operator replaces the other definition. *ret_class: number of the
 * suite's own class.
 */
struct evq_suite_offer {
    const char *name;
    const char *digest;     // 32 hex digits of the canonical definition.
    const char *needs;      // Canonical text.
    uint32_t shards;        // 1: not sharded.
    int64_t every;          // Evaluate only steps divisible by it; 1: all.
    const char *definition; // JSON for people, <= 16 KiB.
    const char *where;      // "host:/etc/evalq/evalq.yaml"
};
enum evq_status evq_queue_suite_register(struct evq_queue *queue,
                                         const struct evq_suite_offer *offer, bool replace,
                                         uint32_t *ret_class,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- free workers ---- */

/*
 * Finds out for which of 1 to 64 suites an idle worker is free: bit i of *ret_free for suites[i]. A
 * free worker is reported to only one caller, until it says again that it is free. needs NULL: the
 * suites' own; else canonical text (evq_needs_text()). No bit is set while the run is paused or at
 * its cap.
 */
enum evq_status evq_queue_free_workers_take(struct evq_queue *queue, const char *run,
                                            const char *needs, const char *const *suites,
                                            uint32_t suite_count, uint64_t *ret_free,
                                            struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- operating ---- */

enum evq_status evq_queue_cancel(struct evq_queue *queue, const char *id, const char *reason,
                                 enum evq_job_state *ret_state,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* The same for a job that no worker has begun: it ends as skipped. A running job is left alone, and
 * *ret_state is EVQ_JOB_RUNNING. */
enum evq_status evq_queue_withdraw(struct evq_queue *queue, const char *id, const char *reason,
                                   enum evq_job_state *ret_state,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Queues an ended job again. EVQ_E_CONFLICT: the job did not end without a result. If an earlier
 * retry has not ended, or the same request (at most 40 bytes; "": none) is repeated, *ret_id is the
 * job of that retry.
 */
enum evq_status evq_queue_retry(struct evq_queue *queue, const char *id, const char *request,
                                char ret_id[EVQ_JOB_ID_BYTES_MAX],
                                struct evq_error *err) EVQ_CHECK_RESULT;
struct evq_job_change { // One job of many.
    const char *id;
    enum evq_status status;         // Set to what the verb for one job returns.
    struct evq_error error;         // Its message.
    enum evq_job_state state;       // On EVQ_OK: the job's state after.
    char now[EVQ_JOB_ID_BYTES_MAX]; // The id of that job.
};
/*
 * Cancels or retries many jobs. Each is its own call, and all are sent before the first reply is
 * read, so that Redis does nothing long; a caller with thousands passes EVQ_QUEUE_CHANGES at a
 * time. May be repeated.
 */
#define EVQ_QUEUE_CHANGES 64
void evq_queue_cancel_many(struct evq_queue *queue, struct evq_job_change *changes, size_t count,
                           const char *reason);
void evq_queue_retry_many(struct evq_queue *queue, struct evq_job_change *changes, size_t count);
enum evq_pause_kind { EVQ_PAUSE_QUEUE, EVQ_PAUSE_SUITE, EVQ_PAUSE_RUN };
enum evq_status evq_queue_pause(struct evq_queue *queue, enum evq_pause_kind kind, const char *name,
                                bool paused, struct evq_error *err) EVQ_CHECK_RESULT;
/* Caps on running jobs (limit 0: none) and weight of a run (percent, 100: normal). kind: "cap_run",
 * "cap_suite", "weight". */
enum evq_status evq_queue_limit(struct evq_queue *queue, const char *kind, const char *name,
                                int64_t value, struct evq_error *err) EVQ_CHECK_RESULT;
/* Deletes everything of a run in slices of 100: jobs, results, flows. Call until *ret_left is 0.
 * EVQ_E_CONFLICT: jobs of the run are running. */
enum evq_status evq_queue_forget(struct evq_queue *queue, const char *run, int64_t *ret_left,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Deletes one slice of ended jobs that are too old or too many. Heartbeats do the same. */
enum evq_status evq_queue_gc(struct evq_queue *queue, int64_t *ret_removed,
                             struct evq_error *err) EVQ_CHECK_RESULT;
/* Stores bytes that are not a record in the bad stream, with a reason. */
enum evq_status evq_queue_quarantine(struct evq_queue *queue, const void *data, size_t bytes,
                                     const char *reason, struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Views, as JSON text in *ret_json that the caller frees with free(). Shapes: docs/protocol.md.
 *
 *   stats  totals, counts per class, oldest waiting, workers, suites, sinks, pauses, losses
 *   show   one job: hash, record, why it waits, detail, published tasks
 *   jobs   of one state (or "bad"), newest first, from cursor
 *   runs   known runs with counts and last submit, newest first, a thousand from cursor ("" first)
 */
enum evq_status evq_queue_stats(struct evq_queue *queue, char **ret_json,
                                struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_queue_show(struct evq_queue *queue, const char *id, char **ret_json,
                               struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_queue_jobs(struct evq_queue *queue, const char *state, const char *run,
                               const char *cursor, uint32_t count, char **ret_json,
                               struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_queue_runs(struct evq_queue *queue, const char *cursor, char **ret_json,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- results ---- */

/*
 * Reads results and ends of one run in the order of publication, from *cursor (0: the first), at
 * most 100. Calls on_result for each, which must not keep the pointer. *cursor also moves past
 * deleted results: you are at the end when it stops moving, not when on_result was not called.
 */
typedef void (*evq_result_fn)(void *context, const struct evq_result *result);
enum evq_status evq_queue_run_results(struct evq_queue *queue, const char *run, int64_t *cursor,
                                      evq_result_fn on_result, void *context,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* Counts of a run's jobs by state; `open` is queued + delayed + running. */
struct evq_run_counts {
    int64_t by_state[EVQ_JOB_STATE_COUNT];
    int64_t open;
};
enum evq_status evq_queue_run_counts(struct evq_queue *queue, const char *run,
                                     struct evq_run_counts *ret_counts,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
int64_t evq_run_counts_total(const struct evq_run_counts *counts); // Of any state; 0: no such run.
/* Returns the smallest open step of one flow (run, variant, suite); -1: none. A sink may wait for
 * it. */
enum evq_status evq_queue_smallest_open_step(struct evq_queue *queue, const char *run,
                                             const char *variant, const char *suite,
                                             int64_t *ret_step,
                                             struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- sinks (the logger) ---- */

/* Registers the sink and makes its consumer group, from the first entry if it is new. May be
 * repeated. */
enum evq_status evq_queue_sink_open(struct evq_queue *queue, const char *sink,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
#define EVQ_SINK_PLACE_BYTES_MAX 513
/*
 * Says that a logger serves the sink: its id, new with each start, and where it writes, for people.
 * ret_other: the place of the last other logger that served this sink; "" if there is none. Two
 * loggers that see each other share the sink. EVQ_E_NOT_FOUND: not registered.
 */
enum evq_status evq_queue_sink_serve(struct evq_queue *queue, const char *sink, const char *logger,
                                     const char *place, char ret_other[EVQ_SINK_PLACE_BYTES_MAX],
                                     struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_entry { // One entry of the results stream.
    char id[32];   // Stream id.
    // NULL: malformed or trimmed, already quarantined and acknowledged; or the end of a job, if
    // ends were not requested.
    struct evq_result *result;
};
/*
 * Reads up to entries_max entries for this sink: first those delivered before but not acknowledged
 * (behind: id of the last one that the caller has, "0" first, until none comes), then new ones
 * (behind NULL), waiting up to timeout_ms. ends: also read the ends of jobs; otherwise they come
 * without a result. The caller frees each result. EVQ_E_NOT_FOUND: the group is gone (new epoch),
 * so call sink_open again.
 */
enum evq_status evq_queue_sink_read(struct evq_queue *queue, const char *sink, const char *behind,
                                    bool ends, int64_t timeout_ms, struct evq_entry *ret_entries,
                                    uint32_t entries_max, uint32_t *ret_count,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Acknowledges entries, records lag and last error ("" clears it), and trims what every registered
 * sink has acknowledged. */
enum evq_status evq_queue_sink_ack(struct evq_queue *queue, const char *sink,
                                   const struct evq_entry *entries, uint32_t entry_count,
                                   const char *last_error, struct evq_error *err) EVQ_CHECK_RESULT;
/* Resets the group, so that everything in the stream is delivered again. */
enum evq_status evq_queue_sink_replay(struct evq_queue *queue, const char *sink,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Publishes results of run again that were published from from_ms to to_ms (server unix ms), for
 * sinks that lost them. Other sinks recognise their ids. One slice of 100 from *cursor (0: the
 * first), which moves on; *ret_more is false at the end; *ret_count: how many were published.
 */
enum evq_status evq_queue_republish(struct evq_queue *queue, const char *run, int64_t from_ms,
                                    int64_t to_ms, int64_t *cursor, int64_t *ret_count,
                                    bool *ret_more, struct evq_error *err) EVQ_CHECK_RESULT;
/* Deletes the losses recorded for a sink after they were repeated. */
enum evq_status evq_queue_loss_forget(struct evq_queue *queue, const char *sink,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* The best checkpoint of a run by a metric, kept in Redis. The caller decides which is best. The
 * value is sent as text with 17 digits. */
struct evq_best {
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    char metric[256];
    double value;
    int64_t step;
    char job[EVQ_JOB_ID_BYTES_MAX];
    char checkpoint[1024];
};
enum evq_status evq_queue_best_put(struct evq_queue *queue, const struct evq_best *best,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
/* EVQ_E_NOT_FOUND: no result yet. metric NULL or "": the run's first metric by name. */
enum evq_status evq_queue_best_get(struct evq_queue *queue, const char *run, const char *metric,
                                   struct evq_best *ret_best,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * The same for people. metric may be a part of a name between slashes, such as accuracy, if only
 * one of the run's metrics has it. EVQ_E_NOT_FOUND: *err says whether run, sink, result or metric
 * is missing, and which metrics there are.
 */
enum evq_status evq_queue_best_find(struct evq_queue *queue, const char *run, const char *metric,
                                    struct evq_best *ret_best,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

#endif
