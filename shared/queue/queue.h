/*
 * One named job queue in Redis, seen through one connection. Not for sharing: open one per thread.
 * Job states and their arrows, keys and functions: docs/protocol.md. Every verb is one FCALL and
 * may be repeated after EVQ_E_IO, EVQ_E_TIMEOUT or EVQ_E_RETRY with the same arguments: its effect
 * is had once. Errors common to all verbs: EVQ_E_IO and EVQ_E_TIMEOUT (the next call reconnects; so
 * after a reply out of shape), EVQ_E_RETRY (wait, repeat), EVQ_E_AUTH, EVQ_E_VERSION,
 * EVQ_E_STOPPED, EVQ_E_NOMEM. err may be NULL.
 */
#ifndef EVQ_SHARED_QUEUE_H
#define EVQ_SHARED_QUEUE_H

#include "shared/queue/job.h"
#include "shared/queue/result.h"
#include "shared/redis/conn.h"

#define EVQ_QUEUE_LEASE_MS        15000
#define EVQ_QUEUE_HEARTBEAT_MS    3000
#define EVQ_QUEUE_CLASSES_MAX     64
#define EVQ_QUEUE_BATCH_MAX       500
#define EVQ_QUEUE_COMPLETIONS_MAX 64
#define EVQ_QUEUE_TOKEN_BYTES_MAX 64

struct evq_queue;

/* Borrows conn, which must outlive the queue and serve nothing else meanwhile. queue_name NULL:
 * "main". No I/O. */
enum evq_status evq_queue_open(struct evq_conn *conn, const char *queue_name,
                               struct evq_queue **ret_queue,
                               struct evq_error *err) EVQ_CHECK_RESULT;
void evq_queue_close(struct evq_queue *queue); // Accepts NULL; leaves conn open.
const char *evq_queue_name(const struct evq_queue *queue);
const char *evq_queue_prefix(const struct evq_queue *queue);

