/*
 * The client's background thread: takes submits from the rings (source.c), makes jobs of them
 * (prepare.c), brings the jobs to Redis or, while it is away, into the spool (deliver.c), and
 * releases pins whose jobs ended (keeper.c).
 *
 * Threads: `ring`, `answers`, the atomics and `wake_fd` belong to everybody; what is below "the
 * thread's own" to the thread alone. Owned by client and thread together: the last of them frees
 * it, so that close() never waits for a thread that a dead file server holds.
 */
#ifndef EVQ_PRODUCER_SENDER_H
#define EVQ_PRODUCER_SENDER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "producer/client/answers.h"
#include "producer/client/pins/pin_releaser.h"
#include "producer/client/request.h"
#include "producer/client/ring.h"
#include "producer/client/snapshots/snapshot_server.h"
#include "producer/client/spool.h"
#include "producer/client/warn.h"
#include "shared/config/config.h"
#include "shared/queue/keys.h"
#include "shared/queue/queue.h"

#define EVQ_SENDER_SOURCES_MAX EVQ_RING_FILES_MAX
#define EVQ_ROOT_LOOK_MS       1000 // Between looks at the configuration for a root that is missing.
#define EVQ_SENDER_PATHS_MAX   64   // Paths remembered, to see one used again for another step.

struct evq_item { // One submit on its way.
    struct evq_item *next;
    uint64_t end; // Its end in the ring: what may be released when all before it are done.
    uint8_t *data;
    struct evq_request request; // Points into data.
    uint64_t path_hash;         // Of the path of the request.
    bool done;
    bool counted;     // As done, in sender->waiting.
    bool ready;       // jobs are made; those done are NULL.
    bool reused;      // Its path was submitted for another step before.
    bool parked;      // No root holds it, until the configuration has one: nobody waits for it.
    int64_t since_ms; // Monotonic: when it was taken.
    int64_t due_ms;   // Monotonic: when to look at the checkpoint again.
    uint32_t try_count;
    struct evq_job *jobs[EVQ_REQUEST_SUITES_MAX];
    size_t job_count;
};

struct evq_source { // A ring and its spool: the client's own first, then those of dead owners.
    struct evq_ring *ring;
    struct evq_spool *spool;
    uint64_t cursor;
    struct evq_item *first;
    struct evq_item *last;
    bool unseen; // There are items that came since the last look at all of them.
};

struct evq_seen_path { // overwrite.c: what was last found at a path.
    uint64_t hash;     // Of the path.
    int64_t step;
    uint64_t identity; // Of its files; 0: they were not looked at.
};

struct evq_sender_options {
    const char *ring_directory;
    const char *queue;
    const char *run;
    int64_t spool_bytes_max;
    int64_t pin_bytes_max; // 0: never copy.
    bool pin;
    // By which other hosts reach this one; "": the address that Redis is reached by; "none":
    // snapshots are served to nobody.
    const char *snapshot_host;
};

struct evq_sender {
    atomic_int owners;
    atomic_bool stop;    // Finish what is in hand and end.
    atomic_bool look;    // Look at the pins now.
    atomic_int flushing; // Callers that wait in flush: shorter back-off.
    atomic_bool connected;
    atomic_bool away;      // The last try to reach Redis failed.
    atomic_bool full_seen; // A submit found the ring full; the thread says so.
    atomic_uint_fast64_t sent;
    atomic_uint_fast64_t refused;
    atomic_uint_fast64_t unpinned;
    atomic_uint_fast64_t lost;    // Damaged records.
    atomic_uint_fast64_t spooled; // Jobs in spools now.
    atomic_uint_fast64_t waiting; // Submits in the rings, not done.
    // Rings of dead owners that hold more than what is parked; 1 until they were looked for.
    atomic_uint_fast64_t adopted;
    int wake_fd; // Ends the thread's sleep. Submits leave it alone: see sender.c.
    struct evq_ring *ring;
    atomic_uint_fast64_t settled; // In that ring, all before it is in Redis, or parked.
    atomic_uint_fast64_t parked;  // Submits in that ring that no root holds.
    atomic_uint_fast64_t taken;   // Up to here its submits were taken out, or could not be.
    atomic_uint_fast64_t urgent;  // Of these, so many can be sent now, or were never looked at.
    uint64_t inherited;           // What the ring held up to here was there before this client.
    pthread_mutex_t progress_lock;
    pthread_cond_t progress; // Something was sent, or a try to send failed.
    uint64_t failures;       // Tries that failed. Under progress_lock.
    bool ended;              // The thread is through. Under progress_lock.
    pthread_t thread;
    struct evq_answers answers; // With a lock of their own.
    struct evq_warner warner;
    char queue[EVQ_KEYS_QUEUE_BYTES_MAX + 1];
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    char host[256];
    char ring_directory[PATH_MAX];
    struct evq_conn *conn; // The thread's; others may interrupt it.

