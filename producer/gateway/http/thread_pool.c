#include "producer/gateway/http/thread_pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/json_memory.h"
#include "shared/base/log.h"
#include "shared/verify/timed_verify.h"

enum { CONNECT_TIMEOUT_MS = 2000, CALL_TIMEOUT_MS = 5000, LOOK_TIMEOUT_MS = 2000 };

struct thread {
    struct evq_thread_pool *pool;
    struct evq_conn *conn;
    struct evq_queue *queue;
    pthread_t id;
    bool started;
};

struct evq_thread_pool {
    struct evq_thread_pool_config config;
    struct evq_timed_verify *verify;
    pthread_mutex_t lock; // Guards the lists and stop.
    pthread_cond_t more;
    struct evq_exchange *first; // Requests that wait, in order.
    struct evq_exchange *last;
    struct evq_exchange *delayed; // Requests whose handler is called again later, in no order.
    uint32_t waiting;
    bool stop;
    bool opened; // lock and more.
    struct thread threads[EVQ_POOL_THREADS_MAX];
};

static void add_last(struct evq_thread_pool *pool, struct evq_exchange *exchange)
{
    exchange->next = NULL;
    if (pool->first == NULL) {
        pool->first = exchange;
    } else {
        pool->last->next = exchange;
    }
    pool->last = exchange;
    pool->waiting++;
}

/* Moves delayed requests that are due to the waiting ones. Returns ms until the next is due; -1:
 * none. */
static int64_t move_due(struct evq_thread_pool *pool)
{
    const int64_t now = evq_clock_mono_ms();
    int64_t next_ms = -1;
    for (struct evq_exchange **at = &pool->delayed; *at != NULL;) {
        struct evq_exchange *exchange = *at;
        const int64_t left = exchange->due_ms - now;
        if (left <= 0) {
            *at = exchange->next;
            exchange->queued_ms = now;
            add_last(pool, exchange);
            continue;
        }
        next_ms = next_ms < 0 || left < next_ms ? left : next_ms;
        at = &exchange->next;
    }
    return next_ms;
}

static void wait_for_more(struct evq_thread_pool *pool, int64_t wait_ms)
{
    struct timespec until;
    if (wait_ms < 0) {
        (void)pthread_cond_wait(&pool->more, &pool->lock);
        return;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &until); // The clock of the condition.
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(&pool->more, &pool->lock, &until); // Looks again either way.
}

/* Waits for the next request. NULL: the pool stops. */
static struct evq_exchange *take_next(struct evq_thread_pool *pool)
{
    struct evq_exchange *exchange = NULL;
    (void)pthread_mutex_lock(&pool->lock);
    while (!pool->stop && exchange == NULL) {
        const int64_t next_ms = move_due(pool);
        exchange = pool->first;
        if (exchange == NULL) {
            wait_for_more(pool, next_ms);
            continue;
        }
        pool->first = exchange->next;
        pool->waiting--;
        if (pool->first != NULL) {
            (void)pthread_cond_signal(&pool->more);
        }
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return exchange;
}

static void answer_busy(struct evq_exchange *exchange, const char *why)
{
    evq_http_reply_free(&exchange->reply);
    evq_http_reply_error(&exchange->reply, 503, "busy", "%s", why);
    evq_http_reply_header(&exchange->reply, "Retry-After", "1");
}

static void log_reply(const struct evq_exchange *exchange)
{
    const struct evq_http_request *request = &exchange->request;
    const int64_t took_ms = evq_clock_mono_ms() - request->started_ms;
    if (exchange->reply.code >= 500) {
        const struct evq_buffer *body = &exchange->reply.body;
        evq_log(EVQ_LOG_WARN, "request_failed", "method=%s path=%s code=%d ms=%d reply=%.*s",
                request->method, request->path, exchange->reply.code, (int)took_ms,
                (int)(body->bytes > 0 ? body->bytes - 1 : 0), (const char *)body->data);
        return;
    }
    const bool write = exchange->route->right == EVQ_HTTP_WRITE;
    evq_log(write ? EVQ_LOG_INFO : EVQ_LOG_DEBUG, "request",
            "method=%s path=%s code=%d ms=%d user=%s peer=%s", request->method, request->path,
            exchange->reply.code, (int)took_ms, request->user, request->peer);
}

/* Runs the handler. Returns false if it must be called again. */
static bool handle(struct evq_thread_pool *pool, struct thread *thread,
                   struct evq_exchange *exchange)
{
    struct evq_http_reply *reply = &exchange->reply;
    struct evq_api api = {.config = pool->config.config,
                          .queue = thread->queue,
                          .events = pool->config.events,
                          .pins = pool->config.pins,
                          .steps = pool->config.steps,
                          .verify = pool->verify};

