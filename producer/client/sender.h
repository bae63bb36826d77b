/*
 * The client's background thread. It follows one submit through these files:
 *
 *     pending.c    takes submits from the rings (submit_log/) and releases them when they are done
 *     prepare.c    finds the checkpoint (locate.c), waits until it is complete, checks that its
 *                  files are the step's own (overwrite.c), makes one job per suite (make_jobs.c)
 *                  and pins it
 *     deliver.c    sends the jobs to Redis or, during an outage, writes them to the spool
 *     pins/pin_releaser.c   releases the pins whose jobs have ended
 *
 * sender.c has the loop. sender_wait.c has the functions with which other threads wait.
 *
 * Threads: any thread may use `ring`, `sent_jobs`, the atomics and `wake_fd`, and the fields below
 * progress_lock while it holds the lock. The fields below "the thread's own" belong to the sender's
 * thread. The client and the thread own the sender together, and the last of them frees it. So
 * close() can return while a hung file server blocks the thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_SENDER_H
#define EVQ_PRODUCER_CLIENT_SENDER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "producer/client/pins/pin_releaser.h"
#include "producer/client/sent_jobs.h"
#include "producer/client/snapshots/snapshot_server.h"
#include "producer/client/submit_log/ring.h"
#include "producer/client/submit_log/spool.h"
#include "producer/client/submit_log/submit_record.h"
#include "producer/client/warn.h"
#include "shared/config/config.h"
#include "shared/queue/keys.h"
#include "shared/queue/queue.h"

#define EVQ_SENDER_LOGS_MAX  EVQ_RING_FILES_MAX
#define EVQ_ROOT_CHECK_MS    1000 // How often the configuration is read for a missing root.
#define EVQ_SENDER_PATHS_MAX 64   // Paths that are remembered, because several steps may share one.

struct evq_remote;

struct evq_pending { // One submit that is not done.
    struct evq_pending *next;
    uint64_t end; // Its end in the ring. The ring is released up to the first pending submit.
    uint8_t *data;
    struct evq_submit_record request; // Points into data.
    uint64_t path_hash;               // Hash of request.path.
    bool done;                        // Sent, spooled or refused for good.
    bool counted;                     // sender->waiting no longer counts it.
    bool ready;                       // Its jobs are made. A job that is done is NULL.
    bool reused;                      // Another step was found at its path before.
    bool parked;      // No root contains the path yet. Nobody waits for a parked submit.
    int64_t since_ms; // When it was taken, monotonic.
    int64_t due_ms;   // When to look at its checkpoint again, monotonic.
    uint32_t try_count;
    struct evq_job *jobs[EVQ_SUBMIT_SUITES_MAX];
    size_t job_count;
};

struct evq_submit_log { // One process' ring and spool. logs[0] is the client's own.
    struct evq_ring *ring;
    struct evq_spool *spool; // NULL: it could not be opened yet.
    uint64_t cursor;         // All records before it were taken from the ring.
    struct evq_pending *first;
    struct evq_pending *last;
    bool has_new; // Submits were taken since the last pass over all pending ones.
};

struct evq_seen_path { // overwrite.c: what was last found at a path.
    uint64_t hash;     // Hash of the path.
    int64_t step;
    uint64_t identity; // Identity of its files (struct evq_files); 0: unknown.
};

struct evq_sender_options {
    const char *ring_directory;
    const char *queue;
    const char *run;
    int64_t spool_bytes_max;
    int64_t pin_bytes_max; // 0: never copy.
    bool pin;
    // The name by which other hosts reach this one. "": the address from which this machine reaches
    // Redis. "none": no snapshots are served.
    const char *snapshot_host;
};

struct evq_sender {
    atomic_int owners;
    atomic_bool stop;       // The thread must finish its round and end.
    atomic_bool check_pins; // The thread must check the pins now.
    atomic_int flushing;    // Callers that wait in a flush. The thread tries more often for them.
    atomic_bool connected;
    atomic_bool away;      // The last try to reach Redis failed.
    atomic_bool full_seen; // A submit found the ring full. The thread warns.
    atomic_uint_fast64_t sent;
    atomic_uint_fast64_t refused;
    atomic_uint_fast64_t unpinned;
    atomic_uint_fast64_t lost;    // Damaged records.
    atomic_uint_fast64_t spooled; // Jobs in spools now.
    atomic_uint_fast64_t waiting; // Submits in the rings that are not done.
    int wake_fd;           // Ends the thread's sleep. A submit does not use it: see sender.c.
    struct evq_ring *ring; // The client's own.
    uint64_t inherited;    // Records before this position come from an earlier client.

    // The thread's progress. It is written under progress_lock, so that all values belong together.
    pthread_mutex_t progress_lock;
    pthread_cond_t progress;      // Signalled when something was sent, or a try to send failed.
    atomic_uint_fast64_t adopted; // How many logs of dead owners still hold unparked submits. 1
                                  // until the thread has checked.
    atomic_uint_fast64_t settled; // All submits before this position of the own ring are in Redis
                                  // or parked.
    atomic_uint_fast64_t parked;  // Parked submits in the own ring.
    atomic_uint_fast64_t taken;   // All submits before this position of the own ring were taken.
    atomic_uint_fast64_t urgent;  // How many taken submits can be sent now or were never examined.
    uint64_t failures;            // Tries to send that failed.
    bool ended;                   // The thread has ended.

    pthread_t thread;
    struct evq_sent_jobs sent_jobs; // It has its own lock.
    struct evq_warner warner;
    char queue[EVQ_KEYS_QUEUE_BYTES_MAX + 1];
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    char host[256];
    char ring_directory[PATH_MAX];
    struct evq_conn *conn; // The thread's. Other threads may interrupt it.

    // The thread's own.
    bool full_warned;
    int64_t touch_ms; // When to touch the rings' files, monotonic; 0: now.
    struct evq_config *config;
    struct evq_config *later;   // The configuration that was read later for its roots, or NULL.
    char config_path[PATH_MAX]; // The file that is read again; "": none.
    struct stat config_seen;
    int64_t config_due_ms; // The earliest time to read the file again, monotonic.
    struct evq_queue *redis;
    struct evq_queue_info info; // Read on connection `known`. Until then its epoch is "".
    uint64_t known;
    struct evq_submit_log logs[EVQ_SENDER_LOGS_MAX];
    size_t log_count;
    int64_t spool_bytes_max;
    int64_t pin_bytes_max;
    bool pin;
    struct evq_pin_releaser releaser;
    struct evq_snapshot_server *snapshots; // NULL: no snapshot was submitted yet.
    struct evq_remote *remote;             // The helper for remote stores; NULL: it does not run.
    const struct evq_pending *listed;      // The item that the helper lists; NULL: none.
    int64_t listed_ms;                     // The deadline of this listing, monotonic.
    char snapshot_host[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    struct evq_seen_path paths[EVQ_SENDER_PATHS_MAX];
    size_t path_count;
    bool lacks_reflink; // The file system lacks_reflink_at cannot clone files.
    dev_t lacks_reflink_at;
    uint64_t jitter;
    int64_t away_ms;  // When the outage of Redis began, monotonic; 0: no outage is known.
    int64_t retry_ms; // The earliest time to try Redis again, monotonic.
    uint32_t retry_count;
};

/*
 * Starts the thread with all signals blocked. On EVQ_OK the sender owns ring, config and the
 * warner's file; on any other status they stay the caller's. EVQ_E_NOMEM, EVQ_E_IO.
 */
