#include "producer/gateway/http/http_server.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "producer/gateway/http/http_length.h"
#include "producer/gateway/http/listen.h"
#include "shared/base/clock.h"
#include "shared/base/json_memory.h"
#include "shared/base/log.h"

#define HEAD_BYTES_MAX    32768 // Memory of a connection. The head of a request must fit.
#define BODIES_BYTES_MAX  ((size_t)64 << 20)
#define STREAM_BLOCK      16384
#define STREAM_STUCK_MS   60000 // A stream is closed if its client takes nothing for so long.
#define CONNECTION_SPARES 32    // Silent connections are closed when fewer than this are left.

enum phase { RECEIVING, WORKING, REPLYING, STREAMING };

struct link { // A connection. The server's lock protects all fields.
    struct link *next;
    struct link *previous;
    int fd;
    enum phase phase;
    int64_t since_ms; // When the phase began. In a stream: when the client last took data.
    bool cut;
};

enum progress { HEAD, BODY, DROP, GIVEN, DONE, SENT };

struct call { // A request in progress. Only the library's thread uses it, except for the exchange
              // while progress is GIVEN.
    struct evq_exchange exchange; // Must be first: the pool returns its address.
    struct evq_http_server *server;
    struct MHD_Connection *connection;
    struct link *link;
    enum progress progress;
    char *target;
    struct evq_buffer body;
    bool stream_waits; // Protected by the server's lock, as are the next two.
    struct call *next_stream;
    bool is_stream;
};

struct evq_http_server {
    struct evq_http_server_config config;
    struct evq_thread_pool *pool;
    struct MHD_Daemon *daemon;
    MHD_socket quiesced;
    pthread_mutex_t lock;
    struct link *links;
    uint32_t link_count;
    struct call *streams;
    uint32_t stream_count;
    atomic_bool stopping;
    atomic_uint busy;
    atomic_size_t body_bytes;
};

static void link_phase(struct call *call, enum phase phase)
{
    (void)pthread_mutex_lock(&call->server->lock);
    call->link->phase = phase;
    call->link->since_ms = evq_clock_mono_ms();
    (void)pthread_mutex_unlock(&call->server->lock);
}

/* Call it with the lock held. The library notices the shutdown and closes the connection. */
static void link_cut(struct link *link)
{
    if (!link->cut) {
        link->cut = true;
        (void)shutdown(link->fd, SHUT_RDWR); // It may be gone already.
    }
}

/* Call it with the lock held. Closes the connection that has been sending a request for longest. */
static void cut_oldest(struct evq_http_server *server)
{
    struct link *oldest = NULL;
    for (struct link *link = server->links; link != NULL; link = link->next) {
        if (link->phase == RECEIVING && !link->cut &&
            (oldest == NULL || link->since_ms < oldest->since_ms)) {
            oldest = link;
        }
    }
    if (oldest != NULL) {
        link_cut(oldest);
    }
}

static void on_connection(void *context, struct MHD_Connection *connection, void **ret_link,
                          enum MHD_ConnectionNotificationCode what)
{
    struct evq_http_server *server = context;
    struct link *link = *ret_link;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        link = calloc(1, sizeof *link);
        if (link == NULL || info == NULL) {
            free(link);
            return; // The first request of a connection without a link is refused.
        }
        link->fd = info->connect_fd;
        link->since_ms = evq_clock_mono_ms();
        (void)pthread_mutex_lock(&server->lock);
        link->next = server->links;
        if (link->next != NULL) {
            link->next->previous = link;
        }
        server->links = link;
        if (++server->link_count + CONNECTION_SPARES > server->config.connections_max) {
            cut_oldest(server);
        }
        (void)pthread_mutex_unlock(&server->lock);
        *ret_link = link;
    } else if (link != NULL) { // The library calls this before it closes the socket, so the
                               // descriptor is still this connection's.
        (void)pthread_mutex_lock(&server->lock);
        if (link->previous != NULL) {
            link->previous->next = link->next;
        } else {
            server->links = link->next;
        }
        if (link->next != NULL) {
            link->next->previous = link->previous;
        }
        server->link_count--;
        (void)pthread_mutex_unlock(&server->lock);
        free(link);
        *ret_link = NULL;
    }
}

