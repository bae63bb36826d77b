#include "producer/gateway/api/events.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/base/clock.h"

#define RING            4096 // Events that are kept, a power of two.
#define RING_BYTES_MAX  ((size_t)16 << 20)
#define HEARTBEAT_MS    15000
#define LISTEN_TEXT     "retry: 2000\n\n" // Also sends the head of the reply at once.
#define RESET_TEXT      "event: reset\ndata: {\"why\": \"events were missed\"}\n\n"
#define CALL_TIMEOUT_MS 5000
#define CONNECT_TIMEOUT 2000

struct place { // A place in the stream of results.
    uint64_t ms;
    uint64_t sequence;
};

struct event {
    char *text; // The text that is sent.
    size_t bytes;
    struct place id; // 0-0: it has none.
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
};

struct evq_events {
    pthread_mutex_t lock; // Guards all members below except follower.
    pthread_cond_t read;  // Signalled when the floor is known.
    struct event ring[RING];
    uint64_t first; // The kept events have the numbers from first to next - 1.
    uint64_t next;
    size_t bytes;
    struct place floor; // A client that saw this event or a later one can resume.
    size_t listeners;
    struct evq_metrics_registry *registry;
    struct evq_events_follower follower;
    pthread_t thread;
    bool started;
};

struct evq_listener {
    struct evq_events *events;
    uint64_t at; // Number of the next event to send.
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    char *rest; // The rest of an event that did not fit.
    size_t rest_bytes;
    size_t rest_at;
    bool reset;
    bool greeted;
    int64_t sent_ms;
};

static bool read_place(const char *text, struct place *ret)
{
    char *end = NULL;
    if (strspn(text, "0123456789") == 0) {
        return false;
    }
    ret->ms = strtoull(text, &end, 10);
    if (*end != '-' || strspn(end + 1, "0123456789") == 0) {
        return false;
    }
    ret->sequence = strtoull(end + 1, &end, 10);
    return *end == '\0';
}

static bool is_less(struct place a, struct place b)
{
    return a.ms != b.ms ? a.ms < b.ms : a.sequence < b.sequence;
}

enum evq_status evq_events_start(const struct evq_events_config *config,
                                 struct evq_events **ret_events, struct evq_error *err)
{
    struct evq_events *events = calloc(1, sizeof *events);
    enum evq_status status = EVQ_OK;
    if (events == NULL || pthread_mutex_init(&events->lock, NULL) != 0 ||
        pthread_cond_init(&events->read, NULL) != 0) {
        free(events);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the events");
    }
    events->floor = (struct place){UINT64_MAX, UINT64_MAX};
    events->follower.events = events;
    events->follower.config = *config;
    atomic_init(&events->follower.stop, false);
    events->registry = evq_metrics_registry_new();
    if (events->registry == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the registry");
    }
    if (status == EVQ_OK && config->config != NULL) {
        struct evq_conn_config conn = evq_config_conn(config->config, "evalq-gateway-events");
        conn.connect_timeout_ms = CONNECT_TIMEOUT;
        conn.call_timeout_ms = CALL_TIMEOUT_MS;
        status = evq_conn_open(&conn, &events->follower.conn, err);
        if (status == EVQ_OK) {
            status = evq_queue_open(events->follower.conn, config->config->redis.queue,
                                    &events->follower.queue, err);
        }
        if (status == EVQ_OK) {
            events->started =
                pthread_create(&events->thread, NULL, config->follow, &events->follower) == 0;
            status =
                events->started ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "no room for a thread");
        }
    }
    if (status != EVQ_OK) {
        evq_events_free(events);
        return status;
    }
    *ret_events = events;
    return EVQ_OK;
}

void evq_events_stop(struct evq_events *events)
{
    if (events != NULL && events->started) {
        atomic_store(&events->follower.stop, true);
        evq_conn_interrupt(events->follower.conn);
        (void)pthread_join(events->thread, NULL);
        events->started = false;
    }
}

