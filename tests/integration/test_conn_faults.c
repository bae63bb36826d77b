/*
 * Tests a connection with a faulty peer: a small TCP server that answers each command as told, cuts
 * replies and closes connections. Each test runs in plain text, and through TLS with records of one
 * byte that arrive one byte at a time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "tests/fixture/certificate.h"
#include "tests/fixture/front.h"
#include "tests/fixture/redis.h"

static char certificates[64]; // The directory of the certificates; "": plain text.
static bool at_once;          // The relay sends whole records without pauses.

enum after { THEN_HOLD, THEN_CLOSE };

/* What the peer sends on one accepted connection, after it has received something. */
struct scene {
    const char *bytes; // NULL: send nothing.
    size_t byte_count; // 0 means strlen(bytes).
    size_t piece;      // 0 means all at once.
    enum after after;
};

struct peer {
    const struct scene *scenes; // There is one for each connection; the last one is repeated.
    size_t scene_count;
    int listen_fd;
    int stop_fd[2];
    int port;
    char url[64];
    pthread_t thread;
    struct fixture_front *front;
    atomic_int accepted;
};

/* Returns false when the test has ended. */
static bool wait_readable(struct peer *peer, int fd)
{
    struct pollfd polls[2] = {{.fd = fd, .events = POLLIN},
                              {.fd = peer->stop_fd[0], .events = POLLIN}};
    while (poll(polls, 2, -1) < 0) {
    }
    return polls[1].revents == 0;
}

static void say(int fd, const struct scene *scene)
{
    size_t bytes = scene->byte_count != 0 ? scene->byte_count
                   : scene->bytes != NULL ? strlen(scene->bytes)
                                          : 0;
    size_t at = 0;
    while (at < bytes) {
        size_t part = scene->piece != 0 && scene->piece < bytes - at ? scene->piece : bytes - at;
        ssize_t sent = send(fd, scene->bytes + at, part, MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        at += (size_t)sent;
    }
}

static void *peer_main(void *argument)
{
    struct peer *peer = argument;
    int held[64];
    size_t held_count = 0;

    while (wait_readable(peer, peer->listen_fd)) {
        char buffer[65536];
        int fd = accept4(peer->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            continue;
        }
        int at = atomic_fetch_add(&peer->accepted, 1);
        const struct scene *scene =
            &peer->scenes[(size_t)at < peer->scene_count ? (size_t)at : peer->scene_count - 1];
        if (wait_readable(peer, fd) && recv(fd, buffer, sizeof buffer, 0) > 0) {
            say(fd, scene);
        }
        if (scene->after == THEN_CLOSE || held_count == sizeof held / sizeof held[0]) {
            (void)close(fd);
        } else {
            held[held_count++] = fd;
        }
    }
    for (size_t i = 0; i < held_count; i++) {
        (void)close(held[i]);
    }
    return NULL;
}

static void peer_start(struct peer *peer, const struct scene *scenes, size_t scene_count)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;

    memset(peer, 0, sizeof *peer);
    memset(&address, 0, sizeof address);
    peer->scenes = scenes;
    peer->scene_count = scene_count;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    peer->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(peer->listen_fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(peer->listen_fd, 64), 0);
    assert_int_equal(getsockname(peer->listen_fd, (struct sockaddr *)&address, &bytes), 0);
    peer->port = ntohs(address.sin_port);
    (void)snprintf(peer->url, sizeof peer->url, "redis://127.0.0.1:%d", peer->port);
    if (certificates[0] != '\0') {
        const struct fixture_front_config config = {.behind = peer->port,
                                                    .dir = certificates,
                                                    .name = "server",
                                                    .record = at_once ? 0 : 1,
                                                    .trickle = !at_once,
                                                    .abrupt = scene_count > 1};
        peer->front = fixture_front_start(&config);
        (void)snprintf(peer->url, sizeof peer->url, "rediss://127.0.0.1:%d",
                       fixture_front_port(peer->front));
    }
    assert_int_equal(pipe(peer->stop_fd), 0);
    assert_int_equal(pthread_create(&peer->thread, NULL, peer_main, peer), 0);
}