    // The thread's own.
    bool full_told;
    int64_t touch_ms; // The rings' files are touched then, monotonic; 0: at once.
    struct evq_config *config;
    struct evq_config *later;   // As it was read again for its roots; NULL: it was not.
    char config_path[PATH_MAX]; // What is read again.
    struct stat config_seen;
    int64_t config_due_ms; // Not before this, monotonic.
    struct evq_queue *redis;
    struct evq_queue_info info; // Of the queue, as asked on connection `known`; epoch "": not yet.
    uint64_t known;
    struct evq_source sources[EVQ_SENDER_SOURCES_MAX];
    size_t source_count;
    int64_t spool_bytes_max;
    int64_t pin_bytes_max;
    bool pin;
    struct evq_pin_releaser keeper;
    struct evq_snapshot_server *snapshots; // NULL: none was submitted yet.
    char snapshot_host[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    struct evq_seen_path paths[EVQ_SENDER_PATHS_MAX];
    size_t path_count;
    bool lacks_reflink;     // A file system that knows none was met:
    dev_t lacks_reflink_at; // that one.
    uint64_t jitter;
    int64_t away_ms;  // Since when Redis is away, monotonic; 0: it is not known to be.
    int64_t retry_ms; // Not before this, monotonic.
    uint32_t retry_count;
};

/*
 * Starts the thread with all signals blocked. On EVQ_OK it owns ring and config, which else stay
 * the caller's.
 */
enum evq_status evq_sender_start(const struct evq_sender_options *options, struct evq_ring *ring,
                                 struct evq_config *config, const struct evq_warner *warner,
                                 struct evq_sender **ret_sender,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* All before it is in Redis, or parked: how many, of the same moment. */
bool evq_sender_through(struct evq_sender *sender, uint64_t ring_position, uint64_t *ret_parked);
/*
 * Waits until everything that was submitted before is in Redis. Any thread. deadline_ms and
 * ready_ms are monotonic; INT64_MAX: none. From ready_ms on, a submit whose checkpoint is not
 * complete is waited for no longer. patient: an outage of Redis does not end the wait early.
 * EVQ_E_TIMEOUT; EVQ_E_IO: Redis is away.
 */
enum evq_status evq_sender_flush(struct evq_sender *sender, int64_t deadline_ms, int64_t ready_ms,
                                 bool patient) EVQ_CHECK_RESULT;
/* Has the thread look at the pins once, if Redis is there, and waits for it until deadline_ms. */
void evq_sender_look(struct evq_sender *sender, int64_t deadline_ms);
/* Ends the thread, waiting for it until deadline_ms, and gives up the caller's part. */
void evq_sender_stop(struct evq_sender *sender, int64_t deadline_ms);

/* The thread's own: wakes those who wait for progress. failed: it was a try that failed. */
void evq_sender_tell(struct evq_sender *sender, bool failed);

/* source.c: takes what is new in the ring, as far as there is memory. */
void evq_source_take(struct evq_sender *sender, struct evq_source *source);
/* Whether a later submit names the item's path for another step. Takes what is new in the rings. */
bool evq_source_has_later(struct evq_sender *sender, const struct evq_item *item);
/* Prepares what is due. Returns when the next is, monotonic ms. */
int64_t evq_prepare_source(struct evq_sender *sender, struct evq_source *source);
/* Frees what is done at the front, and its room in the ring; whether there was any. */
bool evq_source_release(struct evq_sender *sender, struct evq_source *source);
/* Up to where the ring holds nothing but what is through or parked. */
uint64_t evq_source_settled(const struct evq_source *source);
/* remove: the ring's file too. */
void evq_source_close(struct evq_source *source, bool remove);

/* prepare.c: moves the item on: sets ready, or due_ms for another look; parked: for want of a root.
 */
void evq_prepare_item(struct evq_sender *sender, struct evq_item *item);
/* The configuration whose roots hold now. */
const struct evq_config *evq_prepare_roots(const struct evq_sender *sender);

/* snapshots.c: has the item's jobs, whose checkpoint lies in memory, say how others get at it. */
void evq_snapshots_offer(struct evq_sender *sender, struct evq_item *item,
                         const struct evq_root *root);
/* snapshots.c: adds where this client serves it to a job that is about to be sent, when the
 * connection to Redis is made. */
void evq_snapshots_place(struct evq_sender *sender, struct evq_job *job);

/* deliver.c: sends what is ready, or spools it. Returns when to call again, monotonic ms;
 * INT64_MAX: no need. */
int64_t evq_deliver(struct evq_sender *sender);

#endif
