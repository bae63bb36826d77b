/*
 * Tickets: names that a client outside, such as one of the gateway, uses for a job. The queue keeps
 * them with the request that made the job. A ticket names one job, or two of which it waits for
 * both. Threads and common errors: shared/queue/queue.h.
 */
#ifndef EVQ_SHARED_QUEUE_QUEUE_TICKET_H
#define EVQ_SHARED_QUEUE_QUEUE_TICKET_H

#include "shared/queue/queue.h"

#define EVQ_TICKET_BYTES_MAX     65 // With its NUL.
#define EVQ_TICKETS_MAX          1000
#define EVQ_TICKET_REQUEST_BYTES 65536 // Limit of the request.

/* Makes a ticket. other NULL or "": one job. request: at most EVQ_TICKET_REQUEST_BYTES.
 * *ret_position: number of queued tickets before it. The same ticket again changes nothing. */
enum evq_status evq_queue_ticket_put(struct evq_queue *queue, const char *ticket, const char *job,
                                     const char *other, const char *request, size_t request_bytes,
                                     int64_t *ret_position, struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_ticket_state { // The state of its job, or GONE.
    EVQ_TICKET_QUEUED,  // Also delayed.
    EVQ_TICKET_RUNNING, // Also if its job is done and the other one is not.
    EVQ_TICKET_DONE,
    EVQ_TICKET_DEAD,
    EVQ_TICKET_SKIPPED,
    EVQ_TICKET_CANCELLED,
    EVQ_TICKET_GONE // Its job was forgotten.
};

struct evq_ticket { // Owned by the caller: evq_ticket_free().
    struct evq_arena *arena;
    enum evq_ticket_state state;
    int64_t created_ms; // Server unix ms; these three are negative until they happen.
    int64_t started_ms;
    int64_t ended_ms;
    int64_t position; // -1: it does not wait.
    const char *job;
    const char *other;           // "": there is none.
    bool other_done;             // The other job has results.
    const char *reason;          // Reason of the job's state.
    const char *other_reason;    // Reason of the other job's state.
    const char *detail;          // Detail of the last failure: exit status, end of the log.
    const char *request;         // As it was stored; NUL-terminated.
    struct evq_result **results; // Results of the job by task name, then of the other job.
    size_t job_results;
    size_t result_count;
};
/* EVQ_E_NOT_FOUND: there is no ticket of this name. */
enum evq_status evq_queue_ticket(struct evq_queue *queue, const char *ticket,
                                 struct evq_ticket **ret_ticket,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
void evq_ticket_free(struct evq_ticket *ticket); // Accepts NULL.

/*
 * Says that the ticket's holder no longer wants the job. The job ends when no other open ticket
 * names it. *ret_done: this call ended it, and *ret_state is EVQ_TICKET_CANCELLED. Otherwise
 * nothing was done: *ret_state is EVQ_TICKET_RUNNING if a worker has begun and running is false, or
 * how the job had ended before. EVQ_E_NOT_FOUND.
 */
enum evq_status evq_queue_ticket_cancel(struct evq_queue *queue, const char *ticket, bool running,
                                        const char *reason, bool *ret_done,
                                        enum evq_ticket_state *ret_state,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_tickets {
    int64_t open; // All that have not ended.
    int64_t done; // Since the queue began.
    int64_t dead;
    size_t count; // The oldest open ones, at most EVQ_TICKETS_MAX.
    struct {
        char name[EVQ_TICKET_BYTES_MAX];
        bool running;
    } list[EVQ_TICKETS_MAX];
};
/* ret_tickets is too large for the stack. */
enum evq_status evq_queue_tickets(struct evq_queue *queue, struct evq_tickets *ret_tickets,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
