#include "producer/gateway/gateway.h"

#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "producer/gateway/api/events.h"
#include "producer/gateway/http/http_server.h"
#include "producer/gateway/http/listen.h"
#include "producer/gateway/lmms/pins.h"
#include "producer/gateway/samples/significance_cache.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"

#define TICK_MS          200
#define DRAIN_MS         10000
#define CONNECTIONS_MAX  2048
#define DESCRIPTORS_REST 128 // Descriptors for other uses than connections.
#define STREAMS_MAX      256
#define WAITING_MAX      1024
#define SAMPLES_THREADS  2 // Reading samples uses no more CPUs than that.
#define SAMPLES_WAITING  64
#define REPLY_MS         60000
#define FIRST_READ_MS                                                                              \
    3000 // How long to read the stream of results before clients may ask for events.

struct service {
    const struct evq_config *config;
    struct evq_admission admission;
    struct evq_api direct;
    struct evq_events *events;
    _Atomic(struct evq_http_server *) server;
    struct evq_thread_pool *pool;
    struct evq_thread_pool *samples; // For requests that read samples.
    struct evq_pins *pins;
    struct evq_significance_cache *steps;
    char where[80];
};

/* How many connections the limit on file descriptors allows. */
static uint32_t connections_allowed(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 256;
    }
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit); // The next line reads the limit that is in force.
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur > CONNECTIONS_MAX + DESCRIPTORS_REST) {
        return CONNECTIONS_MAX;
    }
    return limit.rlim_cur > 2 * DESCRIPTORS_REST ? (uint32_t)limit.rlim_cur - DESCRIPTORS_REST
                                                 : DESCRIPTORS_REST;
}

static enum evq_status open_gate(struct service *service, const struct evq_options *options,
                                 bool loopback, struct evq_error *err)
{
    struct evq_admission *admission = &service->admission;
    admission->has_tokens = options->tokens != NULL;
    admission->loopback = loopback;
    admission->lmms_open = options->lmms_open;
    admission->hosts = service->config->gateway.hosts;
    admission->host_count = service->config->gateway.host_count;
    admission->rate = evq_rate_new(options->rate, 2 * options->rate);
    if (admission->rate == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the rates");
    }
    if (!loopback && !admission->has_tokens && !admission->lmms_open) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "other machines can reach this address, and there are no tokens: give "
                             "--tokens FILE, or --lmms-open to open LMMS-Eval's endpoints only");
    }
    const enum evq_status status = evq_tokens_open(options->tokens, &admission->tokens, err);
    if (status == EVQ_OK && admission->lmms_open) {
        evq_log(EVQ_LOG_WARN, "lmms_open", "warning=%s loopback=%s",
                "everybody who reaches the address can submit evaluations",
                loopback ? "yes" : "no");
    }
    return status == EVQ_E_IO ? evq_error_set(err, EVQ_E_INVALID, "%s", err->message) : status;
}

/* Asks Redis once before the gateway listens, so that an error that a restart cannot fix is
 * reported at once. */
static enum evq_status ask_redis(const struct evq_config *config, struct evq_error *err)
{
    const struct evq_conn_config settings = evq_config_conn(config, "evalq-gateway");
    struct evq_conn *conn = NULL;
    struct evq_queue *queue = NULL;
    struct evq_queue_info info;
    enum evq_status status = evq_conn_open(&settings, &conn, err);
    if (status == EVQ_E_IO) {
        status = evq_error_set(err, EVQ_E_INVALID, "%s", err->message); // The password file.
    }
    if (status == EVQ_OK) {
        status = evq_queue_open(conn, config->redis.queue, &queue, err);
    }
    if (status == EVQ_OK) {
        status = evq_queue_info(queue, &info, err);
        status = status == EVQ_E_RETRY ? EVQ_OK : status; // It loads its data: /readyz says so.
    }
    evq_queue_close(queue);
    evq_conn_close(conn);
    return status == EVQ_E_TIMEOUT ? EVQ_E_IO : status;
}

static void on_news(void *context)
{
    struct service *service = context;
    struct evq_http_server *server = atomic_load(&service->server);
    if (server != NULL) {
        evq_http_server_wake(server);
    }
}

