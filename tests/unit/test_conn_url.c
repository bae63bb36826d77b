#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "shared/redis/conn_sentinel.h"
#include "shared/redis/conn_url.h"
#include "tests/fixture/check.h"

static struct evq_conn_url parsed(const char *text)
{
    struct evq_error err;
    struct evq_conn_url url;
    memset(&url, 0xa5, sizeof url);
    assert_status_err(evq_conn_url_parse(text, &url, &err), EVQ_OK, &err);
    return url;
}

static void refused(const char *text, const char *because)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_conn_url url;
    memset(&url, 0, sizeof url);
    assert_status(evq_conn_url_parse(text, &url, &err), EVQ_E_INVALID);
    assert_holds(err.message, because);
    assert_string_equal(url.host, "");
}

static void conn_url_parses_tcp(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *host;
        int port;
        int db;
        const char *user;
        const char *where;
    } cases[] = {
        {"redis://localhost", "localhost", 6379, 0, "", "redis://localhost:6379/0"},
        {"redis://localhost/", "localhost", 6379, 0, "", "redis://localhost:6379/0"},
        {"redis://h:1", "h", 1, 0, "", "redis://h:1/0"},
        {"redis://10.0.0.7:65535/15", "10.0.0.7", 65535, 15, "", "redis://10.0.0.7:65535/15"},
        {"redis://worker@redis.lab:6380/2", "redis.lab", 6380, 2, "worker",
         "redis://redis.lab:6380/2"},
        {"redis://[::1]:6381", "::1", 6381, 0, "", "redis://[::1]:6381/0"},
        {"redis://w@[fe80::1%25eth0]/3", "fe80::1%eth0", 6379, 3, "w",
         "redis://[fe80::1%eth0]:6379/3"},
        {"redis://a%40b@h?db=4", "h", 6379, 4, "a@b", "redis://h:6379/4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char where[EVQ_CONN_WHERE_BYTES_MAX];
        struct evq_conn_url url = parsed(cases[i].text);
        assert_false(url.is_unix);
        assert_string_equal(url.host, cases[i].host);
        assert_int_equal(url.port, cases[i].port);
        assert_int_equal(url.db, cases[i].db);
        assert_string_equal(url.user, cases[i].user);
        evq_conn_url_where(&url, where);
        assert_string_equal(where, cases[i].where);
    }
}

static void conn_url_parses_unix(void **state)
{
    (void)state;
    char where[EVQ_CONN_WHERE_BYTES_MAX];

    struct evq_conn_url url = parsed("unix:///run/redis/redis.sock");
    assert_true(url.is_unix);
    assert_string_equal(url.host, "/run/redis/redis.sock");
    assert_int_equal(url.port, 0);
    evq_conn_url_where(&url, where);
    assert_string_equal(where, "unix:///run/redis/redis.sock");

    url = parsed("unix://logger@/tmp/a%20b@c?db=7");
    assert_string_equal(url.host, "/tmp/a b@c");
    assert_string_equal(url.user, "logger");
    assert_int_equal(url.db, 7);
    evq_conn_url_where(&url, where);
    assert_string_equal(where, "unix:///tmp/a b@c?db=7");
}

static void conn_url_refuses_malformed(void **state)
{
    (void)state;
    char path[160] = "unix:///";

    refused(NULL, "no Redis address");
    refused("", "no Redis address");
    refused("localhost:6379", "does not begin with");
    refused("http://localhost", "does not begin with");
    refused("redis://", "host");
    refused("redis://:6379", "host");
    refused("redis://h:0", "port");
    refused("redis://h:65536", "port");
    refused("redis://h:", "port");
    refused("redis://h:63x", "port");
    refused("redis://h:99999999999999999999", "port");
    refused("redis://[::1", "host");
    refused("redis://[]:1", "host");
    refused("redis://[::1]x", "port");
    refused("redis://h/one", "database");
    refused("redis://h/-1", "database");
    refused("redis://h/2147483648", "database");
    refused("redis://h?timeout=3", "?timeout=3");
    refused("redis://h\n", "a control byte, its byte 10");
    refused("\x1b[2J", "a control byte, its byte 1");
    refused("unix:///a\x7f", "a control byte");
    refused("redis://a b", "host");
    refused("redis://h%0", "host");
    refused("redis://h%zz", "host");
    refused("redis://h%00", "host");
    refused("unix://run/redis.sock", "not absolute");
    refused("unix://", "not absolute");
    refused("unix:///a%", "socket path");
    refused("unix:///a?db=x", "db=x");
    memset(path + 8, 'a', 107); // With its slash one more than sun_path can hold.
    refused(path, "longer than 107");
    path[8 + 106] = '\0';
    assert_int_equal(strlen(parsed(path).host), 107);
}

