/*
 * The supervisor: one process per machine. It claims jobs, gives them to the children of its slots,
 * sends heartbeats, enforces time limits, cancels, restarts children, and publishes results. It is
 * a single thread around one poll() and uses no CUDA.
 *
 *   supervisor.c       start, the loop, signals, the end
 *   drain.c            when the worker stops claiming, and how long running jobs have left
 *   children.c         the child processes: deaths, time limits, starts
 *   child_notes.c      the jobs that the children get, and the notes that they send
 *   slot.c             one slot: its state machine
 *   slot_process.c     starts, kills and reaps the child process of a slot
 *   causes.c           what can go wrong, and what is done about it: the table of all retries
 *   disk_pause.c       suites that are paused because the scratch disk is full
 *   redis_round.c      one round with Redis: registration, outbox, heartbeats, claims, waiting
 *   heartbeat.c        keeps the leases alive
 *   redis_session.c    the connections to Redis
 *   result_outbox.c    tells Redis the results and the ends of jobs
 *   sample_relay.c     passes pieces of samples files on to Redis
 *   claims.c           claims jobs and starts them
 *   claim_rules.c      which jobs the slots can take now
 *   lease.c            one claimed job and what Redis must still be told about it
 *   shard_merge.c      forms a job's result from the sums of its shards
 *   lease_list.c       the list of claimed jobs
 *   suite_registry.c   the suites that this worker serves, and which slots fit them
 *   gpu_leases.c       shares the machine's GPUs between its workers
 *   status.c           what `evalq status` shows of this worker
 */
#ifndef EVQ_WORKER_SUPERVISOR_SUPERVISOR_H
#define EVQ_WORKER_SUPERVISOR_SUPERVISOR_H

#include "worker/devices/gpu_monitor.h"
#include "worker/options.h"
#include "worker/supervisor/gpu_leases.h"
#include "worker/supervisor/lease.h"
#include "worker/supervisor/redis_session.h"
#include "worker/supervisor/slot.h"
#include "worker/supervisor/suite_registry.h"

struct evq_supervisor {
    const struct evq_options *options;
    struct evq_config *config;
    char name[64]; // Host name and random digits; new for each process.
    char host[64];
    int64_t started_unix_ms;
    int64_t lease_ms;
    int64_t heartbeat_ms;

    struct evq_redis_session redis;
    struct evq_suite_registry registry;
    bool registered;          // Our suites are registered in the present keyspace.
    bool classes_stale;       // The classes of the queue changed and must be read again,
    int64_t classes_retry_ms; // but not before this monotonic time.
    bool adopt_due;           // The keyspace is new, and our running jobs must be put into it.
    int64_t beat_due_ms;

    struct evq_gpu_leases gpus;
    uint32_t gpus_seen, gpus_taken;      // GPUs of the machine, and how many of them the slots use.
    struct evq_gpu_monitor *gpu_monitor; // NULL: there are no GPUs.
    struct evq_slot *slots;
    uint32_t slot_count;
    struct evq_slot_spawn spawn;
    struct evq_lease *leases; // All claimed jobs, in the order of their claims.

    char request[33]; // Id of the next claim, or of a claim whose answer was lost; "": none yet.
    uint64_t request_nonce;  // First half of each request id, new for each process.
    uint64_t request_number; // Second half of the last request id.
    bool claim_due;
    bool wait_refused;      // Redis refused the last wait for a wake marker.
    bool claim_refused;     // Redis refused the last claim, and that was logged.
    int64_t claim_again_ms; // Monotonic time at which a delayed job becomes due; 0: unknown.
    int64_t jobs_taken;
    // For each suite of the configuration: how long its jobs took recently; 0: unknown.
    double *suite_seconds;
    struct evq_backoff *disk_pauses; // For each suite of the configuration: its pause.

    bool draining;
    bool stop_signalled; // A signal asked this worker to stop.
    bool child_exited;   // A SIGCHLD arrived, so some of our processes may have died.
    bool forced;         // A second signal arrived.
    int64_t drain_ms;    // Monotonic end of the drain.
    int64_t idle_since_ms;
    bool sick;
    // The different jobs that crashed since the last one that was done.
    char crashed[EVQ_CAUSE_CRASHED_JOBS_MAX][EVQ_JOB_ID_BYTES_MAX];
    uint32_t crashed_count;
    enum evq_exit exit_code;
    int signal_fd;
};

/* Runs until the worker has drained. Returns the exit code. */
enum evq_exit evq_supervisor_main(const struct evq_options *options);

/* ---- drain.c ---- */

/* Stops claiming. Running jobs have within_ms milliseconds left. */
void evq_drain_begin(struct evq_supervisor *supervisor, const char *why, int64_t within_ms);
/* Kills the running jobs. */
void evq_drain_force(struct evq_supervisor *supervisor);
/* Starts a drain if one is due, and ends jobs that took longer than the drain allows. */
void evq_drain_tick(struct evq_supervisor *supervisor, int64_t now_ms);
bool evq_drain_over(const struct evq_supervisor *supervisor, int64_t now_ms);

/* ---- children.c ---- */

