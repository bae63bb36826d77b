/*
 * One claimed job, from its claim until Redis has recorded its end. Results of the child wait here
 * until they are published, so an outage of Redis loses nothing. The supervisor's single thread.
 */
#ifndef EVQ_WORKER_SUPERVISOR_LEASE_H
#define EVQ_WORKER_SUPERVISOR_LEASE_H

#include "shared/base/buffer.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"

enum evq_lease_state {
    EVQ_LEASE_HELD,    // The job waits until it can run alone.
    EVQ_LEASE_RUNNING, // A slot has the job.
    EVQ_LEASE_ENDING   // Nothing runs for the job; its outbox is being sent.
};

enum evq_outbox_kind {
    EVQ_OUTBOX_PUBLISH,
    EVQ_OUTBOX_COMPLETE,
    EVQ_OUTBOX_COMPLETE_SHARD,
    EVQ_OUTBOX_FAIL,
    EVQ_OUTBOX_RELEASE,
    EVQ_OUTBOX_SPLIT,
    // Fetch the parts of the shards and add them; becomes publishes and a complete.
    EVQ_OUTBOX_MERGE
};

struct evq_outbox_item { // One thing that Redis must be told, in order.
    enum evq_outbox_kind kind;
    struct evq_result *result; // For PUBLISH; owned.
    enum evq_fail_kind fail;   // For FAIL.
    char reason[512];
    char *detail; // For FAIL; owned; may be NULL.
    struct evq_outbox_item *next;
};

struct evq_lease {
    struct evq_claim *claim; // Owned.
    const struct evq_suite *suite;
    const char *worker; // Name of this worker process.
    enum evq_lease_state state;
    int64_t claimed_ms; // Monotonic.
    int64_t done;       // Progress in units of the evaluator; -1: unknown.
    int64_t total;
    char status[65];
    // The results of a shard so far, each encoded and preceded by its length in 4 bytes.
    struct evq_buffer part;
    bool part_failed; // The part became larger than Redis accepts.
    // A result was lost because memory ran out, so a later "done" must not complete the job.
    bool result_lost;
    struct evq_outbox_item *first;
    struct evq_outbox_item *last;
    // Reserved for the end of the job. Without it, a lease could never end when memory is out.
    struct evq_outbox_item *spare;
    struct evq_lease *next;
};

/* Takes over the claim; suite and worker are borrowed. NULL: out of memory, and the caller keeps
 * the claim. */
struct evq_lease *evq_lease_new(struct evq_claim *claim, const struct evq_suite *suite,
                                const char *worker);
void evq_lease_free(struct evq_lease *lease); // Accepts NULL. Drops what was not sent.

/* These append to the outbox and return false if memory runs out. The first end or fail never does,
 * because its memory was reserved at the claim. publish takes over the result in any case. */
bool evq_lease_queue_publish(struct evq_lease *lease, struct evq_result *result);
bool evq_lease_queue_end(struct evq_lease *lease, enum evq_outbox_kind kind);
bool evq_lease_queue_fail(struct evq_lease *lease, enum evq_fail_kind fail, const char *reason,
                          const char *detail);
void evq_lease_outbox_clear(struct evq_lease *lease);
void evq_lease_outbox_pop(struct evq_lease *lease); // Removes the first item, after it was sent.

/*
 * Adds to a result what the child does not know: names, times, digests, provenance. The texts
 * borrowed here live as long as the lease. Returns false if the suite has no such task, or if
 * memory runs out.
 */
bool evq_lease_complete_result(const struct evq_lease *lease, struct evq_result *result);

/* Adds the result of one task of a shard to the shard's part. */
void evq_lease_part_add(struct evq_lease *lease, const struct evq_result *result);

#endif