/* The message may end in a log: no part of a password may be in it. */
static void conn_url_refuses_password_without_quoting_it(void **state)
{
    (void)state;
    const char *const urls[] = {
        "redis://:hunter2@h",
        "redis://user:hunter2@h:6379/0",
        "redis://user:hun/hunter2@h",
        "unix://u:hunter2@/a.sock",
        "redis://u:hunter2@[::1",
        "rediss://u:hunter2@h",
        "unix:///a.sock?db=0&password=hunter2",
        "redis://h/0?password=hunter2",
        "redis:/h?Pass=hunter2",
    };
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        struct evq_error err;
        struct evq_conn_url url;
        assert_status(evq_conn_url_parse(urls[i], &url, &err), EVQ_E_INVALID);
        assert_null(strstr(err.message, "hunter2"));
        assert_holds(err.message, "EVALQ_REDIS_PASSWORD_FILE");
    }
    struct evq_error err;
    struct evq_conn_url url;
    assert_status(evq_conn_url_parse("redis:/:hunter2@h", &url, &err), EVQ_E_INVALID);
    assert_null(strstr(err.message, "hunter2"));
    struct evq_conn_sentinels sentinels;
    assert_status(
        evq_conn_sentinel_parse("redis+sentinel://h/m/0?password=hunter2", &sentinels, &url, &err),
        EVQ_E_INVALID);
    assert_null(strstr(err.message, "hunter2"));
}

static void conn_url_parses_tls(void **state)
{
    (void)state;
    char where[EVQ_CONN_WHERE_BYTES_MAX];
    struct evq_conn_url url = parsed("rediss://worker@[::1]:7000/3");
    assert_true(url.tls);
    assert_string_equal(url.host, "::1");
    assert_string_equal(url.user, "worker");
    evq_conn_url_where(&url, where);
    assert_string_equal(where, "rediss://[::1]:7000/3");
    assert_false(parsed("redis://h").tls);
    struct evq_error err;
    assert_status_err(evq_conn_url_move(&url, "10.0.0.2:7001", &err), EVQ_OK, &err);
    assert_true(url.tls); // A cluster's other node is as secret.
}

static void conn_sentinel_parses_each_part(void **state)
{
    (void)state;
    struct evq_error err;
    struct evq_conn_sentinels sentinels;
    struct evq_conn_url url;
    char where[EVQ_CONN_WHERE_BYTES_MAX];
    const char *text = "rediss+sentinel://wor%40ker@a.example,10.0.0.2:7000,[::1]:26380/my-queue/3";

    assert_true(evq_conn_sentinel_is(text));
    assert_false(evq_conn_sentinel_is("redis://h"));
    assert_status_err(evq_conn_sentinel_parse(text, &sentinels, &url, &err), EVQ_OK, &err);
    assert_int_equal(sentinels.count, 3);
    assert_string_equal(sentinels.at[0].host, "a.example");
    assert_int_equal(sentinels.at[0].port, EVQ_CONN_SENTINEL_PORT);
    assert_int_equal(sentinels.at[1].port, 7000);
    assert_string_equal(sentinels.at[2].host, "::1");
    assert_true(sentinels.at[2].tls && url.tls);
    assert_string_equal(sentinels.primary, "my-queue");
    assert_string_equal(url.user, "wor@ker");
    assert_int_equal(url.db, 3);
    evq_conn_sentinel_where(&sentinels, where);
    assert_string_equal(where,
                        "rediss+sentinel://a.example:26379,10.0.0.2:7000,[::1]:26380/my-queue");
    // Cut, and ended, where it is longer than a message.
    char longest[EVQ_CONN_SENTINELS_MAX * 256 + 64] = "redis+sentinel://";
    for (size_t i = 0; i < EVQ_CONN_SENTINELS_MAX; i++) {
        size_t used = strlen(longest);
        memset(longest + used, 'h', 250);
        longest[used + 250] = i + 1 < EVQ_CONN_SENTINELS_MAX ? ',' : '/';
    }
    longest[strlen(longest)] = 'q';
    assert_status_err(evq_conn_sentinel_parse(longest, &sentinels, &url, &err), EVQ_OK, &err);
    evq_conn_sentinel_where(&sentinels, where);
    assert_int_equal(strlen(where), sizeof where - 1);
}