static void call_free(struct call *call)
{
    if (call != NULL) {
        evq_http_reply_free(&call->exchange.reply);
        atomic_fetch_sub(&call->server->body_bytes, call->body.bytes);
        evq_buffer_free(&call->body);
        evq_arena_free(call->exchange.request.arena);
        free(call->exchange.request.memory);
        free(call->target);
        free(call);
    }
}

/* The library has read a request line. It passes the returned pointer on with the request. */
static void *on_target(void *context, const char *target, struct MHD_Connection *connection)
{
    struct evq_http_server *server = context;
    struct call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        return NULL;
    }
    call->server = server;
    call->connection = connection;
    evq_http_reply_init(&call->exchange.reply);
    evq_buffer_init(&call->body, EVQ_HTTP_BODY_MAX);
    call->exchange.request.arena = evq_arena_new((size_t)8 << 20);
    call->target = strdup(target);
    if (call->target == NULL || call->exchange.request.arena == NULL) {
        call_free(call);
        return NULL;
    }
    return call;
}

static void stream_forget(struct call *call)
{
    struct evq_http_server *server = call->server;
    (void)pthread_mutex_lock(&server->lock);
    for (struct call **at = &server->streams; call->is_stream && *at != NULL;
         at = &(*at)->next_stream) {
        if (*at == call) {
            *at = call->next_stream;
            server->stream_count--;
            break;
        }
    }
    (void)pthread_mutex_unlock(&server->lock);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **ret_call,
                         enum MHD_RequestTerminationCode why)
{
    struct call *call = *ret_call;
    (void)context;
    (void)connection;
    (void)why;
    if (call == NULL) {
        return;
    }
    stream_forget(call);
    if (call->progress != HEAD && !call->is_stream) {
        atomic_fetch_sub(&call->server->busy, 1);
    }
    if (call->link != NULL) {
        link_phase(call, RECEIVING);
    }
    call_free(call);
    *ret_call = NULL;
}

static ssize_t on_pull(void *context, uint64_t at, char *out, size_t bytes_max)
{
    struct call *call = context;
    struct evq_http_server *server = call->server;
    struct evq_http_stream *stream = &call->exchange.reply.stream;
    ssize_t got = -1;
    (void)at;
    (void)pthread_mutex_lock(&server->lock); // A wake-up between pull and wait would be lost.
    if (!atomic_load(&server->stopping)) {
        got = stream->pull(stream->context, out, bytes_max);
    }
    call->link->since_ms = evq_clock_mono_ms();
    if (got == 0) {
        call->stream_waits = true;
        MHD_suspend_connection(call->connection);
    }
    (void)pthread_mutex_unlock(&server->lock);
    return got >= 0 ? got : MHD_CONTENT_READER_END_OF_STREAM;
}

void evq_http_server_wake(struct evq_http_server *server)
{
    (void)pthread_mutex_lock(&server->lock);
    for (struct call *call = server->streams; call != NULL; call = call->next_stream) {
        if (call->stream_waits) {
            call->stream_waits = false;
            MHD_resume_connection(call->connection);
        }
    }
    (void)pthread_mutex_unlock(&server->lock);
}

/* Registers one more stream. false: there are too many. */
static bool stream_begin(struct call *call)
{
    struct evq_http_server *server = call->server;
    (void)pthread_mutex_lock(&server->lock);
    const bool room = server->stream_count < server->config.streams_max;
    if (room) {
        call->is_stream = true;
        call->next_stream = server->streams;
        server->streams = call;
        server->stream_count++;
        call->link->phase = STREAMING;
        call->link->since_ms = evq_clock_mono_ms();
    }
    (void)pthread_mutex_unlock(&server->lock);
    return room;
}

