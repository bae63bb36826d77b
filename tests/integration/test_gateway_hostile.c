/*
 * Tests clients that are slow or greedy, or do not speak HTTP. The other clients are answered all
 * the time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fixture/http.h"
#include "tests/fixture/random.h"

#define BIN        EVQ_TEST_BIN "/evalq-gateway"
#define MANY       1000
#define BODY_BYTES ((size_t)1 << 20)

static struct fixture_http_reply reply;

static int setup(void **state)
{
    *state = fixture_gateway_open(BIN, "--tokens", "tokens", "--rate", "0", NULL);
    return 0;
}

static int setup_impatient(void **state)
{
    *state =
        fixture_gateway_open(BIN, "--tokens", "tokens", "--rate", "0", "--patience", "1", NULL);
    return 0;
}

static int setup_patient(void **state)
{
    *state =
        fixture_gateway_open(BIN, "--tokens", "tokens", "--rate", "0", "--patience", "600", NULL);
    return 0;
}

static int setup_counting(void **state)
{
    *state = fixture_gateway_open(BIN, "--tokens", "tokens", "--rate", "15", NULL);
    return 0;
}

/* The gateway must also end in order, because a sanitizer's report is a failure. */
static int teardown(void **state)
{
    fixture_gateway_close(*state);
    return 0;
}

static void assert_serves(const struct fixture_gateway *gateway)
{
    fixture_http(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_READ, NULL, &reply);
    assert_int_equal(reply.code, 200);
}

static void send_text(int fd, const char *text)
{
    fixture_http_send(fd, text, strlen(text));
}

/* Returns whether the peer has closed the connection. Drops what it sent before. */
static bool is_cut(int fd)
{
    char bytes[4096];
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (poll(&ready, 1, 0) > 0) {
        const ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got <= 0) {
            return got == 0 || (errno != EAGAIN && errno != EINTR);
        }
    }
    return false;
}

static size_t cut_count(const int *fds, size_t count)
{
    size_t cut = 0;
    for (size_t i = 0; i < count; i++) {
        cut += is_cut(fds[i]);
    }
    return cut;
}

static void close_all(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        (void)close(fds[i]);
    }
}

/*
 * The clients send a byte of a header or a body, or nothing, just often enough that no idle timer
 * expires.
 */
