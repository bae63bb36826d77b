/*
 * Tests users, passwords and permissions of a connection with real servers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/redis.h"

static struct fixture_redis *server; // The server for tests that do not change it.

static int server_start(void **state)
{
    (void)state;
    server = fixture_redis_start(NULL);
    return 0;
}

static int server_end(void **state)
{
    (void)state;
    fixture_redis_free(server);
    return 0;
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || fchmod(fd, mode) != 0) {
        fail_msg("write '%s': %s", path, strerror(errno));
    }
    (void)close(fd);
}

static enum evq_status ping_as(const char *url, const char *user, const char *file, bool keep,
                               struct evq_error *err)
{
    struct evq_conn *conn = NULL;
    const struct evq_conn_config config = {
        .url = url, .user = user, .password_file = file, .name = "n", .keep_environment = keep};
    enum evq_status status = evq_conn_open(&config, &conn, err);
    if (status == EVQ_OK) {
        status = fixture_ping(conn, err);
    }
    evq_conn_close(conn);
    return status;
}

static void conn_open_authenticates_by_file_and_environment(void **state)
{
    (void)state;
    const char *const options[] = {"--requirepass", "correct horse", NULL};
    const struct fixture_redis_config config = {.options = options, .password = "correct horse"};
    struct fixture_redis *own = fixture_redis_start(&config);
    struct evq_error err;
    char wrong[96];

    (void)snprintf(wrong, sizeof wrong, "%s/wrong", own->dir);
    write_file(wrong, "hunter2\n", 0600);
    assert_status(ping_as(own->url, NULL, NULL, true, &err), EVQ_E_AUTH);
    assert_holds(err.message, "NOAUTH");
    assert_status(ping_as(own->url, NULL, wrong, true, &err), EVQ_E_AUTH);
    assert_holds(err.message, "WRONGPASS");
    assert_holds(err.message, "redis.password_file");
    assert_null(strstr(err.message, "hunter2"));
    assert_status_err(ping_as(own->url, NULL, own->password_file, true, &err), EVQ_OK, &err);

    assert_int_equal(setenv("EVALQ_REDIS_PASSWORD_FILE", own->password_file, 1), 0);
    assert_status_err(ping_as(own->url, NULL, NULL, true, &err), EVQ_OK, &err);
    assert_int_equal(unsetenv("EVALQ_REDIS_PASSWORD_FILE"), 0);
    assert_int_equal(setenv("EVALQ_REDIS_PASSWORD", "correct horse", 1), 0);
    assert_status_err(ping_as(own->url, NULL, NULL, true, &err), EVQ_OK, &err);
    assert_non_null(getenv("EVALQ_REDIS_PASSWORD")); // The library does not change the environment.
    assert_status_err(ping_as(own->url, NULL, wrong, true, &err), EVQ_E_AUTH,
                      &err); // The file takes precedence.
    assert_status_err(ping_as(own->url, NULL, NULL, false, &err), EVQ_OK, &err);
    // The variable is removed, so no child sees it. The connection still knows it.
    assert_null(getenv("EVALQ_REDIS_PASSWORD"));
    assert_status_err(ping_as(own->url, NULL, NULL, false, &err), EVQ_OK, &err);
    fixture_redis_free(own);
}

static void conn_open_tells_missing_permission(void **state)
{
    (void)state;
    struct fixture_redis *own = fixture_redis_start(NULL);
    struct evq_conn *admin = fixture_redis_conn(own);
    struct evq_error err;
    char file[96];
    char url[128];

    (void)snprintf(file, sizeof file, "%s/worker", own->dir);
    write_file(file, "s3cret", 0640); // The file has no newline, and its group can read it.
    evq_reply_free(fixture_call(admin, "ACL", "SETUSER", "worker", "on", ">s3cret", "~evalq:*",
                                "-@all", "+ping", "+get", NULL));
    evq_reply_free(
        fixture_call(admin, "ACL", "SETUSER", "open", "on", "nopass", "-@all", "+ping", NULL));
    assert_status_err(ping_as(own->url, "worker", file, true, &err), EVQ_OK,
                      &err); // This user may not use CLIENT.
    (void)snprintf(url, sizeof url, "unix://open@%s", own->socket);
    assert_status_err(ping_as(url, NULL, NULL, true, &err), EVQ_OK, &err);

    (void)snprintf(url, sizeof url, "unix://worker@%s", own->socket);
    const struct evq_conn_config config = {
        .url = url, .password_file = file, .keep_environment = true};
    struct evq_conn *conn = fixture_conn_open(&config);
    const char *const get[] = {"GET", "other"};
    const char *const set[] = {"SET", "evalq:x", "1"};
    fixture_refuses(conn, EVQ_E_AUTH, "user 'worker': NOPERM", get, 2);
    fixture_refuses(conn, EVQ_E_AUTH, "set", set, 3);
    evq_conn_close(conn);
    evq_conn_close(admin);
    fixture_redis_free(own);
}

static void expect_file(const char *file, enum evq_status want, const char *part)
{
    struct evq_error err = {EVQ_OK, ""};
    assert_status(ping_as(server->url, NULL, file, true, &err), want);
    assert_holds(err.message, part);
    assert_null(strstr(err.message, "s3cret"));
}

static void conn_open_refuses_password_files_others_can_read(void **state)
{
    (void)state;
    char path[128];
    char long_line[1100];

    (void)snprintf(path, sizeof path, "%s/pw", server->dir);
    write_file(path, "s3cret\n", 0644);
    expect_file(path, EVQ_E_INVALID, "readable by every user (mode 0644)");
    write_file(path, "", 0600);
    expect_file(path, EVQ_E_INVALID, "empty");
    write_file(path, "\ns3cret\n", 0600);
    expect_file(path, EVQ_E_INVALID, "empty");
    memset(long_line, 's', sizeof long_line - 1);
    long_line[sizeof long_line - 1] = '\0';
    write_file(path, long_line, 0600);
    expect_file(path, EVQ_E_INVALID, "longer than 1023 bytes");
    expect_file(server->dir, EVQ_E_INVALID, "not a regular file");
    (void)snprintf(path, sizeof path, "%s/fifo", server->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_file(path, EVQ_E_INVALID, "not a regular file"); // It does not hang either.
    (void)snprintf(path, sizeof path, "%s/none", server->dir);
    expect_file(path, EVQ_E_IO, "No such file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conn_open_authenticates_by_file_and_environment),
        cmocka_unit_test(conn_open_tells_missing_permission),
        cmocka_unit_test(conn_open_refuses_password_files_others_can_read),
    };
    return cmocka_run_group_tests(tests, server_start, server_end);
}