static void peer_end(struct peer *peer)
{
    assert_int_equal(write(peer->stop_fd[1], "x", 1), 1);
    assert_int_equal(pthread_join(peer->thread, NULL), 0);
    fixture_front_end(peer->front);
    (void)close(peer->stop_fd[0]);
    (void)close(peer->stop_fd[1]);
    (void)close(peer->listen_fd);
}

static struct evq_conn *open_url(const char *url, int32_t call_timeout_ms)
{
    char ca[96];
    (void)snprintf(ca, sizeof ca, "%s/ca.pem", certificates);
    const struct evq_conn_config config = {.url = url,
                                           .tls = {.ca = ca},
                                           .call_timeout_ms = call_timeout_ms,
                                           .keep_environment = true};
    return fixture_conn_open(&config);
}

static enum evq_status get(struct evq_conn *conn, struct evq_reply **ret_reply,
                           struct evq_error *err)
{
    static const char *const words[] = {"GET", "k"};
    return evq_conn_call(conn, 2, words, NULL, 0, ret_reply, err);
}

static void conn_call_joins_a_reply_that_comes_in_pieces(void **state)
{
    (void)state;
    const struct scene scenes[] = {{.bytes = "*2\r\n$5\r\nhello\r\n:7\r\n", .piece = 1}};
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;

    peer_start(&peer, scenes, 1);
    struct evq_conn *conn = open_url(peer.url, 0);
    assert_status_err(get(conn, &reply, &err), EVQ_OK, &err);
    assert_string_equal(reply->items[0]->text, "hello");
    assert_int_equal(reply->items[1]->integer, 7);
    evq_reply_free(reply);
    evq_conn_close(conn);
    peer_end(&peer);
}

static void conn_call_fails_when_a_reply_breaks_off(void **state)
{
    (void)state;
    const char whole[] = "*2\r\n$5\r\nhello\r\n:7\r\n";
    struct scene scenes[sizeof whole];
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;

    // The reply is cut after each of its bytes.
    for (size_t cut = 0; cut < sizeof whole - 1; cut++) {
        scenes[cut] =
            (struct scene){.bytes = cut > 0 ? whole : NULL, .byte_count = cut, .after = THEN_CLOSE};
    }
    scenes[sizeof whole - 1] = (struct scene){.bytes = whole};
    peer_start(&peer, scenes, sizeof whole);
    struct evq_conn *conn = open_url(peer.url, 0);
    for (size_t cut = 0; cut < sizeof whole - 1; cut++) {
        assert_status(get(conn, &reply, &err), EVQ_E_IO);
        assert_null(reply);
        assert_int_equal(evq_conn_fd(conn), -1);
    }
    // Half of a reply is dropped with its socket, and the next reply is read from its beginning.
    assert_status_err(get(conn, &reply, &err), EVQ_OK, &err);
    assert_string_equal(reply->items[0]->text, "hello");
    evq_reply_free(reply);
    evq_conn_close(conn);
    assert_int_equal(atomic_load(&peer.accepted), sizeof whole);
    peer_end(&peer);
}

static void conn_call_times_out_on_half_a_reply(void **state)
{
    (void)state;
    const struct scene scenes[] = {{.bytes = "$5\r\nhel"}, {.bytes = "$3\r\nnew\r\n"}};
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;

    peer_start(&peer, scenes, 2);
    // The second answer must arrive within this time, also on a busy machine.
    struct evq_conn *conn = open_url(peer.url, 500);
    assert_status(get(conn, &reply, &err), EVQ_E_TIMEOUT);
    assert_status_err(get(conn, &reply, &err), EVQ_OK, &err);
    assert_string_equal(reply->text, "new");
    evq_reply_free(reply);
    evq_conn_close(conn);
    peer_end(&peer);
}

