/*
 * The supervisor: one process per machine that claims jobs, gives them to the children of its
 * slots, beats for them, limits, cancels and restarts, and publishes what they give. A single
 * thread around one poll(). No CUDA.
 *
 *   supervisor.c  start, the loop, signals, the end
 *   drain.c       why it claims no more, and how long what runs still has
 *   children.c    the slots' processes: notes, deaths, time limits, starts
 *   dispatch.c    one round with Redis: offers, outboxes, heartbeats, waiting for a wake marker
 *   claims.c      claims jobs and starts them
 *   claim_rules.c which jobs the slots can take now
 *   held_leases.c the list of the leases that this worker holds
 *   ahead.c       which job may come next: its weights are read while the present ones compute,
 *                 into the page cache, from there by a child into its device
 *   status.c      what `evalq status` is told of this worker
 *
 * gpus, session, offer, lease, merge and slot are nouns of their own.
 */
#ifndef EVQ_WORKER_SUPERVISOR_H
#define EVQ_WORKER_SUPERVISOR_H

#include "worker/devices/gpu_monitor.h"
#include "worker/options.h"
#include "worker/supervisor/gpu_leases.h"
#include "worker/supervisor/lease.h"
#include "worker/supervisor/redis_session.h"
#include "worker/supervisor/slot.h"
#include "worker/supervisor/suite_registry.h"

/* What is read ahead of its claim. */
struct evq_prefetch {
    struct evq_slot_spawn spawn;
    pid_t pid;                     // Of the process that reads; 0: none.
    bool stopped;                  // By us, before its end.
    bool refused;                  // The queue does not tell.
    int64_t look_ms;               // Monotonic, like all below: the next look at the queue.
    int64_t began_ms;              // Of the process.
    char id[EVQ_JOB_ID_BYTES_MAX]; // The job that was read last, or is; "": none.
    struct evq_job *job;           // While its process reads.
};

struct evq_supervisor {
    const struct evq_options *options;
    struct evq_config *config;
    char name[64]; // Host and random digits: new for each process.
    char host[64];
    int64_t started_unix_ms;
    int64_t lease_ms;
    int64_t heartbeat_ms;

    struct evq_redis_session redis;
    struct evq_suite_registry registry;
    bool registered;          // Our suites are in the present keyspace.
    bool classes_stale;       // The queue's classes changed: read them again,
    int64_t classes_retry_ms; // but not before, monotonic.
    bool adopt_due;           // A new keyspace: our running jobs are to be put back.
    int64_t beat_due_ms;

    struct evq_gpu_leases gpus;
    uint32_t gpus_seen, gpus_taken; // Those of the machine, and how many the slots have room for.
    struct evq_gpu_monitor *gpu_monitor; // NULL: no GPUs.
    struct evq_slot *slots;
    uint32_t slot_count;
    struct evq_slot_spawn spawn;
    struct evq_lease *leases; // All jobs held, in the order of their claims.

    struct evq_prefetch prefetch;
    char request[33];        // Of the next claim, or of one whose answer was lost.
    uint64_t request_nonce;  // Of this process: the first half of each,
    uint64_t request_number; // and of the last one, the second.
    bool claim_due;
    bool wait_refused;      // The last wait for a marker was.
    bool claim_refused;     // The last claim was: it was logged.
    int64_t claim_again_ms; // Something delayed falls due then; 0: unknown.
    int64_t jobs_taken;
    // By number in the configuration: how long its jobs took lately; 0: unknown.
    double *suite_seconds;
    struct evq_backoff *disk_pauses; // The same: whether its programs find room here.

    bool draining;
    bool stop_signalled; // By a signal.
    bool child_exited;   // A SIGCHLD came: some process of ours may have died.
    bool forced;         // A second signal.
    int64_t drain_ms;    // Monotonic end of the drain.
    int64_t idle_since_ms;
    bool sick;
    // Different jobs since one was done.
    char crashed[EVQ_CAUSE_CRASHED_JOBS_MAX][EVQ_JOB_ID_BYTES_MAX];
    uint32_t crashed_count;
    enum evq_exit exit_code;
    int signal_fd;
};

/* Runs until drained. Returns the exit code. */
enum evq_exit evq_supervisor_main(const struct evq_options *options);

/* ---- drain.c ---- */

/* No more claims; running jobs have until within_ms. */
void evq_drain_begin(struct evq_supervisor *supervisor, const char *why, int64_t within_ms);
/* Kills what runs. */
void evq_drain_force(struct evq_supervisor *supervisor);
/* Whether to begin to drain by ourselves, and what to do when a drain took too long. */
void evq_drain_tick(struct evq_supervisor *supervisor, int64_t now_ms);
bool evq_drain_over(const struct evq_supervisor *supervisor, int64_t now_ms);

/* ---- children.c ---- */

/* Its pipes are readable. */
void evq_children_read(struct evq_supervisor *supervisor, struct evq_slot *slot);
void evq_children_reap(struct evq_supervisor *supervisor);                 // After SIGCHLD.
void evq_children_tick(struct evq_supervisor *supervisor, int64_t now_ms); // Limits, kills, starts.
/* Gives the lease's job to an idle slot. */
void evq_children_work(struct evq_supervisor *supervisor, struct evq_slot *slot,
                       struct evq_lease *lease);