static void conn_sentinel_refuses_malformed(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *said;
    } cases[] = {
        {"redis+sentinel://", "host"},
        {"redis+sentinel://h", "not the primary that they watch"},
        {"redis+sentinel://h/", "not the primary that they watch"},
        {"redis+sentinel://h//1", "not the primary that they watch"},
        {"redis+sentinel://h/a b", "not the primary that they watch"},
        {"redis+sentinel://h,/m", "host"},
        {"redis+sentinel://h,,g/m", "host"},
        {"redis+sentinel://h:0/m", "port"},
        {"redis+sentinel://h/m/x", "the database in the Redis address is 'x'"},
        {"redis+sentinel://a,b,c,d,e,f,g,h,i/m", "more than 8 sentinels"},
        {"redis+sentinel://u:hunter2@h/m", "holds a password"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_error err = {EVQ_OK, ""};
        struct evq_conn_sentinels sentinels;
        struct evq_conn_url url;
        assert_status_err(evq_conn_sentinel_parse(cases[i].text, &sentinels, &url, &err),
                          EVQ_E_INVALID, &err);
        assert_holds(err.message, cases[i].said);
        assert_null(strstr(err.message, "hunter2"));
    }
}

static void conn_url_moves_to_a_cluster_node(void **state)
{
    (void)state;
    struct evq_error err;
    struct evq_conn_url url = parsed("redis://seed:6379");

    assert_status(evq_conn_url_move(&url, "10.0.0.2:7001", &err), EVQ_OK);
    assert_string_equal(url.host, "10.0.0.2");
    assert_int_equal(url.port, 7001);
    assert_status(evq_conn_url_move(&url, ":7002", &err), EVQ_OK); // The same host.
    assert_string_equal(url.host, "10.0.0.2");
    assert_int_equal(url.port, 7002);
    assert_status(evq_conn_url_move(&url, "2001:db8::1:7003", &err), EVQ_OK); // As Redis writes it.
    assert_string_equal(url.host, "2001:db8::1");
    assert_int_equal(url.port, 7003);
    assert_status(evq_conn_url_move(&url, "nonsense", &err), EVQ_E_CORRUPT);
    assert_status(evq_conn_url_move(&url, "h:0", &err), EVQ_E_CORRUPT);
    assert_status(evq_conn_url_move(&url, "", &err), EVQ_E_CORRUPT);
    assert_string_equal(url.host, "2001:db8::1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conn_url_parses_tcp),
        cmocka_unit_test(conn_url_parses_unix),
        cmocka_unit_test(conn_url_refuses_malformed),
        cmocka_unit_test(conn_url_refuses_password_without_quoting_it),
        cmocka_unit_test(conn_url_parses_tls),
        cmocka_unit_test(conn_sentinel_parses_each_part),
        cmocka_unit_test(conn_sentinel_refuses_malformed),
        cmocka_unit_test(conn_url_moves_to_a_cluster_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