static void conn_call_refuses_what_is_no_redis(void **state)
{
    (void)state;
    const struct scene scenes[] = {
        {.bytes = "HTTP/1.1 400 Bad Request\r\n\r\n"},
        {.bytes = "$9999999999\r\n"},
        {.bytes = "*2000000000\r\n"},
        {.bytes = "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"},
        {.bytes = "\0\0\0\0", .byte_count = 4},
        {.bytes = "\x15\x03\x03\0\2\2F", .byte_count = 7}, // The size of an encrypted command.
    };
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;
    const size_t count = sizeof scenes / sizeof scenes[0];

    peer_start(&peer, scenes, count);
    struct evq_conn *conn = open_url(peer.url, 0);
    for (size_t i = 0; i < count; i++) {
        assert_status(get(conn, &reply, &err), EVQ_E_IO);
        assert_holds(err.message, peer.url);
        assert_int_equal(evq_conn_fd(conn), -1);
        if (i == 0) {
            assert_holds(err.message, "what answers is no Redis");
        }
        if (i + 1 == count) {
            assert_holds(err.message, "what answers speaks TLS: use rediss://");
        }
    }
    evq_conn_close(conn);
    peer_end(&peer);
}

/*
 * The peer sends two replies to one command. The second one must not become the answer to the next
 * command.
 */
static void conn_call_hangs_up_on_a_reply_too_many(void **state)
{
    (void)state;
    const struct scene scenes[] = {{.bytes = "$3\r\none\r\n$3\r\ntwo\r\n"},
                                   {.bytes = "$3\r\nnew\r\n"}};
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;

    peer_start(&peer, scenes, 2);
    struct evq_conn *conn = open_url(peer.url, 0);
    assert_status_err(get(conn, &reply, &err), EVQ_OK, &err);
    assert_string_equal(reply->text, "one");
    evq_reply_free(reply);
    assert_status_err(get(conn, &reply, &err), EVQ_OK, &err);
    assert_string_equal(reply->text, "new");
    evq_reply_free(reply);
    evq_conn_close(conn);
    peer_end(&peer);
}

static void conn_call_follows_moved_and_returns_home(void **state)
{
    (void)state;
    const struct fixture_redis_config config = {.tcp = true};
    struct fixture_redis *node = fixture_redis_start(&config);
    char moved[64];
    char dead[64];
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;

    (void)snprintf(moved, sizeof moved, "-MOVED 3999 127.0.0.1:%d\r\n", node->port);
    (void)snprintf(dead, sizeof dead, "-MOVED 3999 :%d\r\n", fixture_free_port());
    const struct scene scenes[] = {{.bytes = moved}, {.bytes = dead}, {.bytes = "$4\r\nhome\r\n"}};
    peer_start(&peer, scenes, 3);
    struct evq_conn *conn = open_url(peer.url, 0);
    evq_reply_free(fixture_call(conn, "SET", "k", "at the node", NULL));
    assert_string_equal(fixture_call_text(conn, "GET", "k", NULL).text, "at the node");
    assert_holds(evq_conn_where(conn), node->tcp_url);
    fixture_redis_kill(node);
    assert_status(get(conn, &reply, &err), EVQ_E_IO); // The socket is broken.
    assert_status(get(conn, &reply, &err), EVQ_E_IO); // Nobody listens there any more,
    // so the connection asks the first address again. It names a dead node.
    assert_status(get(conn, &reply, &err), EVQ_E_IO);
    assert_status_err(get(conn, &reply, &err), EVQ_OK, &err);
    assert_string_equal(reply->text, "home");
    evq_reply_free(reply);
    evq_conn_close(conn);
    fixture_redis_free(node);
    peer_end(&peer);
}

/* Each of two nodes redirects to the other one. */
static void conn_call_follows_moved_so_often_and_no_further(void **state)
{
    (void)state;
    char round[64] = "-";
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;
    const struct scene scenes[] = {{.bytes = round}};

    peer_start(&peer, scenes, 1);
    (void)snprintf(round, sizeof round, "-MOVED 3999 127.0.0.1:%d\r\n", peer.port);
    struct evq_conn *conn = open_url(peer.url, 0);
    assert_status(get(conn, &reply, &err), EVQ_E_RETRY);
    assert_holds(err.message, "MOVED");
    assert_int_equal(atomic_load(&peer.accepted), 4);
    evq_conn_close(conn);
    peer_end(&peer);
}

