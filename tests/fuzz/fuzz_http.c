/*
 * Bytes to the gateway's port, as anybody may send them: request lines, headers, lengths, chunks,
 * several requests in one connection. Whatever comes, the server answers in HTTP or hangs up, and a
 * handler sees a clean request within its limits. The pool is this file's own: it answers at once.
 */
// fuzz: gateway producer
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "producer/gateway/api/events.h"
#include "producer/gateway/api/submit_body.h"
#include "producer/gateway/http/http_server.h"
#include "tests/fuzz/file.h"
#include "tests/fuzz/request.h"

static struct evq_http_server *server;
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static struct evq_config *config;

/* A request that the server hands on. A submit goes as far as it can without Redis. */
bool evq_thread_pool_add(struct evq_thread_pool *pool, struct evq_exchange *exchange)
{
    struct evq_http_request *request = &exchange->request;
    struct evq_http_reply *reply = &exchange->reply;
    struct evq_submit_body submission;

    (void)pool;
    check_request(request);
    check(request->body_len <= EVQ_HTTP_BODY_MAX && request->body[request->body_len] == '\0');
    check(strcmp(request->method, exchange->route->method) == 0);
    if (exchange->route->handler != evq_api_submit) {
        evq_buffer_printf(&reply->body, "{\"bytes\": %zu}", request->body_len);
    } else if (evq_submit_body_read(config, request, &submission, reply)) {
        evq_buffer_text(&reply->body, "{}");
        evq_job_free(submission.job);
    }
    evq_http_server_done(exchange);
    return true;
}

static void start(void)
{
    static const char text[] = "roots: {ckpt: /nowhere/ckpt}\n";
    static const char tokens[] = "all write 0123456789abcdef\n";
    static struct evq_admission gate = {.has_tokens = true, .loopback = true, .lmms_open = true};
    static struct evq_api direct;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    check(evq_config_parse(text, sizeof text - 1, "f.yaml", &config, NULL) == EVQ_OK);
    const char *file = fuzz_file((const uint8_t *)tokens, sizeof tokens - 1);
    check(evq_tokens_open(file, &gate.tokens, NULL) == EVQ_OK);
    gate.rate = evq_rate_new(0, 0);
    direct.config = config;
    check(evq_events_start(&(struct evq_events_config){.config = NULL}, &direct.events, NULL) ==
          EVQ_OK);
    (void)snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "evq-fuzz-%d",
                   (int)getpid()); // Not in the file system.
    check(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    check(listen(fd, 16) == 0);
    const struct evq_http_server_config server_config = {.listen_fd = fd,
                                                         .admission = &gate,
                                                         .direct = &direct,
                                                         .connections_max = 64,
                                                         .streams_max = 4,
                                                         .receive_ms = 3,
                                                         .reply_ms = 5000};
    check(evq_http_server_start(&server_config, NULL, &server, NULL) == EVQ_OK);
}

/* Events, which do not end by themselves. */
static bool streams(const char *reply, size_t bytes)
{
    static const char type[] = "text/event-stream";

    return bytes > 0 && memmem(reply, bytes, type, sizeof(type) - 1) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char reply[65536];
    size_t got = 0;

    if (server == NULL) {
        start();
    }
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    (void)!send(fd, data, bytes, MSG_NOSIGNAL); // It may have hung up.
    (void)shutdown(fd, SHUT_WR);
    for (int ticks = 0; got < sizeof(reply); ticks++) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        if (poll(&item, 1, 1) <= 0) {      // Nothing yet, or the fuzzer's own signal.
            evq_http_server_sweep(server); // Which cuts what says no more.
            check(ticks < 5000);
            if (streams(reply, got)) {
                break;
            }
            continue;
        }
        const ssize_t some = recv(fd, reply + got, sizeof(reply) - got, 0);
        if (some <= 0) {
            check(some == 0 || errno == ECONNRESET);
            break;
        }
        got += (size_t)some;
    }
    check(got == 0 || (got >= 12 && memcmp(reply, "HTTP/1.", 7) == 0));
    (void)close(fd);
    if (streams(reply, got)) {
        evq_http_server_wake(server); // It finds nobody there.
    }
    return 0;
}
