/*
 * Server-sent events of the queue (GET /v1/events). One thread follows the stream of results and
 * keeps the newest events. While somebody listens, it also asks the queue every second for running
 * jobs and the number of jobs in each state.
 *
 *   result  a task of a job was published     id: its place in the stream; data: the record as JSON
 *   end     a job ended                       the same
 *   state   a job began, moved on, or waits again    {"id", "state", "run", ...}: fields of its
 * hash queue   the numbers of jobs changed       {"states": {...}, "workers": n} reset   events
 * were missed: ask anew      {"why"}
 *
 * Only the first two have ids: Last-Event-ID resumes after the last one that the client saw. Any
 * thread may open and pull listeners; each listener is used by one thread at a time.
 */
#ifndef EVQ_GATEWAY_EVENTS_H
#define EVQ_GATEWAY_EVENTS_H

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
    void *(*follow)(void *feed);     // Main of the thread: evq_events_feed().
    /* Called on the events thread when there is something new, and every 15 s. */
    void (*on_news)(void *context);
    void *context;
};

/* Opens its connection and starts the thread. Errors as evq_conn_open(). */
enum evq_status evq_events_start(const struct evq_events_config *config,
                                 struct evq_events **ret_events,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Waits until the thread has read the stream once. A client that resumes earlier is told to reset.
 */
void evq_events_await(struct evq_events *events, int64_t timeout_ms);
/* Ends the thread: on_news is called no more. Accepts NULL. */
void evq_events_stop(struct evq_events *events);
void evq_events_free(struct evq_events *events); // Accepts NULL. After all listeners were closed.
/* The metrics of the stream's entries. Owned by the events. */
struct evq_metrics_registry *evq_events_metrics_registry(struct evq_events *events);

/* Listens from now on, or after last_id if it is not "". run "": all runs. NULL: memory ran out, or
 * last_id is no id. */
struct evq_listener *evq_events_listen(struct evq_events *events, const char *last_id,
                                       const char *run);
/* As the pull and close of an evq_http_stream. */
ssize_t evq_listener_pull(void *listener, char *out, size_t bytes_max);
void evq_listener_close(void *listener);

/* Of the thread of events (events_feed.c), and of tests. */

#define EVQ_EVENTS_ID_BYTES 44 // "MS-SEQUENCE" of the stream, each to 20 digits.

/* Adds an event. id "": it has none; run "": it is of all runs. data is one line of JSON. */
void evq_events_add(struct evq_events *events, const char *id, const char *kind, const char *run,
                    const char *data);
/* Events before id are not known: a client that resumes there is told to reset.
 */
void evq_events_floor(struct evq_events *events, const char *id);
size_t evq_events_listeners(struct evq_events *events);
void *evq_events_feed(void *feed); // Main of the thread.

/* What the thread has. */
struct evq_feed {
    struct evq_events *events;
    struct evq_events_config config;
    struct evq_conn *conn;
    struct evq_queue *queue;
    atomic_bool stop;
};

#endif