void evq_events_free(struct evq_events *events)
{
    if (events == NULL) {
        return;
    }
    evq_events_stop(events);
    evq_queue_close(events->follower.queue);
    evq_conn_close(events->follower.conn);
    for (size_t i = 0; i < RING; i++) {
        free(events->ring[i].text);
    }
    evq_metrics_registry_free(events->registry);
    (void)pthread_cond_destroy(&events->read);
    (void)pthread_mutex_destroy(&events->lock);
    free(events);
}

struct evq_metrics_registry *evq_events_metrics_registry(struct evq_events *events)
{
    return events->registry;
}

/* The caller holds the lock. */
static void drop_first(struct evq_events *events)
{
    struct event *event = &events->ring[events->first++ % RING];
    if (event->id.ms != 0 && is_less(events->floor, event->id)) {
        events->floor = event->id;
    }
    events->bytes -= event->bytes;
    free(event->text);
    *event = (struct event){.text = NULL};
}

void evq_events_add(struct evq_events *events, const char *id, const char *kind, const char *run,
                    const char *data)
{
    struct event event = {.text = NULL};
    struct evq_buffer text;

    evq_buffer_init(&text, 0);
    if (read_place(id, &event.id)) {
        evq_buffer_printf(&text, "id: %s\n", id);
    }
    evq_buffer_printf(&text, "event: %s\ndata: ", kind);
    evq_buffer_text(&text, data);
    evq_buffer_text(&text, "\n\n");
    const char *whole = evq_buffer_string(&text);
    event.text = whole != NULL ? strdup(whole) : NULL;
    event.bytes = text.bytes;
    (void)snprintf(event.run, sizeof event.run, "%s", run);
    evq_buffer_free(&text);

    (void)pthread_mutex_lock(&events->lock);
    if (event.text == NULL) { // Memory ran out: treat it as no longer kept.
        while (events->first < events->next) {
            drop_first(events);
        }
        events->first = ++events->next;
        events->floor = is_less(events->floor, event.id) ? event.id : events->floor;
    } else {
        while (events->next - events->first == RING ||
               (events->first < events->next && events->bytes + event.bytes > RING_BYTES_MAX)) {
            drop_first(events);
        }
        events->bytes += event.bytes;
        events->ring[events->next++ % RING] = event;
    }
    (void)pthread_mutex_unlock(&events->lock);
}

void evq_events_floor(struct evq_events *events, const char *id)
{
    struct place floor = {0, 0};
    (void)read_place(id, &floor); // If it cannot be read, it is the first place.
    (void)pthread_mutex_lock(&events->lock);
    events->floor = floor;
    (void)pthread_cond_broadcast(&events->read);
    (void)pthread_mutex_unlock(&events->lock);
}

void evq_events_await(struct evq_events *events, int64_t timeout_ms)
{
    struct timespec until;
    int waited = 0;
    (void)clock_gettime(CLOCK_REALTIME, &until); // The clock of the condition.
    until.tv_sec += timeout_ms / 1000;
    (void)pthread_mutex_lock(&events->lock);
    while (events->floor.ms == UINT64_MAX && waited == 0) {
        waited = pthread_cond_timedwait(&events->read, &events->lock, &until);
    }
    (void)pthread_mutex_unlock(&events->lock);
}

size_t evq_events_listeners(struct evq_events *events)
{
    (void)pthread_mutex_lock(&events->lock);
    const size_t count = events->listeners;
    (void)pthread_mutex_unlock(&events->lock);
    return count;
}

/* Returns the number of the first event after last. The caller holds the lock. */
static uint64_t find_after(const struct evq_events *events, struct place last)
{
    uint64_t at = events->next;
    while (at > events->first) {
        const struct event *event = &events->ring[(at - 1) % RING];
        if (event->id.ms != 0 && !is_less(last, event->id)) {
            break;
        }
        at--;
    }
    return at;
}

