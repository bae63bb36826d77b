/*
 * HTTP as the handlers of the gateway see it: a whole request comes in, a whole reply goes out.
 *
 * Threads. One thread of libmicrohttpd reads and writes every socket and waits for nothing else
 * (http_server.c, the only file that knows the library). A request that has arrived whole is handed
 * to a pool of threads (pool.h) while its connection stands by; each of them has a connection to
 * Redis of its own and runs one handler at a time. So a handler may wait for Redis; what takes
 * longer sets again_ms in its reply and is called anew. Handlers of routes marked DIRECT, and the
 * pull function of a stream, run on the library's thread and must not wait at all.
 */
#ifndef EVQ_GATEWAY_HTTP_H
#define EVQ_GATEWAY_HTTP_H

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

enum evq_http_right { // What a route needs, and as bits what a token gives.
    EVQ_HTTP_OPEN = 0,
    EVQ_HTTP_READ = 1,
    EVQ_HTTP_WRITE = 2,
    EVQ_HTTP_LMMS = 4,
};

/* Everything a handler may read. Strings live as long as the request; none is NULL. Paths, query
 * and parameters are decoded, valid UTF-8, and free of control bytes; the body is any bytes. */
struct evq_http_request {
    const char *method;                      // "GET", "POST", ...; HEAD comes as GET.
    const char *path;                        // "/v1/jobs", without the query.
    const char *params[EVQ_HTTP_PARAMS_MAX]; // What {...} of the route's pattern stands for.
    size_t param_count;
    struct evq_pair query[EVQ_HTTP_QUERY_MAX];
    size_t query_count;
    const char *host; // "" when it was not said; so the four below.
    const char *origin;
    const char *content_type;
    const char *authorization;
    const char *last_event_id;
    bool has_body;    // The head announces one.
    const char *body; // NUL-terminated past body_len.
    size_t body_len;
    char peer[EVQ_HTTP_PEER_BYTES]; // Numeric address of the client or of its proxy.
    char user[33];                  // Name of the token; "": none was needed.
    unsigned rights;                // Bits of enum evq_http_right.
    int64_t started_ms;             // Monotonic: when its head had arrived.
    void *memory; // The handler's own between its calls (again_ms); NULL at first; free()d at the
                  // end.
    struct evq_arena *arena; // For what the handler makes; goes with the request.
};

/* Server-sent events and the like: pulled whenever the client can take more. */
struct evq_http_stream {
    /* Copies at most bytes_max bytes to out: how many; 0: nothing now, call again after
     * evq_http_server_wake(); -1: the end. NULL: the reply is no stream. */
    ssize_t (*pull)(void *context, char *out, size_t bytes_max);
    void (*close)(void *context); // Once, also when the client went away.
    void *context;
};

struct evq_http_reply {
    int code;                                      // 200 unless set.
    const char *content_type;                      // A literal; "application/json" unless set.
    struct evq_buffer body;                        // Owned by the reply.
    struct evq_pair headers[EVQ_HTTP_HEADERS_MAX]; // Literals, or of the request's arena.
    size_t header_count;
    int64_t again_ms; // Not a reply yet: the same handler is called again after so long; 0: it is.
    enum evq_status status; // Why code is an error, where a status was the cause; for the log.
    bool detail_alone;      // Errors are {"detail": sentence}, as FastAPI's are; kept until freed.
    struct evq_http_stream stream;
};

void evq_http_reply_init(struct evq_http_reply *reply);
void evq_http_reply_free(struct evq_http_reply *reply); // Leaves it initialised.
/* Both strings must outlive the request. Beyond EVQ_HTTP_HEADERS_MAX: dropped. */
void evq_http_reply_header(struct evq_http_reply *reply, const char *name, const char *value);
/* The body becomes {"error": word, "detail": sentence}, without the word where detail_alone is set;
 * what was written is dropped. */
void evq_http_reply_error(struct evq_http_reply *reply, int code, const char *word,
                          const char *format, ...) EVQ_PRINTF(4, 5);
/* The same from a status: invalid 400, not found 404, conflict 409, no answer from Redis 503, ...
 */
void evq_http_reply_fail(struct evq_http_reply *reply, enum evq_status status,
                         const struct evq_error *err);
/* Takes JSON text from malloc() as the whole body. */
void evq_http_reply_take(struct evq_http_reply *reply, char *json);
/* The answer of a call that gave JSON text or a status: evq_http_reply_take() or
 * evq_http_reply_fail(). */
void evq_http_reply_answer(struct evq_http_reply *reply, enum evq_status status, char *json,
                           const struct evq_error *err);

/* What a handler keeps between two calls for one request: zeroed at first. NULL: out of memory. */
void *evq_http_memory(struct evq_http_request *request, size_t bytes);
/* The value of a query parameter, the last one given; fallback when absent. */
const char *evq_http_query(const struct evq_http_request *request, const char *name,
                           const char *fallback);
/* The same as a whole number of min to max. false: it is none, and the reply says so. */
bool evq_http_query_integer(const struct evq_http_request *request, struct evq_http_reply *reply,
                            const char *name, int64_t min, int64_t max, int64_t *ret);
/* Whether a run can be called so: names are kept in a form of their own. false: the reply says so.
 */
bool evq_http_run_valid(const char *run, struct evq_http_reply *reply);

/*
 * Splits target ("/v1/jobs/a%2Fb?count=5") into path and query of request, in its arena.
 * EVQ_E_INVALID with a sentence: no leading "/", a bad %XX, bytes that are no UTF-8, control bytes,
 * "." and ".." as segments, too many query parameters. EVQ_E_NOMEM.
 */
enum evq_status evq_http_target(struct evq_http_request *request, const char *target,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Whether target's path, still encoded, is of the pattern "/v1/runs/{run}/best"; sets params and
 * param_count then. A {name} stands for one segment that is not empty.
 */
bool evq_http_match(struct evq_http_request *request, const char *target, const char *pattern);

#endif
