/*
 * One claimed job, from its claim until Redis has taken its end: what its child gave is kept here
 * until it is published, so that an outage costs nothing. The supervisor's single thread.
 */
#ifndef EVQ_WORKER_LEASE_H
#define EVQ_WORKER_LEASE_H

#include "shared/base/buffer.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"

enum evq_lease_state {
    EVQ_LEASE_HELD,    // Waits until it can run alone.
    EVQ_LEASE_RUNNING, // A slot has it.
    EVQ_LEASE_ENDING   // Nothing runs for it; its outbox is being sent.
};

enum evq_outbox_kind {
    EVQ_OUTBOX_PUBLISH,
    EVQ_OUTBOX_COMPLETE,
    EVQ_OUTBOX_COMPLETE_SHARD,
    EVQ_OUTBOX_FAIL,
    EVQ_OUTBOX_RELEASE,
    EVQ_OUTBOX_SPLIT,
    EVQ_OUTBOX_MERGE // Fetch the parts, add them up: turns into publishes and a complete.
};

struct evq_outbox_item { // In the order in which Redis must hear of them.
    enum evq_outbox_kind kind;
    struct evq_result *result; // PUBLISH; owned.
    enum evq_fail_kind fail;   // FAIL.
    char reason[512];
    char *detail; // Owned; may be NULL.
    struct evq_outbox_item *next;
};

struct evq_lease {
    struct evq_claim *claim; // Owned.
    const struct evq_suite *suite;
    const char *worker; // Name of this process.
    enum evq_lease_state state;
    int64_t claimed_ms; // Monotonic.
    int64_t done;       // Progress.
    int64_t total;
    char status[65];
    // A shard's results so far, each encoded with a 4-byte length before it.
    struct evq_buffer part;
    bool part_failed; // It outgrew what Redis takes.
    bool result_lost; // For want of memory: what the child says next completes nothing.
    struct evq_outbox_item *first;
    struct evq_outbox_item *last;
    struct evq_outbox_item *spare; // For the end: without it a lease would be held for ever.
    struct evq_lease *next;
};

/* Takes the claim over; suite and worker are borrowed. NULL when out of memory (the claim stays the
 * caller's). */
struct evq_lease *evq_lease_new(struct evq_claim *claim, const struct evq_suite *suite,
                                const char *worker);
void evq_lease_free(struct evq_lease *lease); // Accepts NULL. Forgets what was not sent.

/* Each appends to the outbox; false when out of memory: end and fail never for the first of them,
 * which has its memory since the claim. publish takes the result over, also then. */
bool evq_lease_publish(struct evq_lease *lease, struct evq_result *result);
bool evq_lease_end(struct evq_lease *lease, enum evq_outbox_kind kind);
bool evq_lease_fail(struct evq_lease *lease, enum evq_fail_kind fail, const char *reason,
                    const char *detail);
void evq_lease_outbox_clear(struct evq_lease *lease);
void evq_lease_outbox_pop(struct evq_lease *lease); // Its first item was sent.

/*
 * Adds to a task's result what its child does not know: names, times, digests, provenance. The
 * texts borrowed here live as long as the lease. False: the suite has no such task, or no memory.
 */
bool evq_lease_result(const struct evq_lease *lease, struct evq_result *result);

/* A shard's task: joins its part. */
void evq_lease_part_add(struct evq_lease *lease, const struct evq_result *result);

/*
 * Sends the first item, whatever its kind. EVQ_OK: it was taken and popped. EVQ_E_LEASE_LOST,
 * EVQ_E_CHANGED: the job is no longer ours. Others: it may be repeated.
 */
enum evq_status evq_lease_send(struct evq_lease *lease, struct evq_queue *queue,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* What a failed evaluation means for its job. */
enum evq_fail_kind evq_lease_fail_kind(enum evq_status status, bool crash);

#endif