struct evq_queue_info {
    int64_t build;
    char epoch[48];   // Random, made with the keyspace, with ".N" behind it where sentinels say
                      // which failover it is: another one means FLUSHALL or failover.
    int64_t now_ms;   // Server time.
    int64_t lease_ms; // What the queue is configured for.
    int64_t heartbeat_ms;
};
/* Checks the function library's version too (EVQ_E_VERSION says what to do). */
enum evq_status evq_queue_info(struct evq_queue *queue, struct evq_queue_info *ret_info,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- submitting ---- */

enum evq_submit_answer {
    EVQ_SUBMIT_QUEUED,    // New.
    EVQ_SUBMIT_DUPLICATE, // Same id and fingerprint: nothing changed; state says where it is.
    EVQ_SUBMIT_REPLACED,  // A waiting job took the new record.
    EVQ_SUBMIT_FOLLOWED,  // The earlier one runs or ended with other weights: id ends in ~N.
    EVQ_SUBMIT_SKIPPED    // Superseded at once: a newer step of the flow is there (policy latest).
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
 * Up to EVQ_QUEUE_BATCH_MAX in one call. ret_statuses gives each job's own status, err the first
 * reason of those refused, also on EVQ_OK; with ret_statuses NULL the first refusal is the status,
 * though the other jobs are in.
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
/* All classes of the queue; ret_classes has room for EVQ_QUEUE_CLASSES_MAX. */
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
    bool merge;          // Shards are complete: add them up (evq_queue_shard_parts) and complete.
    bool alone;          // Crashed workers before: run it with nothing beside it.
    int64_t queued_ms;   // Time from submit to this claim.
    char **tasks_done;   // Tasks already published by an earlier attempt.
    size_t task_done_count;
};
void evq_claim_free(struct evq_claim *claim); // Accepts NULL.

struct evq_claim_request {
    const char *worker; // Random id of this supervisor process.
    // New for each claim; the same again returns the same claims that are still valid.
    const char *request;
    int64_t lease_ms;
    uint32_t claims_max;     // 1 to 64.
    uint32_t claims_room;    // Of ret_claims, where that is more: a request that is repeated gives
                             // all that it gave before, however few are wanted by now.
    const uint32_t *classes; // Class numbers that fit, in any order.
    uint32_t class_count;
};
struct evq_claimed {
    uint32_t count;
    int64_t classes_version; // Differs from the caller's: ask evq_queue_classes() again.
    int64_t due_ms;          // Milliseconds until something delayed falls due; -1: nothing is.
    int64_t now_ms;
};
/* ret_claims has room for claims_max pointers, or claims_room; the first ret_claimed->count are
 * set. Never waits.
 */
enum evq_status evq_queue_claim(struct evq_queue *queue, const struct evq_claim_request *request,
                                struct evq_claim **ret_claims, struct evq_claimed *ret_claimed,
                                struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_next_job {
    struct evq_job *job; // NULL: there is none, or its order is not known yet. evq_job_free().
    char id[EVQ_JOB_ID_BYTES_MAX];
    int64_t running; // Attempts of these classes, by all workers.
};
/*
 * The job that a claim of these classes would get now, held for nobody: another may claim it before
 * the caller does. Writes nothing, never waits.
 */
enum evq_status evq_queue_next_job(struct evq_queue *queue, const uint32_t *classes,
                                   uint32_t class_count, struct evq_next_job *ret_next,
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
/* worker_json: what `evalq status` shows of this worker (host, pid, slots, suites, labels, backend,
 * version), <= 8 KiB. */
enum evq_status evq_queue_heartbeat(struct evq_queue *queue, const char *worker,
                                    const char *worker_json, int64_t lease_ms,
                                    struct evq_beat *beats, size_t beat_count,
                                    int64_t *ret_classes_version,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* An orderly goodbye: the worker's record goes. Its jobs must have been completed or released. */
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
    const char *boot;   // Of the machine: new at each of its starts.
    int64_t lease_ms;
    uint32_t want;    // How many in all, at most EVQ_QUEUE_GPUS_MAX.
    uint32_t several; // It takes no fewer at once; 1 or more.
};
/* Renews what is held, takes what is free up to want, frees what it holds and does not name. Sets
 * every token anew: "" says that the GPU is not held, or no longer. May be repeated. */
enum evq_status evq_queue_gpus(struct evq_queue *queue, const struct evq_gpu_request *request,
                               struct evq_gpu_lease *gpus, uint32_t gpu_count,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Every one of these is fenced by the token: EVQ_E_LEASE_LOST when it is stale. */

/* One task's result, once: *ret_duplicate true if the task had been published. EVQ_E_CHANGED: other
 * weights or suite than the first publish; the job has ended as skipped. */
enum evq_status evq_queue_publish(struct evq_queue *queue, const char *id, const char *token,
                                  const struct evq_result *result, bool *ret_duplicate,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
struct evq_publication {
    const char *id;
    const char *token;
    const struct evq_result *result;
    enum evq_status status; // Set: as evq_queue_publish() returns it.
    struct evq_error error; // Of a status that is not EVQ_OK.
};
/*
 * Several publishes, all sent before the first answer is waited for: they share one round trip, and
 * one sync of Redis's file. EVQ_OK: each has its own status. Else the status is one that passes;
 * all may be repeated.
 */
enum evq_status evq_queue_publish_many(struct evq_queue *queue,
                                       struct evq_publication *publications, size_t count,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
/* A shard hands in its part: the encoded sums of all its tasks (opaque to Redis, <= 64 KiB); it
 * completes with it. */
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
/* Up to EVQ_QUEUE_COMPLETIONS_MAX jobs, no shards, in one call; err keeps the first reason of those
 * that were not completed, also on EVQ_OK. */
enum evq_status evq_queue_complete_many(struct evq_queue *queue, struct evq_completion *completions,
                                        size_t count, struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * complete_many and then claim, both sent before an answer is waited for. *ret_completed is
 * complete_many's status, the returned one claim's; err is of the first that is not EVQ_OK. Where
 * the words could not be sent at all, *ret_completed is left as it was.
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
/* reason: one sentence, cut at 64 bytes for the hash; detail: everything worth keeping (exit
 * status, stderr tail), <= 8 KiB. */
enum evq_status evq_queue_fail(struct evq_queue *queue, const char *id, const char *token,
                               enum evq_fail_kind kind, const char *reason, const char *detail,
                               enum evq_job_state *ret_state,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Back to its place, the attempt refunded. */
enum evq_status evq_queue_release(struct evq_queue *queue, const char *id, const char *token,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* The claimed job becomes shard_count shard jobs (2 to 1024); the claimer's attempt on it ends
 * uncharged. */
enum evq_status evq_queue_split(struct evq_queue *queue, const char *id, const char *token,
                                uint32_t shard_count, struct evq_error *err) EVQ_CHECK_RESULT;
/* All parts of a job in shard order; the caller frees *ret_reply, an array of shard_count strings,
 * by evq_reply_free(). */
enum evq_status evq_queue_shard_parts(struct evq_queue *queue, const char *id, const char *token,
                                      struct evq_reply **ret_reply,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* After a new epoch: puts a running job back that Redis forgot. EVQ_E_LEASE_LOST if another attempt
 * holds it. */
enum evq_status evq_queue_adopt(struct evq_queue *queue, const char *worker,
                                const struct evq_claim *claim, int64_t lease_ms,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Worker's offer of a suite. EVQ_E_CONFLICT: another definition under this name; message names both
 * places. replace: an operator's word, takes the place of the other definition. *ret_class: number
 * of the suite's own class. */
struct evq_suite_offer {
    const char *name;
    const char *digest;     // 32 hex digits of the canonical definition.
    const char *needs;      // Canonical text.
    uint32_t shards;        // 1: not sharded.
    int64_t every;          // Evaluate only steps divisible by it; 1: all.
    const char *definition; // JSON for people, <= 16 KiB.
    const char *where;      // "host:/etc/evalq/evalq.yaml"
};
enum evq_status evq_queue_suite(struct evq_queue *queue, const struct evq_suite_offer *offer,
                                bool replace, uint32_t *ret_class,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- free workers ---- */

/*
 * For which of 1 to 64 suites a worker is free that found nothing to claim: bit i of *ret_free for
 * suites[i]. A yes is taken by this call, so that of several askers one gets it; the worker says it
 * again while it stays free. needs NULL: the suites' own; else canonical text (evq_needs_text()).
 * Nothing while the run is paused or at its cap.
 */
enum evq_status evq_queue_idle_workers(struct evq_queue *queue, const char *run, const char *needs,
                                       const char *const *suites, uint32_t suite_count,
                                       uint64_t *ret_free, struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- operating ---- */

enum evq_status evq_queue_cancel(struct evq_queue *queue, const char *id, const char *reason,
                                 enum evq_job_state *ret_state,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* The same for a job that no worker has begun: it ends as skipped. One that runs is left alone, and
 * *ret_state is EVQ_JOB_RUNNING. */
enum evq_status evq_queue_withdraw(struct evq_queue *queue, const char *id, const char *reason,
                                   enum evq_job_state *ret_state,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
/* EVQ_E_CONFLICT: the job is not one that ended without a result. Not while what an earlier retry
 * of it queued has not ended, nor when the same request (at most 40 bytes; "": of none) is
 * repeated: then *ret_id is what it was. */
enum evq_status evq_queue_retry(struct evq_queue *queue, const char *id, const char *request,
                                char ret_id[EVQ_JOB_ID_BYTES_MAX],
                                struct evq_error *err) EVQ_CHECK_RESULT;
struct evq_job_change { // Of one job among many.
    const char *id;
    enum evq_status status;         // Set, as all that follows: what the verb for one returns.
    struct evq_error error;         // Its sentence.
    enum evq_job_state state;       // On EVQ_OK: the job's state after.
    char now[EVQ_JOB_ID_BYTES_MAX]; // And which job that is.
};
/*
 * cancel, or retry (without a request), of many jobs: each is a call of its own, and all are sent
 * before an answer is waited for, so that Redis does nothing long and a caller with thousands goes
 * through them some EVQ_QUEUE_CHANGES at a time. Repeating them is well, as it is for one.
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
/* Everything of a run goes: jobs, results, flows. Called again until *ret_left is 0 (slices of
 * 100). EVQ_E_CONFLICT while jobs of it run. */
enum evq_status evq_queue_forget(struct evq_queue *queue, const char *run, int64_t *ret_left,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* One slice of retention: records of ended jobs past their age or number. Called by heartbeats too.
 */
enum evq_status evq_queue_gc(struct evq_queue *queue, int64_t *ret_removed,
                             struct evq_error *err) EVQ_CHECK_RESULT;
/* Sets aside bytes that are no record, with a reason. */
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
 * Results and ends of one run in the order of publication, from *cursor (0: the first); at most
 * 100. Calls on_result for each (the callee must not keep the pointer) and moves *cursor, also past
 * those that retention took: nothing is left when *cursor stays, not when nothing was called.
 */
typedef void (*evq_result_fn)(void *context, const struct evq_result *result);
enum evq_status evq_queue_run_results(struct evq_queue *queue, const char *run, int64_t *cursor,
                                      evq_result_fn on_result, void *context,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* Unfinished and finished counts of a run by state; `open` is queued + delayed + running. */
struct evq_run_counts {
    int64_t by_state[EVQ_JOB_STATE_COUNT];
    int64_t open;
};
enum evq_status evq_queue_run_counts(struct evq_queue *queue, const char *run,
                                     struct evq_run_counts *ret_counts,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
int64_t evq_queue_run_jobs(const struct evq_run_counts *counts); // Of any state; 0: no such run.
/* Smallest step still open of one flow (run, variant, suite), -1: none; what a sink may wait for.
 */
enum evq_status evq_queue_flow_open(struct evq_queue *queue, const char *run, const char *variant,
                                    const char *suite, int64_t *ret_step,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* ---- sinks (the logger) ---- */

/* Registers the sink (idempotent) and makes its consumer group, from the first entry when new. */
enum evq_status evq_queue_sink_open(struct evq_queue *queue, const char *sink,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
#define EVQ_SINK_PLACE_BYTES_MAX 513
/*
 * Says that a logger serves the sink: its id, new with each start, and for people where it writes.
 * ret_other: where the one writes that said so last, "" when that was this one or nobody. Who has
 * said so and hears of another shares the sink with it. EVQ_E_NOT_FOUND: not registered.
 */
enum evq_status evq_queue_sink_serve(struct evq_queue *queue, const char *sink, const char *logger,
                                     const char *place, char ret_other[EVQ_SINK_PLACE_BYTES_MAX],
                                     struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_queue_sink_remove(struct evq_queue *queue, const char *sink,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_entry { // One entry of the results stream.
    char id[32];   // Stream id.
    // NULL: malformed or trimmed, set aside in the bad stream and acknowledged already; or the end
    // of a job, where ends were not asked for.
    struct evq_result *result;
};
/*
 * Up to entries_max entries for this sink: first those delivered before but never acknowledged
 * (behind: the id of the last of them that the caller has, "0" first, until it gets none), then new
 * ones (behind NULL), waiting up to timeout_ms. ends: the ends of jobs too; else they come without
 * what they hold. The caller frees each result. EVQ_E_NOT_FOUND: the group is gone (new epoch):
 * sink_open again.
 */
enum evq_status evq_queue_sink_read(struct evq_queue *queue, const char *sink, const char *behind,
                                    bool ends, int64_t timeout_ms, struct evq_entry *ret_entries,
                                    uint32_t entries_max, uint32_t *ret_count,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Acknowledges, notes lag and last error ("" clears it), trims what every registered sink has
 * acknowledged. */
enum evq_status evq_queue_sink_ack(struct evq_queue *queue, const char *sink,
                                   const struct evq_entry *entries, uint32_t entry_count,
                                   const char *last_error, struct evq_error *err) EVQ_CHECK_RESULT;
/* Sets the group back so that everything still in the stream is delivered again. */
enum evq_status evq_queue_sink_replay(struct evq_queue *queue, const char *sink,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Puts results of run that were published from from_ms to to_ms (server unix ms) into the stream
 * again, for sinks that lost them; sinks that had them know them by their ids. One slice of 100
 * from *cursor (0: the first), which moves on; *ret_more false: the run is through. *ret_count: how
 * many were put in.
 */
enum evq_status evq_queue_republish(struct evq_queue *queue, const char *run, int64_t from_ms,
                                    int64_t to_ms, int64_t *cursor, int64_t *ret_count,
                                    bool *ret_more, struct evq_error *err) EVQ_CHECK_RESULT;
/* The losses recorded for a sink were repeated: they are shown no more. */
enum evq_status evq_queue_loss_forget(struct evq_queue *queue, const char *sink,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Best checkpoint of (run, metric key), kept in Redis: the caller says which it found. Value as
 * text with 17 digits. */
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
/* The same for people. metric may be a part of a name between slashes, such as accuracy, if one of
 * the run's metrics alone has it. EVQ_E_NOT_FOUND: *err says which of run, sink, result and metric
 * there is not, and which metrics there are. */
enum evq_status evq_queue_best_find(struct evq_queue *queue, const char *run, const char *metric,
                                    struct evq_best *ret_best,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

#endif