static void conn_call_never_follows_ask(void **state)
{
    (void)state;
    const struct scene scenes[] = {{.bytes = "-ASK 3999 127.0.0.1:1\r\n"}};
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;

    peer_start(&peer, scenes, 1);
    struct evq_conn *conn = open_url(peer.url, 0);
    assert_status(get(conn, &reply, &err), EVQ_E_RETRY);
    assert_true(evq_conn_fd(conn) >= 0);
    assert_holds(evq_conn_where(conn), peer.url);
    evq_conn_close(conn);
    peer_end(&peer);
}

static void sentinel_says(int primary, char text[256])
{
    char port[8];

    (void)snprintf(port, sizeof port, "%d", primary);
    (void)snprintf(text, 256,
                   "*8\r\n$4\r\nname\r\n$1\r\nq\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n"
                   "$%zu\r\n%s\r\n$12\r\nconfig-epoch\r\n$2\r\n17\r\n",
                   strlen(port), port);
}

/*
 * The sentinel's answer arrives one byte at a time. The connection uses the primary in it, and asks
 * again when the primary is gone.
 */
static void conn_call_follows_what_a_sentinel_says_in_pieces(void **state)
{
    (void)state;
    const struct fixture_redis_config config = {.tcp = true};
    struct fixture_redis *node = fixture_redis_start(&config);
    char text[256];
    char url[96];
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;

    sentinel_says(node->port, text);
    const struct scene scenes[] = {{.bytes = text, .piece = 1},
                                   {.bytes = text, .byte_count = 30, .after = THEN_CLOSE},
                                   {.bytes = text}};
    peer_start(&peer, scenes, 3);
    (void)snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/q", peer.port);
    struct evq_conn *conn = open_url(url, 0);
    assert_string_equal(evq_conn_where(conn), url);
    assert_string_equal(evq_conn_failover(conn), "");
    evq_reply_free(fixture_call(conn, "SET", "k", "at the primary", NULL));
    assert_holds(evq_conn_where(conn), node->tcp_url);
    assert_string_equal(evq_conn_failover(conn), "17");
    evq_conn_drop(conn);
    assert_status(get(conn, &reply, &err), EVQ_E_IO); // The answer is cut.
    assert_holds(err.message, url);
    assert_status_err(get(conn, &reply, &err), EVQ_OK, &err);
    assert_string_equal(reply->text, "at the primary");
    evq_reply_free(reply);
    assert_int_equal(atomic_load(&peer.accepted), 3);
    evq_conn_close(conn);
    fixture_redis_free(node);
    peer_end(&peer);
}

/* The first sentinel is cut off from the others, and does not know about the failover. */
static void conn_call_asks_another_sentinel_where_the_primary_is_dead(void **state)
{
    (void)state;
    const struct fixture_redis_config config = {.tcp = true};
    struct fixture_redis *node = fixture_redis_start(&config);
    char old[256];
    char new[256];
    char url[96];
    struct peer peers[2];
    struct evq_error err;
    struct evq_reply *reply = NULL;

    sentinel_says(fixture_free_port(), old);
    sentinel_says(node->port, new);
    const struct scene scenes[] = {{.bytes = old}, {.bytes = new}};
    peer_start(&peers[0], &scenes[0], 1);
    peer_start(&peers[1], &scenes[1], 1);
    (void)snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d/q", peers[0].port,
                   peers[1].port);
    struct evq_conn *conn = open_url(url, 0);
    assert_status(get(conn, &reply, &err), EVQ_E_IO); // Nobody listens at this address.
    assert_status_err(get(conn, &reply, &err), EVQ_OK, &err);
    assert_holds(evq_conn_where(conn), node->tcp_url);
    evq_reply_free(reply);
    evq_conn_close(conn);
    fixture_redis_free(node);
    peer_end(&peers[0]);
    peer_end(&peers[1]);
}

static void *interrupt_main(void *conn)
{
    evq_conn_interrupt(conn);
    return NULL;
}

/*
 * Two sentinels accept and never answer. Each gets its part of the time, and an interrupt ends the
 * call.
 */
