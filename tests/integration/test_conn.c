#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shared/clock.h"
#include "tests/fixture/redis.h"

static struct fixture_redis *server; // One for the tests that only speak to it.

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
    struct evq_error err;
    struct evq_conn *conn = NULL;
    const struct evq_conn_config config = {
        .url = url, .call_timeout_ms = call_timeout_ms, .keep_environment = true};
    assert_status_err(evq_conn_open(&config, &conn, &err), EVQ_OK, &err);
    return conn;
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
        assert_int_equal(fixture_call_integer(conn, "INCRBY", "n", "9007199254740993", NULL),
                         INT64_C(9007199254740993) * (int64_t)(i + 1));
        assert_int_equal(evq_conn_generation(conn), 1);
        assert_true(evq_conn_fd(conn) >= 0);
        evq_conn_close(conn);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conn_call_replies_over_tcp_and_unix),
    };
    return cmocka_run_group_tests(tests, server_start, server_end);
}