struct evq_listener *evq_events_listen(struct evq_events *events, const char *last_id,
                                       const char *run)
{
    struct place last = {0, 0};
    if (last_id[0] != '\0' && !read_place(last_id, &last)) {
        return NULL;
    }
    struct evq_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return NULL;
    }
    listener->events = events;
    listener->sent_ms = evq_clock_mono_ms();
    (void)snprintf(listener->run, sizeof listener->run, "%s", run);
    (void)pthread_mutex_lock(&events->lock);
    listener->at = events->next;
    if (last_id[0] != '\0') {
        listener->reset = is_less(last, events->floor);
        listener->at = listener->reset ? events->next : find_after(events, last);
    }
    events->listeners++;
    (void)pthread_mutex_unlock(&events->lock);
    return listener;
}

/* Copies as much text as fits; the next pull gets the rest. */
static void give(struct evq_listener *listener, const char *text, size_t bytes, char *out,
                 size_t room, size_t *used)
{
    const size_t fits = bytes < room - *used ? bytes : room - *used;
    memcpy(out + *used, text, fits);
    *used += fits;
    if (fits < bytes) {
        listener->rest = malloc(bytes - fits);
        if (listener->rest == NULL) {
            listener->reset = true; // The event is torn; the client drops it.
            return;
        }
        memcpy(listener->rest, text + fits, bytes - fits);
        listener->rest_bytes = bytes - fits;
        listener->rest_at = 0;
    }
}

/* Copies the rest of the last event. Returns whether there was any. */
static bool give_rest(struct evq_listener *listener, char *out, size_t room, size_t *used)
{
    if (listener->rest == NULL) {
        return false;
    }
    const size_t left = listener->rest_bytes - listener->rest_at;
    const size_t fits = left < room ? left : room;
    memcpy(out, listener->rest + listener->rest_at, fits);
    *used = fits;
    listener->rest_at += fits;
    if (listener->rest_at == listener->rest_bytes) {
        free(listener->rest);
        listener->rest = NULL;
    }
    return true;
}

/* Copies the next event for this listener. */
static const struct event *next_event(struct evq_listener *listener)
{
    struct evq_events *events = listener->events;
    if (listener->at < events->first) { // The listener is too slow, and events were dropped.
        listener->reset = true;
        listener->at = events->next;
    }
    while (listener->at < events->next) {
        const struct event *event = &events->ring[listener->at++ % RING];
        if (listener->run[0] == '\0' || event->run[0] == '\0' ||
            strcmp(event->run, listener->run) == 0) {
            return event;
        }
    }
    return NULL;
}

ssize_t evq_listener_pull(void *context, char *out, size_t bytes_max)
{
    struct evq_listener *listener = context;
    const int64_t now = evq_clock_mono_ms();
    size_t used = 0;
    if (!give_rest(listener, out, bytes_max, &used) && !listener->greeted) {
        listener->greeted = true;
        give(listener, LISTEN_TEXT, sizeof LISTEN_TEXT - 1, out, bytes_max, &used);
    }
    (void)pthread_mutex_lock(&listener->events->lock);
    while (listener->rest == NULL && used < bytes_max) {
        const struct event *event = next_event(listener);
        if (listener->reset) {
            listener->reset = false;
            give(listener, RESET_TEXT, sizeof RESET_TEXT - 1, out, bytes_max, &used);
        } else if (event == NULL) {
            break;
        } else {
            give(listener, event->text, event->bytes, out, bytes_max, &used);
        }
    }
    (void)pthread_mutex_unlock(&listener->events->lock);
    if (used == 0 && now - listener->sent_ms >= HEARTBEAT_MS && bytes_max >= 3) {
        memcpy(out, ":\n\n", 3);
        used = 3;
    }
    listener->sent_ms = used > 0 ? now : listener->sent_ms;
    return (ssize_t)used;
}

void evq_listener_close(void *context)
{
    struct evq_listener *listener = context;
    (void)pthread_mutex_lock(&listener->events->lock);
    listener->events->listeners--;
    (void)pthread_mutex_unlock(&listener->events->lock);
    free(listener->rest);
    free(listener);
}
