#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "tests/fixture/redis.h"

static struct fixture_redis *server; // The server for tests that do not change it.

static int server_start(void **state)
{
    (void)state;
    const struct fixture_redis_config config = {.tcp = true};
    server = fixture_redis_start(&config);
    return 0;
}

static int server_end(void **state)
{
    (void)state;
    fixture_redis_free(server);
    return 0;
}

static struct evq_conn *open_url(const char *url, int32_t call_timeout_ms)
{
    const struct evq_conn_config config = {
        .url = url, .call_timeout_ms = call_timeout_ms, .keep_environment = true};
    return fixture_conn_open(&config);
}

static void conn_call_replies_over_tcp_and_unix(void **state)
{
    (void)state;
    const char *const urls[] = {server->url, server->tcp_url};
    for (size_t i = 0; i < 2; i++) {
        struct evq_conn *conn = open_url(urls[i], 0);
        assert_int_equal(evq_conn_generation(conn), 0);
        assert_int_equal(evq_conn_fd(conn), -1);
        struct evq_reply *reply = fixture_call(conn, "PING", NULL);
        assert_int_equal(reply->type, EVQ_REPLY_STATUS);
        assert_string_equal(reply->text, "PONG");
        evq_reply_free(reply);
        reply = fixture_call(conn, "GET", "missing", NULL);
        assert_int_equal(reply->type, EVQ_REPLY_NIL);
        evq_reply_free(reply);
        assert_int_equal(fixture_call_integer(conn, "INCRBY", "n", "4503599627370497", NULL),
                         INT64_C(4503599627370497) * (int64_t)(i + 1));
        assert_int_equal(evq_conn_generation(conn), 1);
        assert_int_equal(fcntl(evq_conn_fd(conn), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        evq_conn_close(conn);
    }
}

static void conn_call_finds_localhost_by_name(void **state)
{
    (void)state;
    char url[64];
    struct evq_error err;
    struct addrinfo *found = NULL;

    // A bare chroot has no /etc/hosts, so names cannot be resolved there.
    if (getaddrinfo("localhost", NULL, NULL, &found) != 0) {
        print_message("this machine does not know the name 'localhost'\n");
        skip();
    }
    freeaddrinfo(found);
    (void)snprintf(url, sizeof url, "redis://localhost:%d", server->port);
    struct evq_conn *conn = open_url(url, 0);
    assert_status_err(fixture_ping(conn, &err), EVQ_OK,
                      &err); // The connection also tries ::1, where nobody listens.
    evq_conn_close(conn);
}

static void conn_call_moves_large_and_binary_values(void **state)
{
    (void)state;
    enum { BYTES = 24 << 20 };
    struct evq_error err;
    char *value = malloc(BYTES);
    struct evq_reply *reply = NULL;
    struct evq_conn *conn = open_url(server->tcp_url, 0);

    assert_non_null(value);
    for (size_t i = 0; i < BYTES; i++) {
        value[i] = (char)(i * 31 + i / 257);
    }
    const char *const set[] = {"SET", "large", value};
    const size_t set_bytes[] = {3, 5, BYTES};
    assert_status_err(evq_conn_call(conn, 3, set, set_bytes, 0, &reply, &err), EVQ_OK, &err);
    evq_reply_free(reply);
    reply = fixture_call(conn, "GET", "large", NULL);
    assert_int_equal(reply->bytes, BYTES);
    assert_memory_equal(reply->text, value, BYTES);
    evq_reply_free(reply);
    evq_reply_free(fixture_call(conn, "DEL", "large", NULL));
    free(value);
    evq_conn_close(conn);
}

/*
 * More data than both sockets can hold goes in both directions at once. Neither side may wait for
 * the other.
 */
static void conn_append_pipelines_more_than_sockets_hold(void **state)
{
    (void)state;
    enum { COMMANDS = 20000 };
    char value[1024];
    struct evq_error err;
    struct evq_reply *reply = NULL;
    struct evq_conn *conn = open_url(server->url, 0);

    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    evq_reply_free(fixture_call(conn, "SET", "echo", value, NULL));
    for (int i = 0; i < COMMANDS; i++) {
        const char *const get[] = {"GETRANGE", "echo", "0", i % 2 == 0 ? "-1" : "9"};
        const char *const wrong[] = {"GETRANGE", "echo", "0", "x"};
        assert_status_err(evq_conn_append(conn, 4, i % 1000 == 500 ? wrong : get, NULL, &err),
                          EVQ_OK, &err);
    }
    // A single call is not allowed while replies are outstanding.
    assert_status(fixture_ping(conn, &err), EVQ_E_BUG);
    for (int i = 0; i < COMMANDS; i++) {
        enum evq_status status = evq_conn_read(conn, 0, &reply, &err);
        if (i % 1000 == 500) {
            assert_status(status, EVQ_E_INVALID); // The error belongs to this call only.
            continue;
        }
        assert_status_err(status, EVQ_OK, &err);
        assert_int_equal(reply->bytes, i % 2 == 0 ? 1023 : 10);
        evq_reply_free(reply);
    }
    assert_status(evq_conn_read(conn, 0, &reply, &err), EVQ_E_BUG);
    assert_status_err(fixture_ping(conn, &err), EVQ_OK, &err);
    assert_int_equal(evq_conn_generation(conn), 1);
    evq_conn_close(conn);
}

static void conn_open_selects_database_and_sets_name(void **state)
{
    (void)state;
    char url[160];

    (void)snprintf(url, sizeof url, "%s/3", server->tcp_url);
    const struct evq_conn_config config = {
        .url = url, .name = "evalq worker\n1", .keep_environment = true};
    struct evq_conn *conn = fixture_conn_open(&config);
    struct evq_conn *plain = open_url(server->url, 0);
    assert_string_equal(fixture_call_text(conn, "CLIENT", "GETNAME", NULL).text, "evalq-worker-1");
    evq_reply_free(fixture_call(conn, "SET", "only-in-3", "1", NULL));
    assert_string_equal(fixture_call_text(plain, "GET", "only-in-3", NULL).text, "");
    evq_conn_close(conn);
    (void)snprintf(url, sizeof url, "unix://%s?db=3", server->socket);
    conn = open_url(url, 0);
    assert_string_equal(fixture_call_text(conn, "GET", "only-in-3", NULL).text, "1");
    assert_string_equal(evq_conn_where(conn), url);
    evq_conn_close(conn);
    (void)snprintf(url, sizeof url, "%s/999", server->tcp_url);
    conn = open_url(url, 0);
    struct evq_error err;
    assert_status(fixture_ping(conn, &err), EVQ_E_INVALID);
    assert_holds(err.message, "DB index is out of range");
    assert_int_equal(evq_conn_fd(conn), -1);
    evq_conn_close(conn);
    evq_conn_close(plain);
}

static void conn_call_names_where_when_nobody_listens(void **state)
{
    (void)state;
    char url[64];
    char want[96];
    struct evq_error err;

    (void)snprintf(url, sizeof url, "redis://127.0.0.1:%d", fixture_free_port());
    struct evq_conn *conn = open_url(url, 0);
    assert_status(fixture_ping(conn, &err), EVQ_E_IO);
    (void)snprintf(want, sizeof want, "%s/0: connect: Connection refused", url);
    assert_string_equal(err.message, want);
    evq_conn_close(conn);
    conn = open_url("unix:///nonexistent/redis.sock", 0);
    assert_status(fixture_ping(conn, &err), EVQ_E_IO);
    assert_holds(err.message, "unix:///nonexistent/redis.sock: connect: No such file");
    assert_true(evq_conn_retryable(EVQ_E_IO));
    assert_false(evq_conn_retryable(EVQ_E_AUTH));
    evq_conn_close(conn);
}

static void conn_call_gives_up_a_name_within_its_deadline(void **state)
{
    (void)state;
    struct evq_error err;
    const struct evq_conn_config config = {
        .url = "redis://no-such-host.invalid", .connect_timeout_ms = 300, .keep_environment = true};
    struct evq_conn *conn = fixture_conn_open(&config);
    int64_t began_ms = evq_clock_mono_ms();
    enum evq_status status = fixture_ping(conn, &err);
    assert_true(status == EVQ_E_IO || status == EVQ_E_TIMEOUT);
    assert_holds(err.message, "no-such-host.invalid");
    assert_true(evq_clock_mono_ms() - began_ms < 3000);
    evq_conn_close(conn);
}

static void conn_call_times_out_when_the_server_stands_still(void **state)
{
    (void)state;
    struct evq_error err;
    struct evq_conn *conn = open_url(server->tcp_url, 200);
    assert_status_err(fixture_ping(conn, &err), EVQ_OK, &err);

    fixture_redis_suspend(server);
    int64_t began_ms = evq_clock_mono_ms();
    assert_status(fixture_ping(conn, &err), EVQ_E_TIMEOUT);
    int64_t took_ms = evq_clock_mono_ms() - began_ms;
    assert_true(took_ms >= 199 && took_ms < 5000);
    assert_holds(err.message, "no reply within");
    // The late reply must not become the answer to the next command.
    assert_int_equal(evq_conn_fd(conn), -1);
    // With a deadline in the past, nothing is sent.
    const char *const incr[] = {"INCR", "late"};
    struct evq_reply *reply = NULL;
    assert_status(evq_conn_call(conn, 2, incr, NULL, evq_clock_mono_ms() - 1, &reply, &err),
                  EVQ_E_TIMEOUT);
    fixture_redis_resume(server);

    FIXTURE_UNTIL(fixture_ping(conn, &err) == EVQ_OK);
    assert_true(evq_conn_generation(conn) >= 2);
    assert_string_equal(fixture_call_text(conn, "GET", "late", NULL).text, "");
    evq_conn_close(conn);
}

static void *interrupt_main(void *argument)
{
    struct evq_conn *conn = argument;
    struct evq_conn *other = fixture_redis_conn(server);
    // Interrupt as soon as the server reports that the client is blocked.
    FIXTURE_UNTIL(strstr(fixture_call_text(other, "INFO", "clients", NULL).text,
                         "blocked_clients:1") != NULL);
    evq_conn_interrupt(conn);
    evq_conn_close(other);
    return NULL;
}

static void conn_interrupt_ends_a_blocking_call(void **state)
{
    (void)state;
    struct evq_error err;
    pthread_t thread;
    struct evq_reply *reply = NULL;
    struct evq_conn *conn = open_url(server->url, 0);
    const char *const block[] = {"BLPOP", "nothing", "0"};

    assert_status_err(fixture_ping(conn, &err), EVQ_OK, &err);
    assert_status_err(evq_conn_wait(conn, 1, &err), EVQ_OK, &err);
    assert_int_equal(pthread_create(&thread, NULL, interrupt_main, conn), 0);
    assert_status(
        evq_conn_call(conn, 3, block, NULL, evq_conn_deadline_ms(conn, 60000), &reply, &err),
        EVQ_E_STOPPED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(evq_conn_fd(conn), -1);
    assert_status(fixture_ping(conn, &err), EVQ_E_STOPPED); // An interrupt is permanent.
    assert_status(evq_conn_wait(conn, 60000, &err), EVQ_E_STOPPED);
    evq_conn_close(conn);
}

static void conn_call_reconnects_when_the_server_is_back(void **state)
{
    (void)state;
    struct evq_error err;
    struct evq_reply *reply = NULL;
    const char *const set[] = {"SET", "k", "v"};
    const struct fixture_redis_config config = {.aof = true};
    struct fixture_redis *own = fixture_redis_start(&config);
    struct evq_conn *conn = open_url(own->url, 0);

    evq_reply_free(fixture_call(conn, "SET", "k", "1", NULL));
    for (int i = 0; i < 3; i++) {
        assert_status_err(evq_conn_append(conn, 3, set, NULL, &err), EVQ_OK, &err);
    }
    fixture_redis_kill(own);
    for (int i = 0; i < 3; i++) { // Three replies are missing, and no call hangs.
        assert_status(evq_conn_read(conn, 0, &reply, &err), EVQ_E_IO);
    }
    assert_status(fixture_ping(conn, &err), EVQ_E_IO); // There is one try and no loop.
    assert_status(fixture_ping(conn, &err), EVQ_E_IO);
    assert_int_equal(evq_conn_generation(conn), 1);
    fixture_redis_restart(own);
    // The server has AOF always, so the write has survived.
    assert_string_equal(fixture_call_text(conn, "GET", "k", NULL).text, "1");
    assert_int_equal(evq_conn_generation(conn), 2);
    evq_conn_close(conn);
    fixture_redis_free(own);
}

static void conn_call_classifies_refusals_of_a_real_server(void **state)
{
    (void)state;
    struct fixture_redis *own = fixture_redis_start(NULL);
    struct evq_conn *conn = open_url(own->url, 0);
    const char *const set[] = {"SET", "k", "v"};
    const char *const get[] = {"GET", "k"};
    const char *const call_missing[] = {"FCALL", "evalq_v1_missing", "0"};
    const char *const group[] = {"XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"};
    const char *const push[] = {"LPUSH", "k", "v"};
    const char *const evalsha[] = {"EVALSHA", "0123456789012345678901234567890123456789", "0"};
    const char *const raise[] = {"EVAL",
                                 "return redis.error_reply('EVQ_CONFLICT taken by \x1b[1m')", "0"};
    const char *const nested[] = {"EVAL", "return {1, redis.error_reply('EVQ_NOT_FOUND x')}", "0"};

    fixture_refuses(conn, EVQ_E_VERSION, "run `evalq admin install`", call_missing, 3);
    fixture_refuses(conn, EVQ_E_NOT_FOUND, "NOGROUP", group, 7);
    fixture_refuses(conn, EVQ_E_VERSION, "NOSCRIPT", evalsha, 3);
    fixture_refuses(conn, EVQ_E_CONFLICT, "taken by \\x1b[1m", raise,
                    3); // No escape sequence reaches the terminal.
    fixture_refuses(conn, EVQ_E_NOT_FOUND, "x", nested, 3);
    evq_reply_free(fixture_call(conn, "SET", "k", "v", NULL));
    fixture_refuses(conn, EVQ_E_INVALID, "WRONGTYPE", push, 3);
    assert_int_equal(evq_conn_generation(conn), 1); // All these errors leave the connection open.

    evq_reply_free(fixture_call(conn, "CONFIG", "SET", "maxmemory", "1", NULL));
    fixture_refuses(conn, EVQ_E_RETRY, "OOM", set, 3);
    evq_reply_free(fixture_call(conn, "CONFIG", "SET", "maxmemory", "0", NULL));
    evq_reply_free(fixture_call(conn, "CONFIG", "SET", "min-replicas-to-write", "1", NULL));
    assert_int_equal(evq_conn_generation(conn), 1);
    fixture_refuses(conn, EVQ_E_RETRY, "NOREPLICAS", set, 3);
    // The primary is cut off, and the sentinels may have named another one.
    assert_int_equal(evq_conn_fd(conn), -1);
    evq_reply_free(fixture_call(conn, "CONFIG", "SET", "min-replicas-to-write", "0", NULL));

    evq_reply_free(fixture_call(conn, "REPLICAOF", "127.0.0.1", "1", NULL));
    fixture_refuses(conn, EVQ_E_RETRY, "READONLY", set, 3);
    assert_int_equal(evq_conn_fd(conn), -1); // Another server may be the primary by now.
    evq_reply_free(fixture_call(conn, "CONFIG", "SET", "replica-serve-stale-data", "no", NULL));
    fixture_refuses(conn, EVQ_E_RETRY, "MASTERDOWN", get, 2);
    evq_reply_free(fixture_call(conn, "REPLICAOF", "NO", "ONE", NULL));
    evq_reply_free(fixture_call(conn, "SET", "k", "v", NULL));
    evq_conn_close(conn);
    fixture_redis_free(own);
}

/* Runs a command during which the server cannot serve others. */
struct hog {
    const struct fixture_redis *redis;
    const char *words[3];
    size_t count;
    pthread_t thread;
};

static void *hog_main(void *argument)
{
    struct hog *hog = argument;
    struct evq_conn *conn = fixture_redis_conn(hog->redis);
    struct evq_reply *reply = NULL;
    // The script is killed in the end, so the reply is an error.
    enum evq_status status = evq_conn_call(conn, hog->count, hog->words, NULL, 0, &reply, NULL);
    evq_reply_free(reply);
    evq_conn_close(conn);
    return status == EVQ_OK ? argument : NULL;
}

static void conn_call_waits_out_a_busy_script(void **state)
{
    (void)state;
    struct evq_error err;
    struct fixture_redis *own = fixture_redis_start(NULL);
    struct evq_conn *conn = open_url(own->url, 0);
    struct hog hog = {.redis = own, .words = {"EVAL", "while true do end", "0"}, .count = 3};

    evq_reply_free(fixture_call(conn, "CONFIG", "SET", "busy-reply-threshold", "1", NULL));
    assert_int_equal(pthread_create(&hog.thread, NULL, hog_main, &hog), 0);
    FIXTURE_UNTIL(fixture_ping(conn, &err) == EVQ_E_RETRY);
    assert_holds(err.message, "BUSY");
    evq_reply_free(fixture_call(conn, "SCRIPT", "KILL", NULL));
    FIXTURE_UNTIL(fixture_ping(conn, &err) == EVQ_OK);
    assert_int_equal(pthread_join(hog.thread, NULL), 0);
    evq_conn_close(conn);
    fixture_redis_free(own);
}

static void conn_call_waits_out_a_server_that_loads(void **state)
{
    (void)state;
    struct evq_error err;
    struct fixture_redis *own = fixture_redis_start(NULL);
    struct evq_conn *conn = open_url(own->url, 0);
    struct hog hog = {.redis = own, .words = {"DEBUG", "RELOAD"}, .count = 2};

    // While it loads, the server serves its clients from time to time.
    evq_reply_free(fixture_call(conn, "DEBUG", "POPULATE", "2000", NULL));
    evq_reply_free(fixture_call(conn, "CONFIG", "SET", "key-load-delay", "10000", NULL));
    evq_reply_free(
        fixture_call(conn, "CONFIG", "SET", "loading-process-events-interval-bytes", "1024", NULL));
    assert_int_equal(pthread_create(&hog.thread, NULL, hog_main, &hog), 0);
    FIXTURE_UNTIL(fixture_ping(conn, &err) == EVQ_E_RETRY);
    assert_holds(err.message, "LOADING");
    evq_reply_free(fixture_call(conn, "CONFIG", "SET", "key-load-delay", "0", NULL));
    FIXTURE_UNTIL(fixture_ping(conn, &err) == EVQ_OK);
    assert_int_equal(pthread_join(hog.thread, NULL), 0);
    evq_conn_close(conn);
    fixture_redis_free(own);
}

/* A forked child must not use the socket of its parent's connection, nor disturb the parent. */
static void conn_drop_parts_child_from_parent(void **state)
{
    (void)state;
    struct evq_error err;
    int status = 0;
    struct evq_conn *conn = open_url(server->url, 0);
    int64_t id = fixture_call_integer(conn, "CLIENT", "ID", NULL);

    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int64_t child_id = 0;
        const char *const words[] = {"CLIENT", "ID"};
        struct evq_reply *reply = NULL;
        evq_conn_drop(conn);
        if (evq_conn_call(conn, 2, words, NULL, 0, &reply, NULL) == EVQ_OK) {
            child_id = reply->integer;
        }
        evq_reply_free(reply);
        evq_conn_interrupt(conn);
        bool stopped = fixture_ping(conn, NULL) == EVQ_E_STOPPED;
        evq_conn_close(conn);
        _exit(child_id > id && stopped ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_status_err(fixture_ping(conn, &err), EVQ_OK, &err);
    assert_int_equal(fixture_call_integer(conn, "CLIENT", "ID", NULL), id);
    evq_conn_close(conn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conn_call_replies_over_tcp_and_unix),
        cmocka_unit_test(conn_call_finds_localhost_by_name),
        cmocka_unit_test(conn_call_moves_large_and_binary_values),
        cmocka_unit_test(conn_append_pipelines_more_than_sockets_hold),
        cmocka_unit_test(conn_open_selects_database_and_sets_name),
        cmocka_unit_test(conn_call_names_where_when_nobody_listens),
        cmocka_unit_test(conn_call_gives_up_a_name_within_its_deadline),
        cmocka_unit_test(conn_call_times_out_when_the_server_stands_still),
        cmocka_unit_test(conn_interrupt_ends_a_blocking_call),
        cmocka_unit_test(conn_call_reconnects_when_the_server_is_back),
        cmocka_unit_test(conn_call_classifies_refusals_of_a_real_server),
        cmocka_unit_test(conn_call_waits_out_a_busy_script),
        cmocka_unit_test(conn_call_waits_out_a_server_that_loads),
        cmocka_unit_test(conn_drop_parts_child_from_parent),
    };
    return cmocka_run_group_tests(tests, server_start, server_end);
}