enum evq_status evq_sender_start(const struct evq_sender_options *options, struct evq_ring *ring,
                                 struct evq_config *config, const struct evq_warner *warner,
                                 struct evq_sender **ret_sender,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Ends the thread, waits for that until deadline_ms (monotonic), and drops the caller's share. */
void evq_sender_stop(struct evq_sender *sender, int64_t deadline_ms);

/* ---- sender_wait.c; any thread ---- */

/* Whether all submits before the position in the own ring are in Redis or parked. *ret_parked: how
 * many submits are parked at the same moment. */
bool evq_sender_all_sent(struct evq_sender *sender, uint64_t ring_position, uint64_t *ret_parked);
/*
 * Waits until everything that was submitted before the call is in Redis. deadline_ms and ready_ms
 * are monotonic; INT64_MAX: none. From ready_ms on, a submit whose checkpoint is not complete is
 * no longer waited for. patient: an outage of Redis does not end the wait. EVQ_E_TIMEOUT; EVQ_E_IO:
 * Redis is away.
 */
enum evq_status evq_sender_flush(struct evq_sender *sender, int64_t deadline_ms, int64_t ready_ms,
                                 bool patient) EVQ_CHECK_RESULT;
/* Makes the thread check the pins once, if Redis can be reached. Waits until deadline_ms. */
void evq_sender_check_pins(struct evq_sender *sender, int64_t deadline_ms);
void evq_sender_wake(struct evq_sender *sender); // Ends the thread's sleep.
/* Waits until the thread reports progress, at most until until_ms (monotonic). The caller holds
 * progress_lock. */
void evq_sender_wait(struct evq_sender *sender, int64_t until_ms);
/* Wakes the threads that wait for progress. failed: a try to send failed. */
void evq_sender_notify(struct evq_sender *sender, bool failed);

/* ---- pending.c; the sender's thread ---- */

/* Takes new submits from the log's ring until memory runs out. */
void evq_pending_take(struct evq_sender *sender, struct evq_submit_log *log);
/* Whether a later submit has the item's path for another step. Takes new submits from the rings. */
bool evq_pending_has_later(struct evq_sender *sender, const struct evq_pending *item);
/* Frees the finished submits at the front of the list and their space in the ring. Returns whether
 * there were any. */
bool evq_pending_release(struct evq_sender *sender, struct evq_submit_log *log);
/* The position in the ring before which everything is done or parked. */
uint64_t evq_pending_settled(const struct evq_submit_log *log);
/* Frees the log and all that is pending. remove: the ring's file is removed if it is empty. */
void evq_pending_close(struct evq_submit_log *log, bool remove);

/* ---- prepare.c; the sender's thread ---- */

/* Prepares the submits that are due. Returns when the next one is, monotonic ms. */
int64_t evq_prepare_due(struct evq_sender *sender, struct evq_submit_log *log);
/* The configuration whose roots are valid now. */
const struct evq_config *evq_prepare_roots(const struct evq_sender *sender);

/* ---- snapshots/job_snapshots.c; the sender's thread ---- */

/* Adds to the jobs of an item in the root shm how other hosts can fetch its checkpoint. */
void evq_job_snapshots_offer(struct evq_sender *sender, struct evq_pending *item,
                             const struct evq_root *root);
/* Adds the address of this client's snapshot server to a job that is about to be sent. Call it when
 * the connection to Redis is open. */
void evq_job_snapshots_set_address(struct evq_sender *sender, struct evq_job *job);

/* ---- deliver.c; the sender's thread ---- */

/* Sends the jobs that are ready, or writes them to the spool. Returns when to call again, monotonic
 * ms; INT64_MAX: not needed. */
int64_t evq_deliver(struct evq_sender *sender);

#endif