/* Asks all to exit, kills the rest, reaps. */
void evq_children_stop(struct evq_supervisor *supervisor);

/* ---- dispatch.c ---- */

/* What can be done with Redis now. Errors are waited out; one that ends the worker sets draining
 * and exit_code. */
void evq_redis_round_run(struct evq_supervisor *supervisor);
/* The next monotonic ms at which a round has something to do; INT64_MAX: none. */
int64_t evq_redis_round_due_ms(const struct evq_supervisor *supervisor);
/* The blocking connection is readable, or may be overdue. */
void evq_redis_round_wake(struct evq_supervisor *supervisor, bool readable);

/* ---- outboxes.c ---- */

/* Says to Redis what the leases have to say. False: it is away; the rest is for later. */
bool evq_result_outbox_flush(struct evq_supervisor *supervisor);
bool evq_result_outbox_pending(
    const struct evq_supervisor *supervisor); // Something is still to be said.

/* ---- claims.c ---- */

/* One claim for each group of like slots. Sets claim_due anew: there may be more. */
enum evq_status evq_claims_round(struct evq_supervisor *supervisor,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Completes, and in the same round trip claims for the slots that are idle, if a claim is allowed.
 * *ret_completed EVQ_OK: each completion has its status, also where the claim's, which is returned,
 * is another.
 */
enum evq_status evq_claims_fused(struct evq_supervisor *supervisor, struct evq_completion *done,
                                 size_t count, enum evq_status *ret_completed,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Starts what is held and can run now: an `alone` job with nothing beside it. */
void evq_claims_start(struct evq_supervisor *supervisor);

/* ---- claim_rules.c ---- */

/* Whether the worker may claim another job now. */
bool evq_claim_rules_allow(const struct evq_supervisor *supervisor);
/* The classes of the mask whose jobs can end before the deadline and find room on this machine. */
uint64_t evq_claim_rules_classes(const struct evq_supervisor *supervisor, uint64_t mask);
/* Whether the slot has what the job needs. */
bool evq_claim_rules_fit(const struct evq_supervisor *supervisor, const struct evq_job *job,
                         const struct evq_slot *slot);
uint32_t evq_claim_rules_idle(const struct evq_supervisor *supervisor); // Slots that are idle.
uint32_t evq_claim_rules_busy(const struct evq_supervisor *supervisor); // Slots that have a job.
/* Whether the child of some slot is starting or leaving. */
bool evq_claim_rules_changing(const struct evq_supervisor *supervisor);

/* ---- held_leases.c ---- */

/* Stops the slot that runs the lease's job. Whatever the slot still reports is ignored. */
void evq_lease_list_detach(struct evq_supervisor *supervisor, const struct evq_lease *lease);
/* Frees the lease, because Redis has recorded the end of its job. */
void evq_lease_list_remove(struct evq_supervisor *supervisor, struct evq_lease *lease);
/* Gives up a job that another worker owns now: stops its slot and drops its unsent results. */
void evq_lease_list_drop(struct evq_supervisor *supervisor, struct evq_lease *lease,
                         enum evq_cause cause);

/* ---- disk_pause.c ---- */

/* A job of the suite found the scratch disk full: pauses the suite on this machine. */
void evq_disk_pause_begin(struct evq_supervisor *supervisor, const struct evq_suite *suite,
                          const char *reason);
/* A job of the suite ran: ends its pause. */
void evq_disk_pause_end(struct evq_supervisor *supervisor, const struct evq_suite *suite);
/* Whether no job of the suite may be claimed now. */
bool evq_disk_pause_active(const struct evq_supervisor *supervisor, const struct evq_suite *suite);
/* Whether some suite is paused, or has not run since its pause. */
bool evq_disk_pause_any(const struct evq_supervisor *supervisor);
/* When the next suite is tried again, monotonic ms; INT64_MAX: none is paused. */
int64_t evq_disk_pause_due_ms(const struct evq_supervisor *supervisor);
void evq_disk_pause_tick(struct evq_supervisor *supervisor, int64_t now_ms);

/* ---- ahead.c ---- */

/* A job begins: what comes after it is looked for in a moment. */
void evq_prefetch_begin(struct evq_supervisor *supervisor);
/* Asks the queue, while all slots work, which job would be claimed next, and has its weights read
 * by a process of its own. False: Redis is away. */
bool evq_prefetch_look(struct evq_supervisor *supervisor);
/* The next monotonic ms at which to look; INT64_MAX: none. */
int64_t evq_prefetch_due_ms(const struct evq_supervisor *supervisor);
/* Frees what it holds. */
void evq_prefetch_close(struct evq_supervisor *supervisor);
/* Reading ends when a slot is free: its claim decides what is needed. */
void evq_prefetch_tick(struct evq_supervisor *supervisor);
void evq_prefetch_stop(
    struct evq_supervisor *supervisor); // SIGKILL, without waiting for the death.
void evq_prefetch_reap(struct evq_supervisor *supervisor); // After SIGCHLD.

/* ---- status.c ---- */

/* What `evalq status` shows of this worker: one JSON object of at most 8 KiB. */
void evq_status_json(const struct evq_supervisor *supervisor, struct evq_buffer *out);

#endif