static struct MHD_Response *make_response(struct call *call)
{
    struct evq_http_reply *reply = &call->exchange.reply;
    if (reply->stream.pull != NULL && !stream_begin(call)) {
        evq_http_reply_free(reply);
        evq_http_reply_error(reply, 503, "busy",
                             "%u event streams are open, the most that this gateway allows",
                             call->server->config.streams_max);
    }
    if (reply->stream.pull != NULL) {
        atomic_fetch_sub(&call->server->busy,
                         1); // A stream may last for days, so it is not counted as busy.
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, on_pull, call,
                                                 NULL);
    }
    if (reply->body.failed) {
        evq_http_reply_error(reply, 500, "nomem", "no memory for the reply");
    }
    link_phase(call, REPLYING);
    return MHD_create_response_from_buffer(reply->body.bytes, reply->body.data,
                                           MHD_RESPMEM_PERSISTENT); // Until on_completed().
}

static bool add_headers(struct MHD_Response *response, const struct evq_http_reply *reply)
{
    bool cached = false;
    bool good = MHD_add_response_header(response, "Content-Type", reply->content_type) == MHD_YES &&
                MHD_add_response_header(response, "X-Content-Type-Options", "nosniff") == MHD_YES;
    for (size_t i = 0; i < reply->header_count && good; i++) {
        const struct evq_pair *header = &reply->headers[i];
        cached = cached || strcmp(header->key, "Cache-Control") == 0;
        good = MHD_add_response_header(response, header->key, header->value) == MHD_YES;
    }
    return good &&
           (cached || MHD_add_response_header(response, "Cache-Control", "no-store") == MHD_YES);
}

static enum MHD_Result answer(struct call *call)
{
    const struct evq_http_reply *reply = &call->exchange.reply;
    struct MHD_Response *response = make_response(call);
    bool good = response != NULL && add_headers(response, reply);
    if (good && atomic_load(&call->server->stopping)) {
        good = MHD_add_response_header(response, "Connection", "close") == MHD_YES;
    }
    call->progress = SENT;
    const enum MHD_Result sent =
        good ? MHD_queue_response(call->connection, (unsigned)reply->code, response) : MHD_NO;
    if (response != NULL) {
        MHD_destroy_response(response); // The connection has its own reference.
    }
    return sent;
}

static const char *header_of(const struct call *call, const char *name)
{
    const char *value = MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND, name);
    return value != NULL ? value : "";
}