    if (evq_clock_mono_ms() - exchange->queued_ms > exchange->route->waits_ms) {
        answer_busy(exchange, "too many requests are waiting");
        return true;
    }
    evq_json_memory_clear();
    exchange->route->handler(&api, &exchange->request, reply);
    if (reply->status == EVQ_E_IO) { // Redis may have restarted; the next call reconnects.
        evq_http_reply_free(reply);
        exchange->route->handler(&api, &exchange->request, reply);
    }
    if (reply->again_ms <= 0) {
        return true;
    }
    const int64_t again_ms = reply->again_ms;
    evq_http_reply_free(reply);
    (void)pthread_mutex_lock(&pool->lock);
    const bool stop = pool->stop;
    if (!stop) {
        exchange->due_ms = evq_clock_mono_ms() + again_ms;
        exchange->next = pool->delayed;
        pool->delayed = exchange;
        (void)pthread_cond_signal(&pool->more); // A waiting thread may have to wake earlier.
    }
    (void)pthread_mutex_unlock(&pool->lock);
    if (stop) {
        answer_busy(exchange, "the gateway is stopping");
    }
    return stop;
}

static void *thread_main(void *context)
{
    struct thread *thread = context;
    struct evq_thread_pool *pool = thread->pool;
    struct evq_exchange *exchange = NULL;

    while ((exchange = take_next(pool)) != NULL) {
        if (handle(pool, thread, exchange)) {
            log_reply(exchange);
            pool->config.on_done(exchange);
        }
    }
    return NULL;
}

static enum evq_status open_threads(struct evq_thread_pool *pool, struct evq_error *err)
{
    const struct evq_config *config = pool->config.config;
    enum evq_status status = EVQ_OK;
    for (uint32_t i = 0; i < pool->config.threads && status == EVQ_OK; i++) {
        struct thread *thread = &pool->threads[i];
        struct evq_conn_config conn = evq_config_conn(config, "evalq-gateway");
        conn.connect_timeout_ms = CONNECT_TIMEOUT_MS;
        conn.call_timeout_ms = CALL_TIMEOUT_MS;
        thread->pool = pool;
        status = evq_conn_open(&conn, &thread->conn, err);
        if (status == EVQ_OK) {
            status = evq_queue_open(thread->conn, config->redis.queue, &thread->queue, err);
        }
    }
    for (uint32_t i = 0; i < pool->config.threads && status == EVQ_OK; i++) {
        struct thread *thread = &pool->threads[i];
        thread->started = pthread_create(&thread->id, NULL, thread_main, thread) == 0;
        if (!thread->started) {
            status = evq_error_set(err, EVQ_E_NOMEM, "no room for thread %u of the pool", i + 1);
        }
    }
    return status;
}

enum evq_status evq_thread_pool_start(const struct evq_thread_pool_config *config,
                                      struct evq_thread_pool **ret_pool, struct evq_error *err)
{
    pthread_condattr_t attributes;
    struct evq_thread_pool *pool = calloc(1, sizeof *pool);

    if (pool == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the pool");
    }
    pool->config = *config;
    if (pool->config.threads > EVQ_POOL_THREADS_MAX) {
        pool->config.threads = EVQ_POOL_THREADS_MAX;
    }
    pool->opened = pthread_condattr_init(&attributes) == 0 &&
                   pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                   pthread_mutex_init(&pool->lock, NULL) == 0 &&
                   pthread_cond_init(&pool->more, &attributes) == 0;
    (void)pthread_condattr_destroy(&attributes); // Holds nothing on Linux.
    enum evq_status status = pool->opened
                                 ? evq_timed_verify_open(LOOK_TIMEOUT_MS, &pool->verify, err)
                                 : evq_error_set(err, EVQ_E_NOMEM, "no lock");
    if (status == EVQ_OK) {
        status = open_threads(pool, err);
    }
    if (status != EVQ_OK) {
        evq_thread_pool_stop(pool);
        return status;
    }
    *ret_pool = pool;
    return EVQ_OK;
}

bool evq_thread_pool_add(struct evq_thread_pool *pool, struct evq_exchange *exchange)
{
    (void)pthread_mutex_lock(&pool->lock);
    const bool room = !pool->stop && pool->waiting < pool->config.waiting_max;
    if (room) {
        exchange->queued_ms = evq_clock_mono_ms();
        add_last(pool, exchange);
        (void)pthread_cond_signal(&pool->more);
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return room;
}

/* Replies to all requests of a list. */
static void answer_list(struct evq_thread_pool *pool, struct evq_exchange *exchange)
{
    while (exchange != NULL) {
        struct evq_exchange *next = exchange->next; // on_done may free it.
        answer_busy(exchange, "the gateway is stopping");
        pool->config.on_done(exchange);
        exchange = next;
    }
}

void evq_thread_pool_stop(struct evq_thread_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    if (pool->opened) {
        (void)pthread_mutex_lock(&pool->lock);
        pool->stop = true;
        (void)pthread_cond_broadcast(&pool->more);
        (void)pthread_mutex_unlock(&pool->lock);
    }
    for (uint32_t i = 0; i < pool->config.threads; i++) {
        if (pool->threads[i].started) {
            evq_conn_interrupt(pool->threads[i].conn);
        }
    }
    for (uint32_t i = 0; i < pool->config.threads; i++) {
        struct thread *thread = &pool->threads[i];
        if (thread->started) {
            (void)pthread_join(thread->id, NULL);
        }
        evq_queue_close(thread->queue);
        evq_conn_close(thread->conn);
    }
    answer_list(pool, pool->first);
    answer_list(pool, pool->delayed);
    if (pool->opened) {
        (void)pthread_cond_destroy(&pool->more);
        (void)pthread_mutex_destroy(&pool->lock);
    }
    evq_timed_verify_close(pool->verify);
    free(pool);
}