static void slow_clients_are_cut_while_others_are_served(void **state)
{
    struct fixture_gateway *gateway = *state;
    enum { DRIPS = 150 };
    int fds[DRIPS];
    for (size_t i = 0; i < DRIPS; i++) {
        fds[i] = fixture_http_connect(gateway);
        if (i % 3 == 1) {
            send_text(fds[i], "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
                              "" FIXTURE_TOKEN_WRITE "\r\nContent-Length: 100000\r\n\r\n{");
        } else if (i % 3 == 2) {
            send_text(fds[i], "GET /v1/queue HTTP/1.1\r\nX-A: ");
        }
    }
    const int64_t deadline = fixture_now_ms() + fixture_patience_ms();
    while (cut_count(fds, DRIPS) < DRIPS) {
        assert_serves(gateway);
        for (size_t i = 0; i < DRIPS; i++) {
            (void)send(fds[i], " ", i % 3 > 0, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        fixture_tick(deadline, "all are cut", __FILE__, __LINE__);
    }
    close_all(fds, DRIPS);
    assert_serves(gateway);
}

/* A client within its time limit is not cut off because of a slow body or a pause after a reply. */
static void clients_within_their_time_are_not_cut(void **state)
{
    struct fixture_gateway *gateway = *state;
    int fd = fixture_http_connect(gateway);
    int64_t last_ms = fixture_now_ms(); // The time of the request whose reply came last.
    // This is longer than the time limit, which each reply renews.
    int64_t end_ms = last_ms + 2500;
    const int64_t give_up_ms = last_ms + fixture_patience_ms();
    while (fixture_now_ms() < end_ms) {
        const int64_t asked_ms = fixture_now_ms();
        send_text(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        if (!fixture_http_read(fd, &reply)) {
            // The test itself was late, so it repeats this.
            assert_true(fixture_now_ms() - last_ms >= 1000);
            assert_true(fixture_now_ms() < give_up_ms);
            (void)close(fd);
            fd = fixture_http_connect(gateway);
            last_ms = fixture_now_ms();
            end_ms = last_ms + 2500;
            continue;
        }
        assert_int_equal(reply.code, 200);
        last_ms = asked_ms;
    }
    (void)close(fd);
}

static void heads_are_bounded(void **state)
{
    struct fixture_gateway *gateway = *state;
    static char large[131072];
    memset(large, 'a', sizeof large - 1);
    static const char *const begins[] = {
        "GET /", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: ", "GET /healthz HTTP/1.1\r\n", ""};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++) {
        const int fd = fixture_http_connect(gateway);
        send_text(fd, begins[i]);
        send_text(fd, large);
        FIXTURE_UNTIL(is_cut(fd));
        (void)close(fd);
        assert_serves(gateway);
    }
    static char address[9000];
    (void)memset(address, 'a', sizeof address - 1);
    address[0] = '/';
    fixture_http(gateway, "GET", address, NULL, NULL, &reply);
    assert_int_equal(reply.code, 400);
    const int fd = fixture_http_connect(gateway); // There are many small headers.
    send_text(fd, "GET /healthz HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < 5000 && !is_cut(fd); i++) {
        send_text(fd, "X-Small: 1\r\n");
    }
    FIXTURE_UNTIL(is_cut(fd));
    (void)close(fd);
    assert_serves(gateway);
}

static int post_of(const struct fixture_gateway *gateway, const char *headers, const char *body,
                   size_t bytes)
{
    const int fd = fixture_http_connect(gateway);
    send_text(fd, "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                  "Authorization: Bearer " FIXTURE_TOKEN_WRITE "\r\n");
    send_text(fd, headers);
    send_text(fd, "\r\n");
    fixture_http_send(fd, body, bytes);
    return fd;
}

static void bodies_are_bounded(void **state)
{
    struct fixture_gateway *gateway = *state;
    char *body = malloc(2 * BODY_BYTES);
    assert_non_null(body);
    memset(body, ' ', 2 * BODY_BYTES);
    body[0] = '{';
    char headers[64];
    (void)snprintf(headers, sizeof headers, "Content-Length: %zu\r\n", BODY_BYTES);
    // The size is just allowed, and the body is not JSON.
    int fd = post_of(gateway, headers, body, BODY_BYTES);
    assert_true(fixture_http_read(fd, &reply));
    assert_int_equal(reply.code, 400);
    assert_holds(reply.body, "not JSON");
    (void)close(fd);
    static const char *const lengths[] = {"1048577", "99999999999999999999", "4294967297"};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        (void)snprintf(headers, sizeof headers, "Content-Length: %s\r\n", lengths[i]);
        fd = post_of(gateway, headers, "", 0); // The gateway answers before it reads the body.
        assert_true(fixture_http_read(fd, &reply));
        assert_int_equal(reply.code, 413);
        FIXTURE_UNTIL(is_cut(fd));
        (void)close(fd);
    }
    fd = post_of(gateway, "Transfer-Encoding: chunked\r\n", "180000\r\n", 8);
    fixture_http_send(fd, body, (size_t)0x180000);
    FIXTURE_UNTIL(is_cut(fd));
    (void)close(fd);
    // The gateway reads a refused body to its end, so that the client reads the reason.
    (void)snprintf(headers, sizeof headers, "Content-Length: %d\r\n", 900000);
    fd = fixture_http_connect(gateway);
    send_text(fd, "POST /v1/jobs HTTP/1.1\r\nHost: [::1]:80\r\n"
                  "Content-Type: application/json\r\n");
    send_text(fd, headers);
    send_text(fd, "\r\n");
    fixture_http_send(fd, body, 900000);
    assert_true(fixture_http_read(fd, &reply));
    assert_int_equal(reply.code, 401);
    (void)close(fd);
    free(body);
    assert_serves(gateway);
}

/* A proxy may see another end of such a request, so no byte after it may be answered. */
static void two_content_lengths_are_refused_and_the_connection_closed(void **state)
{
    struct fixture_gateway *gateway = *state;
    static const char *const lengths[] = {
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Content-Length: 4\r\nContent-Length: 4\r\n",
        "Content-Length: 0\r\nContent-Length: 40\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n",
        "Content-Length : 4\r\n",
        "Content-Length\t: 4\r\n",
    };
    static const char rest[] = "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const int fd = post_of(gateway, lengths[i], rest, sizeof rest - 1);
        assert_true(fixture_http_read(fd, &reply));
        assert_int_equal(reply.code, 400);
        assert_holds(reply.body, "given more than once");
        if (fixture_http_read(fd, &reply)) {
            fail_msg("the rest of a request was answered with %d: %s", reply.code, lengths[i]);
        }
        (void)close(fd);
    }
    assert_serves(gateway);
}

/* Each is answered with an error or by closing the connection, and never with other data. */
static void data_that_are_not_http_are_refused(void **state)
{
    struct fixture_gateway *gateway = *state;
    static const char *const wrongs[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET /healthz\r\n\r\n",
        "GET /healthz HTTP/9.9\r\n\r\n",
        "GET /healthz HTTP/1.1\r\n\r\n", // There is no Host header.
        "GET http://127.0.0.1/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        "CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1x\r\n\r\n{",
        "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
        "chunked\r\n\r\nffffffffffffffffff\r\n",
        "GET /v1/%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /healthz?%ff=1 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /healthz?a&b&c&d&e&f&g&h&i&j&k&l&m&n&o&p&q&r HTTP/1.1\r\nHost: x\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", // This is a TLS handshake.
        "*1\r\n$4\r\nPING\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const int fd = fixture_http_connect(gateway);
        send_text(fd, wrongs[i]);
        (void)shutdown(fd, SHUT_WR);
        if (fixture_http_read(fd, &reply) && reply.code < 400) {
            fail_msg("answered with %d: %s", reply.code, wrongs[i]);
        }
        (void)close(fd);
        assert_serves(gateway);
    }
}

static void random_bytes_change_nothing(void **state)
{
    struct fixture_gateway *gateway = *state;
    static const char *const words[] = {"GET ",
                                        "POST ",
                                        "/v1/jobs",
                                        " HTTP/1.1\r\n",
                                        "Host: x\r\n",
                                        "\r\n",
                                        ": ",
                                        "Content-Length: 5\r\n",
                                        "%",
                                        "{\"run\":",
                                        "Transfer-Encoding: chunked\r\n",
                                        "\xff",
                                        "a"};
    uint64_t seed = fixture_seed();
    for (int round = 0; round < 300; round++) {
        char text[2048];
        size_t used = 0;
        while (used < 1024) {
            const unsigned pick = (unsigned)(fixture_random(&seed) % (1 << 24));
            if (pick % 4 == 0) {
                text[used++] = (char)(pick >> 8);
                continue;
            }
            const char *word = words[pick % (sizeof words / sizeof words[0])];
            memcpy(text + used, word, strlen(word));
            used += strlen(word);
            if (pick % 61 == 0) {
                break;
            }
        }
        const int fd = fixture_http_connect(gateway);
        fixture_http_send(fd, text, used);
        if (round % 2 == 0) { // Some clients close without waiting, others wait for the answer.
            (void)shutdown(fd, SHUT_WR);
            (void)fixture_http_read(fd, &reply);
        }
        (void)close(fd);
    }
    assert_serves(gateway);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    struct fixture_gateway *gateway = *state;
    enum { COUNT = 60 };
    const int fd = fixture_http_connect(gateway);
    for (int i = 0; i < COUNT; i++) {
        char text[256];
        (void)snprintf(text, sizeof text,
                       "GET /v1/jobs/a/%d/regular/quick HTTP/1.1\r\nHost: x\r\nAuthorization: "
                       "Bearer " FIXTURE_TOKEN_READ "\r\n\r\n%s",
                       i, i % 3 == 0 ? "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" : "");
        send_text(fd, text);
    }
    for (int i = 0; i < COUNT; i++) {
        char word[64];
        (void)snprintf(word, sizeof word, "a/%d/regular/quick", i);
        assert_true(fixture_http_read(fd, &reply));
        assert_int_equal(reply.code, 404);
        assert_holds(reply.body, word);
        if (i % 3 == 0) {
            assert_true(fixture_http_read(fd, &reply));
            assert_int_equal(reply.code, 200);
        }
    }
    (void)close(fd);
}

static bool many_descriptors(rlim_t want)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max >= want;
}

/*
 * A thousand clients send nothing, and a thousand send half a request. Then more connect than there
 * is space for.
 */
static void thousands_of_connections_leave_space_for_others(void **state)
{
    struct fixture_gateway *gateway = *state;
    int *fds = calloc(3 * MANY, sizeof *fds);
    assert_non_null(fds);
    if (!many_descriptors(4 * MANY)) {
        free(fds);
        skip();
    }
    for (size_t i = 0; i < MANY; i++) {
        fds[i] = fixture_http_connect(gateway);
        if (i % 2 == 0) {
            send_text(fds[i], "GET /healthz HTT");
        }
    }
    assert_serves(gateway);
    assert_int_equal(cut_count(fds, MANY), 0); // A thousand connections are allowed.
    for (size_t i = MANY; i < 3 * MANY; i++) {
        fds[i] = fixture_http_connect(gateway);
        if (i % 500 == 0) {
            assert_serves(gateway);
        }
    }
    assert_serves(gateway);
    FIXTURE_UNTIL(cut_count(fds, 3 * MANY) >= MANY - 48); // The oldest connections were closed.
    assert_serves(gateway);
    close_all(fds, 3 * MANY);
    free(fds);
    assert_serves(gateway);
}

/* A client that sends requests and reads no answers fills only its own buffers. */
static void a_client_that_reads_nothing_delays_nobody(void **state)
{
    struct fixture_gateway *gateway = *state;
    enum { DEAF = 20 };
    int fds[DEAF];
    static const char ask[] =
        "GET /v1/queue HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " FIXTURE_TOKEN_READ "\r\n\r\n";
    for (size_t i = 0; i < DEAF; i++) {
        fds[i] = fixture_http_connect(gateway);
        const int small = 4096;
        (void)setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        for (int k = 0; k < 2000; k++) { // Send until the gateway accepts no more.
            if (send(fds[i], ask, sizeof ask - 1, MSG_NOSIGNAL | MSG_DONTWAIT) <= 0) {
                break;
            }
        }
    }
    for (int i = 0; i < 10; i++) {
        assert_serves(gateway);
    }
    close_all(fds, DEAF);
    assert_serves(gateway);
}

/*
 * Redis is stopped. Requests that need it get an error in time, and the others get their answer at
 * once.
 */
static void a_stopped_redis_is_reported(void **state)
{
    struct fixture_gateway *gateway = *state;
    enum { ASKERS = 30 };
    int fds[ASKERS];
    static const char ask[] = "GET /v1/queue HTTP/1.1\r\nHost: x\r\nConnection: "
                              "close\r\nAuthorization: Bearer " FIXTURE_TOKEN_READ "\r\n\r\n";
    fixture_redis_suspend(gateway->fx->redis);
    for (size_t i = 0; i < ASKERS; i++) {
        fds[i] = fixture_http_connect(gateway);
        send_text(fds[i], ask);
    }
    for (int i = 0; i < 20; i++) {
        fixture_http(gateway, "GET", "/healthz", NULL, NULL, &reply);
        assert_int_equal(reply.code, 200);
    }
    for (size_t i = 0; i < ASKERS; i++) {
        assert_true(fixture_http_read(fds[i], &reply));
        assert_int_equal(reply.code, 503);
    }
    close_all(fds, ASKERS);
    fixture_redis_resume(gateway->fx->redis);
    assert_serves(gateway);
}

static void too_many_requests_are_limited(void **state)
{
    struct fixture_gateway *gateway = *state;
    int refused = 0;
    for (int i = 0; i < 200; i++) {
        fixture_http(gateway, "GET", "/healthz", NULL, NULL, &reply);
        refused += reply.code == 429;
    }
    assert_true(refused > 0);
    assert_holds(reply.head, reply.code == 429 ? "Retry-After: 1" : "200");
    fixture_http(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_READ, NULL, &reply);
    assert_int_equal(reply.code, 200); // Each token has its own rate limit.
    for (int i = 0; i < 5; i++) {
        fixture_http(gateway, "GET", "/v1/queue", "guess-0123456789-guess", NULL, &reply);
    }
    assert_int_equal(reply.code, 429); // A wrong token costs more.
}

/*
 * A wrong token costs as much as many requests, so guessing reaches the limit long before normal
 * use.
 */
static void guessed_tokens_are_limited_sooner(void **state)
{
    struct fixture_gateway *gateway = *state;
    int guesses = 0;

    do {
        fixture_http(gateway, "GET", "/v1/queue", "guess-0123456789-guess", NULL, &reply);
        assert_true(reply.code == 401 || reply.code == 429);
        guesses++;
    } while (reply.code == 401 && guesses < 1000);
    assert_true(guesses < 20);
    assert_serves(gateway); // A client with a token is not delayed by them.
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slow_clients_are_cut_while_others_are_served,
                                        setup_impatient, teardown),
        cmocka_unit_test_setup_teardown(clients_within_their_time_are_not_cut, setup_impatient,
                                        teardown),
        cmocka_unit_test_setup_teardown(heads_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(bodies_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(two_content_lengths_are_refused_and_the_connection_closed,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(data_that_are_not_http_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(random_bytes_change_nothing, setup_impatient, teardown),
        cmocka_unit_test_setup_teardown(pipelined_requests_are_answered_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(thousands_of_connections_leave_space_for_others,
                                        setup_patient, teardown),
        cmocka_unit_test_setup_teardown(a_client_that_reads_nothing_delays_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stopped_redis_is_reported, setup, teardown),
        cmocka_unit_test_setup_teardown(too_many_requests_are_limited, setup_counting, teardown),
        cmocka_unit_test_setup_teardown(guessed_tokens_are_limited_sooner, setup_counting,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