void evq_children_reap(struct evq_supervisor *supervisor); // Call it after SIGCHLD.
// Applies time limits, kills and starts children.
void evq_children_tick(struct evq_supervisor *supervisor, int64_t now_ms);
/* Asks all children to exit, kills those that do not, and reaps them. */
void evq_children_stop(struct evq_supervisor *supervisor);

/* ---- child_notes.c ---- */

/* Gives the job of the lease to an idle slot. */
void evq_child_notes_send_job(struct evq_supervisor *supervisor, struct evq_slot *slot,
                              struct evq_lease *lease);
/* Reads the notes and the standard error of a child. */
void evq_child_notes_read(struct evq_supervisor *supervisor, struct evq_slot *slot);
/* The job of the slot did not succeed: either we ended it (slot->ending), or the child reported a
 * failure or died. Does nothing if the slot has no job. */
void evq_child_notes_job_failed(struct evq_supervisor *supervisor, struct evq_slot *slot,
                                enum evq_fail_kind kind, const char *reason, const char *detail);
/* Counts a failed start or a device fault. */
void evq_child_notes_slot_failed(struct evq_slot *slot, const char *reason);

/* ---- redis_round.c ---- */

/* Does everything that can be done with Redis now. Outages are waited out. An error that ends the
 * worker sets draining and exit_code. */
void evq_redis_round_run(struct evq_supervisor *supervisor);
/* The next monotonic ms at which a round has something to do; INT64_MAX: none. */
int64_t evq_redis_round_due_ms(const struct evq_supervisor *supervisor);
/* Call it when the waiting connection is readable, or may be overdue. */
void evq_redis_round_wake(struct evq_supervisor *supervisor, bool readable);

/* ---- heartbeat.c ---- */

/* Sends the heartbeats of all leases, because one that is left out lapses. If the keyspace was
 * lost, it stops, so that the jobs are adopted first. Returns false if Redis is away. */
bool evq_heartbeat_send(struct evq_supervisor *supervisor);

/* ---- result_outbox.c ---- */

/* Tells Redis everything that waits in the outboxes. Returns false if Redis is away; the rest is
 * sent later. */
bool evq_result_outbox_flush(struct evq_supervisor *supervisor);
bool evq_result_outbox_pending(
    const struct evq_supervisor *supervisor); // Whether something waits to be sent.

/* ---- sample_relay.c ---- */

/* Takes over the piece that a child sent. While it waits, the job's time limit stands still. */
void evq_sample_relay_take(struct evq_slot *slot, struct evq_note *piece);
void evq_sample_relay_drop(struct evq_slot *slot); // Forgets the piece, if there is one.
/* Sends the pieces of all slots. Returns false if Redis is away; the rest is sent later. */
bool evq_sample_relay_flush(struct evq_supervisor *supervisor);
bool evq_sample_relay_pending(const struct evq_supervisor *supervisor);

/* ---- claims.c ---- */

/* Makes one claim for each group of slots that fit the same classes. Sets claim_due if there may be
 * more jobs. */
enum evq_status evq_claims_round(struct evq_supervisor *supervisor,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Completes jobs, and claims new ones for the idle slots in the same round trip, if a claim is
 * allowed. If *ret_completed is EVQ_OK, each completion has its own status, even if the claim
 * failed. Returns the status of the claim.
 */
enum evq_status evq_claims_fused(struct evq_supervisor *supervisor, struct evq_completion *done,
                                 size_t count, enum evq_status *ret_completed,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Starts the held jobs that can run now: an `alone` job only if no other job runs. */
void evq_claims_start(struct evq_supervisor *supervisor);

/* ---- claim_rules.c ---- */

/* Whether the worker may claim another job now. */
bool evq_claim_rules_allow(const struct evq_supervisor *supervisor);
/* Those classes of the mask whose jobs can end before the deadline and whose suites are not paused.
 */
uint64_t evq_claim_rules_classes(const struct evq_supervisor *supervisor, uint64_t mask);
/* Whether the slot has the GPUs and the memory that the job needs. */
bool evq_claim_rules_fit(const struct evq_supervisor *supervisor, const struct evq_job *job,
                         const struct evq_slot *slot);
/* Whether the job is of the checkpoint that the slot's model server has loaded. */
bool evq_claim_rules_warm(const struct evq_slot *slot, const char *id);
/* Adds the ids of the jobs that the slot's model server could run with the checkpoint that it has
 * loaded. ids has room for EVQ_QUEUE_PREFERRED_MAX, and count of them are set. Returns the new
 * count. */
uint32_t evq_claim_rules_preferred(const struct evq_supervisor *supervisor,
                                   const struct evq_slot *slot, char (*ids)[EVQ_JOB_ID_BYTES_MAX],
                                   uint32_t count);
uint32_t evq_claim_rules_idle(const struct evq_supervisor *supervisor); // Slots that are idle.
uint32_t evq_claim_rules_busy(const struct evq_supervisor *supervisor); // Slots that have a job.
/* Whether the child of some slot is starting or leaving. */
bool evq_claim_rules_changing(const struct evq_supervisor *supervisor);

/* ---- lease_list.c ---- */

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

/* ---- status.c ---- */

/* Writes what `evalq status` shows of this worker: one JSON object of at most 8 KiB. */
void evq_worker_status_json(const struct evq_supervisor *supervisor, struct evq_buffer *out);

#endif
