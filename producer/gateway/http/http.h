/*
 * HTTP as handlers see it: a whole request comes in, a whole reply goes out.
 *
 * Threads. One thread of libmicrohttpd reads and writes every socket and waits for nothing else
 * (http_server.c; no other file knows the library). A complete request goes to a pool of threads
 * (thread_pool.h), and its connection is suspended. Each thread has its own connection to Redis and
 * runs one handler at a time, so a handler may wait for Redis. A handler that needs longer sets
 * again_ms in its reply and is called again. Handlers of routes marked DIRECT, and the pull
 * function of a stream, run on the library's thread and must not wait.
 */
#ifndef EVQ_PRODUCER_GATEWAY_HTTP_HTTP_H
#define EVQ_PRODUCER_GATEWAY_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shared/base/arena.h"
#include "shared/base/buffer.h"
#include "shared/queue/job.h"

#define EVQ_HTTP_PARAMS_MAX  6
#define EVQ_HTTP_QUERY_MAX   16
#define EVQ_HTTP_HEADERS_MAX 8
#define EVQ_HTTP_BODY_MAX    ((size_t)1 << 20) // Bytes; more is refused with 413.
#define EVQ_HTTP_PEER_BYTES  64

enum evq_http_right { // The right that a route needs, and as bits the rights of a token.
    EVQ_HTTP_OPEN = 0,
    EVQ_HTTP_READ = 1,
    EVQ_HTTP_WRITE = 2,
    EVQ_HTTP_LMMS = 4,
};

/* Everything a handler may read. Strings live as long as the request, and none is NULL. Path, query
 * and parameters are decoded, valid UTF-8 without control bytes. The body may hold any bytes. */
struct evq_http_request {
    const char *method;                      // "GET", "POST", ...; HEAD comes as GET.
    const char *path;                        // "/v1/jobs", without the query.
    const char *params[EVQ_HTTP_PARAMS_MAX]; // The values of {...} in the route's pattern.
    size_t param_count;
    struct evq_pair query[EVQ_HTTP_QUERY_MAX];
    size_t query_count;
    const char *host; // "": the header is missing. The same holds for the next four.
    const char *origin;
    const char *content_type;
    const char *authorization;
    const char *last_event_id;
    bool has_body;    // The request has a body.
    const char *body; // NUL-terminated past body_len.
    size_t body_len;
    char peer[EVQ_HTTP_PEER_BYTES]; // Numeric address of the client or of its proxy.
    char user[33];                  // The name of the token. "": none was needed.
    unsigned rights;                // Bits of enum evq_http_right.
    int64_t started_ms;             // When the request's header arrived, monotonic.
    void *memory; // Kept for the handler between its calls (again_ms). NULL at first, freed at the
                  // end.
    struct evq_arena *arena; // For allocations of the handler. Freed with the request.
};

/* A reply without a fixed end, such as server-sent events. */
struct evq_http_stream {
    /* Copies at most bytes_max bytes to out and returns how many. 0: there is nothing now; it is
     * called again after evq_http_server_wake(). -1: the stream ends. NULL: the reply is no stream.
     */
    ssize_t (*pull)(void *context, char *out, size_t bytes_max);
    void (*close)(void *context); // Called once, also if the client disconnects.
    void *context;
};

struct evq_http_reply {
    int code;                                      // 200 unless set.
    const char *content_type;                      // A literal; "application/json" unless set.
    struct evq_buffer body;                        // Owned by the reply.
    struct evq_pair headers[EVQ_HTTP_HEADERS_MAX]; // Literals, or strings in the request's arena.
    size_t header_count;
    int64_t again_ms; // Call the handler again after so long: there is no reply yet. 0: this is the
                      // reply.
    enum evq_status status; // The status that caused the error, for the log.
    bool detail_alone;      // Errors are {"detail": sentence}, as those of FastAPI.
    struct evq_http_stream stream;
};

void evq_http_reply_init(struct evq_http_reply *reply);
void evq_http_reply_free(struct evq_http_reply *reply); // Leaves it initialised.
/* Adds a header. Both strings must outlive the request. Headers beyond EVQ_HTTP_HEADERS_MAX are
 * dropped. */
void evq_http_reply_header(struct evq_http_reply *reply, const char *name, const char *value);
/* Replaces the body by {"error": word, "detail": sentence}, without the word if detail_alone is
 * set. */
void evq_http_reply_error(struct evq_http_reply *reply, int code, const char *word,
                          const char *format, ...) EVQ_PRINTF(4, 5);
/* Like evq_http_reply_error(), with the code of a status: 400 for invalid, 404 for not found, 409
 * for a conflict, 503 if Redis does not answer. */
void evq_http_reply_fail(struct evq_http_reply *reply, enum evq_status status,
                         const struct evq_error *err);
/* Takes JSON text from malloc() as the whole body. */
void evq_http_reply_take(struct evq_http_reply *reply, char *json);
/* Replies with the JSON text of a call that returned EVQ_OK, otherwise with its error. Takes the
 * text. */
void evq_http_reply_answer(struct evq_http_reply *reply, enum evq_status status, char *json,
                           const struct evq_error *err);

/* Memory that a handler keeps between two calls for one request, zeroed at first. NULL: memory ran
 * out. */
void *evq_http_memory(struct evq_http_request *request, size_t bytes);
/* The value of a query parameter. If it is repeated, the last one counts. */
const char *evq_http_query(const struct evq_http_request *request, const char *name,
                           const char *fallback);
/* Reads a query parameter that is an integer from min to max. *ret stays if the parameter is
 * missing. false: it is wrong, and the reply says so. */
bool evq_http_query_integer(const struct evq_http_request *request, struct evq_http_reply *reply,
                            const char *name, int64_t min, int64_t max, int64_t *ret);
/* Whether this is a valid name of a run. false: the reply says why. */
bool evq_http_run_valid(const char *run, struct evq_http_reply *reply);

/*
 * Splits target ("/v1/jobs/a%2Fb?count=5") into path and query of request, in its arena.
 * EVQ_E_INVALID with a sentence: no leading "/", a bad %XX, bytes that are no UTF-8, control bytes,
 * "." and ".." as segments, too many query parameters. EVQ_E_NOMEM.
 */
enum evq_status evq_http_target(struct evq_http_request *request, const char *target,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Whether the path of target, still encoded, matches a pattern such as "/v1/runs/{run}/best". Sets
 * params and param_count if it does. A {name} stands for one segment that is not empty.
 */
bool evq_http_match(struct evq_http_request *request, const char *target, const char *pattern);

#endif