/* Starts events, pool and server. The server owns the socket. */
static enum evq_status start_threads(struct service *service, const struct evq_options *options,
                                     int fd, struct evq_error *err)
{
    struct evq_http_server *started = NULL;
    const struct evq_events_config events = {.follow = evq_events_follow,
                                             .config = service->config,
                                             .on_news = on_news,
                                             .context = service};
    enum evq_status status = evq_events_start(&events, &service->events, err);
    if (status == EVQ_OK) {
        status = evq_pins_start(service->config, &service->pins, err);
    }
    if (status == EVQ_OK) {
        status = evq_significance_cache_open(&service->steps, err);
    }
    struct evq_thread_pool_config pool = {.config = service->config,
                                          .events = service->events,
                                          .pins = service->pins,
                                          .steps = service->steps,
                                          .threads = options->threads,
                                          .waiting_max = WAITING_MAX,
                                          .on_done = evq_http_server_done};
    if (status == EVQ_OK) {
        status = evq_thread_pool_start(&pool, &service->pool, err);
    }
    if (status == EVQ_OK) {
        pool.threads = SAMPLES_THREADS;
        pool.waiting_max = SAMPLES_WAITING;
        status = evq_thread_pool_start(&pool, &service->samples, err);
    }
    if (status != EVQ_OK) {
        (void)close(fd); // Nobody accepts on it.
        return status;
    }
    const struct evq_http_server_config server = {.listen_fd = fd,
                                                  .admission = &service->admission,
                                                  .direct = &service->direct,
                                                  .samples = service->samples,
                                                  .connections_max = connections_allowed(),
                                                  .streams_max = STREAMS_MAX,
                                                  .receive_ms = options->patience_ms,
                                                  .reply_ms = REPLY_MS};
    evq_events_await(service->events, FIRST_READ_MS);
    service->direct.config = service->config;
    service->direct.events = service->events;
    status = evq_http_server_start(&server, service->pool, &started, err);
    atomic_store(&service->server, started);
    return status;
}

static enum evq_status start_all(struct service *service, const struct evq_options *options,
                                 struct evq_error *err)
{
    struct evq_listen at;
    int fd = -1;
    enum evq_status status = evq_listen_parse(options->listen, &at, err);
    if (status == EVQ_OK) {
        status = open_gate(service, options, at.loopback, err);
    }
    if (status == EVQ_OK) {
        status = ask_redis(service->config, err);
    }
    if (status == EVQ_OK) {
        status = evq_listen_open(&at, &fd, service->where, err);
        if (status == EVQ_E_IO) {
            status = evq_error_set(err, EVQ_E_INVALID, "%s", err->message);
        }
    }
    return status == EVQ_OK ? start_threads(service, options, fd, err) : status;
}

static void reload_tokens(struct service *service)
{
    struct evq_error err = {EVQ_OK, ""};
    size_t count = 0;
    if (evq_tokens_reload(service->admission.tokens, &count, &err) == EVQ_OK) {
        evq_log(EVQ_LOG_INFO, "tokens_read", "count=%zu", count);
    } else {
        evq_log(EVQ_LOG_WARN, "tokens_kept", "error=%s", err.message);
    }
}

/* Runs until a signal asks to stop. */
static void serve(struct service *service, int signal_fd)
{
    bool stop = false;
    while (!stop) {
        struct signalfd_siginfo info;
        struct pollfd ready = {.fd = signal_fd, .events = POLLIN};
        bool reload = false;
        if (poll(&ready, 1, TICK_MS) > 0 &&
            read(signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
            reload = info.ssi_signo == SIGHUP;
            stop = !reload;
        }
        if (reload || evq_tokens_changed(service->admission.tokens)) {
            reload_tokens(service);
        }
        evq_http_server_sweep(service->server);
    }
}

/* Accepts no new connections and waits for requests in progress, until the deadline or a second
 * signal. Returns how many requests, streams not counted, were not finished. */
static uint32_t drain(struct service *service, int signal_fd)
{
    const int64_t deadline = evq_clock_mono_ms() + DRAIN_MS;
    evq_http_server_quiesce(service->server);
    while (evq_http_server_busy(service->server) > 0 && evq_clock_left_ms(deadline) > 0) {
        struct pollfd ready = {.fd = signal_fd, .events = POLLIN};
        if (poll(&ready, 1, 20) > 0) {
            break;
        }
        evq_http_server_sweep(service->server);
    }
    return evq_http_server_busy(service->server);
}

enum evq_status evq_gateway_run(const struct evq_config *config, const struct evq_options *options,
                                const sigset_t *signals, struct evq_error *err)
{
    struct service service = {.config = config};
    int signal_fd = signalfd(-1, signals, SFD_CLOEXEC);
    enum evq_status status = signal_fd < 0 ? evq_error_set(err, EVQ_E_BUG, "signalfd failed")
                                           : start_all(&service, options, err);
    if (status == EVQ_OK) {
        evq_log(EVQ_LOG_INFO, "gateway_started", "address=%s queue=%s tokens=%s", service.where,
                config->redis.queue, service.admission.has_tokens ? "yes" : "no");
        serve(&service, signal_fd);
        const uint32_t cut_off = drain(&service, signal_fd);
        evq_log(EVQ_LOG_INFO, "gateway_stopped", "address=%s cut_off=%" PRIu32, service.where,
                cut_off);
    }
    evq_events_stop(service.events);
    evq_thread_pool_stop(service.pool);
    evq_thread_pool_stop(service.samples);
    evq_pins_stop(service.pins);
    evq_http_server_stop(service.server);
    evq_events_free(service.events);
    evq_significance_cache_close(service.steps);
    evq_tokens_free(service.admission.tokens);
    evq_rate_free(service.admission.rate);
    evq_file_close(&signal_fd);
    return status;
}
