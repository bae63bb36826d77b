/*
 * Tickets: names by which somebody outside, such as a client of the gateway, calls a job, kept in
 * the queue with the request that the job came of. A ticket names one job, or two whose ends it
 * waits for. Threads and common errors: shared/queue/queue.h.
 */
#ifndef EVQ_SHARED_QUEUE_TICKET_H
#define EVQ_SHARED_QUEUE_TICKET_H

#include "shared/queue/queue.h"

#define EVQ_TICKET_BYTES_MAX     65 // With its NUL.
#define EVQ_TICKETS_MAX          1000
#define EVQ_TICKET_REQUEST_BYTES 65536 // Of the request.

/* other NULL or "": one job. request: at most EVQ_TICKET_REQUEST_BYTES. *ret_position: how many
 * queued tickets stand before it. The same ticket again changes nothing. */
enum evq_status evq_queue_ticket_put(struct evq_queue *queue, const char *ticket, const char *job,
                                     const char *other, const char *request, size_t request_bytes,
                                     int64_t *ret_position, struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_ticket_state { // That of its job but for the last two.
    EVQ_TICKET_QUEUED,  // Delayed too.
    EVQ_TICKET_RUNNING, // Also when its job is done and the other is not.
    EVQ_TICKET_DONE,
    EVQ_TICKET_DEAD,
    EVQ_TICKET_SKIPPED,
    EVQ_TICKET_CANCELLED,
    EVQ_TICKET_GONE // Its job was forgotten.
};

struct evq_ticket { // Owned by the caller: evq_ticket_free().
    struct evq_arena *arena;
    enum evq_ticket_state state;
    int64_t created_ms; // Server unix ms; those below 0: not yet.
    int64_t started_ms;
    int64_t ended_ms;
    int64_t position; // -1: it does not wait.
    const char *job;
    const char *other;           // "": there is none.
    bool other_done;             // The other gave results.
    const char *reason;          // Of the job's state.
    const char *other_reason;    // Of the other's.
    const char *detail;          // Of its last failure: exit status, tail of the log.
    const char *request;         // As it was put; NUL-terminated.
    struct evq_result **results; // Of the job, by task name; then of the other.
    size_t job_results;
    size_t result_count;
};
/* EVQ_E_NOT_FOUND: there is none of this name. */
enum evq_status evq_queue_ticket(struct evq_queue *queue, const char *ticket,
                                 struct evq_ticket **ret_ticket,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
void evq_ticket_free(struct evq_ticket *ticket); // Accepts NULL.

/*
 * Its holder wants the job no more; the job ends when no other open ticket names it. *ret_done:
 * this call did it, and *ret_state is EVQ_TICKET_CANCELLED; else nothing was done: it is
 * EVQ_TICKET_RUNNING, a worker has begun and running is false; or how it had ended before.
 * EVQ_E_NOT_FOUND.
 */
enum evq_status evq_queue_ticket_cancel(struct evq_queue *queue, const char *ticket, bool running,
                                        const char *reason, bool *ret_done,
                                        enum evq_ticket_state *ret_state,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_tickets {
    int64_t open; // All that have not ended.
    int64_t done; // Ever.
    int64_t dead;
    size_t count; // The oldest open ones, at most EVQ_TICKETS_MAX.
    struct {
        char name[EVQ_TICKET_BYTES_MAX];
        bool running;
    } list[EVQ_TICKETS_MAX];
};
/* ret_tickets is large: not for the stack. */
enum evq_status evq_queue_tickets(struct evq_queue *queue, struct evq_tickets *ret_tickets,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