static void conn_call_leaves_sentinels_that_say_nothing(void **state)
{
    (void)state;
    const struct scene scenes[] = {{.bytes = NULL}};
    char url[96];
    struct peer peer;
    struct evq_error err;
    struct evq_reply *reply = NULL;
    pthread_t thread;

    peer_start(&peer, scenes, 1);
    (void)snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d/q", peer.port,
                   peer.port);
    const struct evq_conn_config config = {
        .url = url, .connect_timeout_ms = 1000, .keep_environment = true};
    struct evq_conn *conn = fixture_conn_open(&config);
    assert_status(get(conn, &reply, &err), EVQ_E_TIMEOUT);
    assert_holds(err.message, "sentinel redis://127.0.0.1");
    assert_int_equal(atomic_load(&peer.accepted), 2);
    evq_conn_close(conn);
    conn = open_url(url, 60000);
    assert_int_equal(pthread_create(&thread, NULL, interrupt_main, conn), 0);
    assert_status(get(conn, &reply, &err), EVQ_E_STOPPED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    evq_conn_close(conn);
    peer_end(&peer);
}

/*
 * The backlog of the listener is full, so the connection is never established, and the deadline
 * ends the try.
 */
static void conn_call_gives_up_connecting_at_its_deadline(void **state)
{
    (void)state;
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    int filling[8];
    char url[64];
    struct evq_error err;
    struct evq_reply *reply = NULL;

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    for (size_t i = 0; i < 8; i++) {
        filling[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(filling[i], (const struct sockaddr *)&address, sizeof address);
    }
    (void)snprintf(url, sizeof url, "redis://127.0.0.1:%d", ntohs(address.sin_port));
    const struct evq_conn_config config = {
        .url = url, .connect_timeout_ms = 150, .call_timeout_ms = 60000, .keep_environment = true};
    struct evq_conn *conn = fixture_conn_open(&config);
    int64_t began_ms = evq_clock_mono_ms();
    assert_status(get(conn, &reply, &err), EVQ_E_TIMEOUT);
    assert_true(evq_clock_mono_ms() - began_ms < 5000);
    assert_holds(err.message, url);
    evq_conn_close(conn);
    for (size_t i = 0; i < 8; i++) {
        (void)close(filling[i]);
    }
    (void)close(fd);
}

static int begin_tls(void **state)
{
    (void)state;
    fixture_dir_make(certificates);
    fixture_certificate_set(certificates);
    return 0;
}

static int begin_at_once(void **state)
{
    at_once = true;
    return begin_tls(state);
}

static int end_tls(void **state)
{
    (void)state;
    fixture_dir_remove(certificates);
    return 0;
}

int main(void)
{
    const struct CMUnitTest both[] = {
        cmocka_unit_test(conn_call_joins_a_reply_that_comes_in_pieces),
        cmocka_unit_test(conn_call_fails_when_a_reply_breaks_off),
        cmocka_unit_test(conn_call_times_out_on_half_a_reply),
        cmocka_unit_test(conn_call_refuses_what_is_no_redis),
        cmocka_unit_test(conn_call_never_follows_ask),
    };
    const struct CMUnitTest together[] = {
        // A late reply after the next command cannot be distinguished from that command's reply.
        cmocka_unit_test(conn_call_hangs_up_on_a_reply_too_many),
    };
    const struct CMUnitTest plain[] = {
        cmocka_unit_test(conn_call_follows_moved_and_returns_home),
        cmocka_unit_test(conn_call_follows_moved_so_often_and_no_further),
        cmocka_unit_test(conn_call_gives_up_connecting_at_its_deadline),
        cmocka_unit_test(conn_call_follows_what_a_sentinel_says_in_pieces),
        cmocka_unit_test(conn_call_asks_another_sentinel_where_the_primary_is_dead),
        cmocka_unit_test(conn_call_leaves_sentinels_that_say_nothing),
    };
    return cmocka_run_group_tests_name("plain", both, NULL, NULL) +
           cmocka_run_group_tests_name("plain alone", plain, NULL, NULL) +
           cmocka_run_group_tests_name("plain, at once", together, NULL, NULL) +
           cmocka_run_group_tests_name("over TLS", both, begin_tls, end_tls) +
           cmocka_run_group_tests_name("over TLS, at once", together, begin_at_once, end_tls);
}
