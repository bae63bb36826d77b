/*
 * Server-sent events of the queue (GET /v1/events). One thread follows the stream of results and
 * keeps the newest events. While a client listens, it also asks the queue every second for running
 * jobs and the number of jobs in each state.
 *
 *   event    when                                    data
 *   result   a task of a job was published           the result record as JSON
 *   end      a job ended                             the same
 *   state    a job began, progressed or was queued   {"id", "state", "run", ...}
 *   queue    the numbers of jobs changed             {"states": {...}, "workers": n}
 *   reset    events were missed; read all again      {"why"}
 *
 * Only result and end have an id, which is their place in the stream. With Last-Event-ID, a client
 * continues after the last id that it saw. Any thread may open and pull listeners; one thread at a
 * time uses a listener.
 */
#ifndef EVQ_PRODUCER_GATEWAY_API_EVENTS_H
#define EVQ_PRODUCER_GATEWAY_API_EVENTS_H

#include <stdatomic.h>
#include <sys/types.h>

#include "producer/gateway/http/http.h"
#include "producer/gateway/metrics/metrics_registry.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"

struct evq_events;
struct evq_listener;

struct evq_events_config {
    const struct evq_config *config; // Borrowed. NULL: no thread, events are added by hand.
    void *(*follow)(void *follower); // The thread's main function: evq_events_follow().
    /* Called on the events thread when there is something new, and every 15 s. */
    void (*on_news)(void *context);
    void *context;
};

/* Opens its connection and starts the thread. Errors as evq_conn_open(). */
enum evq_status evq_events_start(const struct evq_events_config *config,
                                 struct evq_events **ret_events,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Waits until the thread has read the stream once. Until then, clients that resume get a reset. */
void evq_events_await(struct evq_events *events, int64_t timeout_ms);
/* Ends the thread. on_news is not called afterwards. Accepts NULL. */
void evq_events_stop(struct evq_events *events);
/* Call it after all listeners were closed. Accepts NULL. */
void evq_events_free(struct evq_events *events);
/* The metrics of the stream's entries. Owned by the events. */
struct evq_metrics_registry *evq_events_metrics_registry(struct evq_events *events);

/* Listens from now on, or after last_id if it is not "". run "": all runs. NULL: memory ran out, or
 * last_id is no id. */
struct evq_listener *evq_events_listen(struct evq_events *events, const char *last_id,
                                       const char *run);
/* The functions pull and close of an evq_http_stream. */
ssize_t evq_listener_pull(void *listener, char *out, size_t bytes_max);
void evq_listener_close(void *listener);

/* The following is for events_follow.c, which has the thread, and for tests. */

#define EVQ_EVENTS_ID_BYTES 44 // "MS-SEQUENCE" of the stream, each to 20 digits.

/* Adds an event. id "": it has none. run "": it concerns all runs. data is one line of JSON. */
void evq_events_add(struct evq_events *events, const char *id, const char *kind, const char *run,
                    const char *data);
/* Sets the oldest known event. A client that resumes before it gets a reset. */
void evq_events_floor(struct evq_events *events, const char *id);
size_t evq_events_listeners(struct evq_events *events);
void *evq_events_follow(void *follower); // The thread's main function.

/* The state of the thread. */
struct evq_events_follower {
    struct evq_events *events;
    struct evq_events_config config;
    struct evq_conn *conn;
    struct evq_queue *queue;
    atomic_bool stop;
};

#endif