/* The head has arrived: finds the route and checks the permission. false: the reply refuses. */
static bool begin(struct call *call, const char *method)
{
    struct evq_http_request *request = &call->exchange.request;
    struct evq_http_reply *reply = &call->exchange.reply;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(call->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

    request->method = strcmp(method, "HEAD") == 0 ? "GET" : method;
    request->host = header_of(call, "Host");
    request->origin = header_of(call, "Origin");
    request->content_type = header_of(call, "Content-Type");
    request->has_body = evq_http_length_announced(call->connection);
    request->authorization = header_of(call, "Authorization");
    request->last_event_id = header_of(call, "Last-Event-ID");
    request->body = "";
    request->started_ms = evq_clock_mono_ms();
    evq_listen_peer(info != NULL ? info->client_addr : NULL, request->peer, sizeof request->peer);
    if (atomic_load(&call->server->stopping)) {
        evq_http_reply_error(reply, 503, "stopping", "the gateway is stopping");
        return false;
    }
    call->exchange.route =
        evq_admission_pass(call->server->config.admission, request, call->target, reply);
    return call->exchange.route != NULL;
}

/* Answers before the body is read: the library closes the connection after it. */
static enum MHD_Result answer_at_once(struct call *call, int code, const char *word,
                                      const char *sentence)
{
    evq_http_reply_free(&call->exchange.reply);
    evq_http_reply_error(&call->exchange.reply, code, word, "%s", sentence);
    evq_http_reply_header(&call->exchange.reply, "Connection", "close");
    return answer(call);
}

static enum MHD_Result on_head(struct call *call, const char *method)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(call->connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    call->link = info != NULL ? info->socket_context : NULL;
    if (call->link == NULL) {
        return MHD_NO;
    }
    atomic_fetch_add(&call->server->busy, 1);
    call->progress = begin(call, method) ? BODY : DROP;
    if (evq_http_length_is_ambiguous(call->connection)) {
        return answer_at_once(call, 400, "invalid",
                              "the length of the body is given more than once, by Content-Length "
                              "or Transfer-Encoding, or a header's name holds a blank");
    }
    if (evq_http_length_over(call->connection, EVQ_HTTP_BODY_MAX)) {
        char sentence[64];
        (void)snprintf(sentence, sizeof sentence, "the body is longer than %zu bytes",
                       (size_t)EVQ_HTTP_BODY_MAX);
        return answer_at_once(call, 413, "limit", sentence);
    }
    return MHD_YES;
}

/* Takes a piece of the body. The body of a refused request is read and dropped, so that the client
 * can read the reply. */
static enum MHD_Result on_body(struct call *call, const char *data, size_t bytes)
{
    if (call->progress == BODY) {
        const size_t all = atomic_fetch_add(&call->server->body_bytes, bytes) + bytes;
        const size_t before = call->body.bytes;
        evq_buffer_append(&call->body, data, all <= BODIES_BYTES_MAX ? bytes : 0);
        atomic_fetch_sub(&call->server->body_bytes, bytes - (call->body.bytes - before));
        if (call->body.failed) {
            return MHD_NO; // A chunked body became too long. It is too late for a reply.
        }
        if (all > BODIES_BYTES_MAX) {
            call->progress = DROP;
            evq_http_reply_error(&call->exchange.reply, 503, "busy",
                                 "too many request bodies are in memory");
        }
    }
    return MHD_YES;
}

/* The request is complete. */
static enum MHD_Result on_whole(struct call *call)
{
    struct evq_exchange *exchange = &call->exchange;
    if (call->progress == BODY) {
        exchange->request.body = evq_buffer_string(&call->body);
        exchange->request.body_len = call->body.bytes;
        if (exchange->request.body == NULL) {
            return MHD_NO;
        }
        if (exchange->route->waits_ms > 0) {
            link_phase(call, WORKING);
            call->progress = GIVEN;
            MHD_suspend_connection(call->connection);
            struct evq_thread_pool *pool = exchange->route->waits_ms == EVQ_ROUTE_SAMPLES_MS
                                               ? call->server->config.samples
                                               : call->server->pool;
            if (!evq_thread_pool_add(pool, exchange)) {
                evq_http_reply_error(&exchange->reply, 503, "busy",
                                     "too many requests are waiting");
                evq_http_reply_header(&exchange->reply, "Retry-After", "1");
                evq_http_server_done(exchange);
            }
            return MHD_YES;
        }
        evq_json_memory_clear();
        exchange->route->handler(call->server->config.direct, &exchange->request, &exchange->reply);
    }
    return answer(call);
}

void evq_http_server_done(struct evq_exchange *exchange)
{
    struct call *call = (struct call *)exchange;
    call->progress = DONE;
    MHD_resume_connection(call->connection);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection,
                                  const char *path, const char *method, const char *version,
                                  const char *data, size_t *bytes, void **ret_call)
{
    struct call *call = *ret_call;
    (void)context;
    (void)connection;
    (void)path; // The library's own parsing. http_request.c parses the target itself.
    (void)version;
    if (call == NULL) {
        return MHD_NO; // No memory.
    }
    switch (call->progress) {
    case HEAD:
        return on_head(call, method);
    case BODY:
    case DROP:
        if (*bytes > 0) {
            const enum MHD_Result taken = on_body(call, data, *bytes);
            *bytes = 0;
            return taken;
        }
        return on_whole(call);
    case DONE:
        return answer(call);
    default:
        return MHD_YES; // GIVEN: not resumed by us.
    }
}

static size_t keep_escapes(void *context, struct MHD_Connection *connection, char *text)
{
    (void)context;
    (void)connection;
    return strlen(text); // http_request.c decodes.
}

EVQ_PRINTF(2, 0)
static void on_log(void *context, const char *format, va_list args)
{
    char text[256];
    (void)context;
    (void)vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    evq_log(EVQ_LOG_DEBUG, "http_library", "says=%s", text);
}

enum evq_status evq_http_server_start(const struct evq_http_server_config *config,
                                      struct evq_thread_pool *pool,
                                      struct evq_http_server **ret_server, struct evq_error *err)
{
    struct evq_http_server *server = calloc(1, sizeof *server);
    if (server == NULL || pthread_mutex_init(&server->lock, NULL) != 0) {
        free(server);
        (void)close(config->listen_fd); // Nobody will accept on it.
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the HTTP server");
    }
    server->config = *config;
    server->pool = pool;
    server->quiesced = MHD_INVALID_SOCKET;
    const struct MHD_OptionItem options[] = {
        {MHD_OPTION_CONNECTION_LIMIT, (intptr_t)config->connections_max, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEAD_BYTES_MAX, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)(config->reply_ms / 1000 + 5), NULL},
        {MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
        {MHD_OPTION_LISTEN_SOCKET, config->listen_fd, NULL},
        {MHD_OPTION_END, 0, NULL}};
    server->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        on_request, server, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_URI_LOG_CALLBACK,
        on_target, server, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, server, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    if (server->daemon == NULL) {
        const int failure = errno;
        (void)close(config->listen_fd);
        (void)pthread_mutex_destroy(&server->lock);
        free(server);
        if (failure ==
            EAGAIN) { // No thread could be created. The system's own message does not say that.
            return evq_error_set(err, EVQ_E_NOMEM,
                                 "no memory for the thread of libmicrohttpd, or too many threads");
        }
        return evq_error_set(err, EVQ_E_IO, "libmicrohttpd could not be started: %s",
                             strerror(failure));
    }
    *ret_server = server;
    return EVQ_OK;
}

void evq_http_server_sweep(struct evq_http_server *server)
{
    const int64_t now = evq_clock_mono_ms();
    (void)pthread_mutex_lock(&server->lock);
    for (struct call *call = server->streams; call != NULL; call = call->next_stream) {
        if (call->stream_waits) {
            call->link->since_ms = now; // The stream waits for new data, not for its client.
        }
    }
    for (struct link *link = server->links; link != NULL; link = link->next) {
        const int64_t age_ms = now - link->since_ms;
        const int64_t limit_ms = link->phase == RECEIVING   ? server->config.receive_ms
                                 : link->phase == REPLYING  ? server->config.reply_ms
                                 : link->phase == STREAMING ? STREAM_STUCK_MS
                                                            : INT64_MAX;
        if (age_ms > limit_ms) {
            link_cut(link);
        }
    }
    (void)pthread_mutex_unlock(&server->lock);
}

void evq_http_server_quiesce(struct evq_http_server *server)
{
    atomic_store(&server->stopping, true);
    server->quiesced = MHD_quiesce_daemon(server->daemon);
    evq_http_server_wake(server);
}

uint32_t evq_http_server_busy(struct evq_http_server *server)
{
    return atomic_load(&server->busy);
}

void evq_http_server_stop(struct evq_http_server *server)
{
    if (server != NULL) {
        atomic_store(&server->stopping, true);
        evq_http_server_wake(server); // The library must not stop while a connection is suspended.
        MHD_stop_daemon(server->daemon);
        if (server->quiesced != MHD_INVALID_SOCKET) {
            (void)close(server->quiesced); // MHD_quiesce_daemon() returned it to us.
        }
        (void)pthread_mutex_destroy(&server->lock);
        free(server);
    }
}
