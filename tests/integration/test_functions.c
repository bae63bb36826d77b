#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shared/queue/function_library.h"
#include "shared/queue/queue.h"
#include "tests/fixture/redis.h"

static struct fixture_redis *server;
static struct evq_conn *conn;

static int start(void **state)
{
    (void)state;
    server = fixture_redis_start(NULL);
    conn = fixture_redis_conn(server);
    return 0;
}

static int end(void **state)
{
    (void)state;
    evq_conn_close(conn);
    fixture_redis_free(server);
    return 0;
}

static int empty(void **state)
{
    (void)state;
    evq_reply_free(fixture_call(conn, "FUNCTION", "FLUSH", NULL));
    return 0;
}

/* Checks the library as every program does before it uses a queue. */
static enum evq_status look(struct evq_conn *of, int64_t *ret_build, struct evq_error *err)
{
    struct evq_queue_info info;
    struct evq_queue *queue = NULL;

    assert_status(evq_queue_open(of, NULL, &queue, NULL), EVQ_OK);
    const enum evq_status status = evq_queue_info(queue, &info, err);
    *ret_build = status == EVQ_OK ? info.build : *ret_build;
    evq_queue_close(queue);
    return status;
}

/* Returns a library with evalq's name that claims this build and major version. */
static void load_fake(int major, int64_t build)
{
    char text[512];
    (void)snprintf(text, sizeof text,
                   "#!lua name=evalq_v1\n"
                   "redis.register_function{function_name='evalq_v1_info', flags={'no-writes'},\n"
                   "callback=function() return {'%d', '%" PRId64 "', '', '0', '0', '0'} end}",
                   major, build);
    evq_reply_free(fixture_call(conn, "FUNCTION", "LOAD", "REPLACE", text, NULL));
}

static void functions_install_loads_where_none_is(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    int64_t build = 0;

    assert_status(look(conn, &build, &err), EVQ_E_VERSION);
    assert_holds(err.message, "the function library evalq_v1 is missing in unix://");
    assert_holds(err.message, "run `evalq admin install`");
    assert_status_err(evq_function_library_install(conn, &build, &err), EVQ_OK, &err);
    assert_int_equal(build, evq_function_library_build);
    build = 0;
    assert_status_err(look(conn, &build, &err), EVQ_OK, &err);
    assert_int_equal(build, evq_function_library_build);
    assert_status_err(evq_function_library_install(conn, &build, &err), EVQ_OK,
                      &err); // A second call does nothing.
}

static void functions_install_replaces_a_lower_build_only(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    int64_t build = 0;

    load_fake(1, evq_function_library_build - 1);
    assert_status(look(conn, &build, &err), EVQ_E_VERSION);
    assert_holds(err.message, "run `evalq admin install`");
    assert_status_err(evq_function_library_install(conn, &build, &err), EVQ_OK, &err);
    assert_int_equal(build, evq_function_library_build);

    load_fake(1, evq_function_library_build +
                     7); // A newer library serves older programs, so it is not replaced.
    assert_status_err(look(conn, &build, &err), EVQ_OK, &err);
    assert_int_equal(build, evq_function_library_build + 7);
    build = 0;
    assert_status_err(evq_function_library_install(conn, &build, &err), EVQ_OK, &err);
    assert_int_equal(build, evq_function_library_build + 7);
    assert_status_err(look(conn, &build, &err), EVQ_OK, &err);
    assert_int_equal(build, evq_function_library_build + 7);
}

static void functions_of_another_major_are_refused(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    int64_t build = 0;

    load_fake(2, 1000);
    assert_status(look(conn, &build, &err), EVQ_E_VERSION);
    assert_holds(err.message, "major 2");
    assert_status(evq_function_library_install(conn, &build, &err), EVQ_E_VERSION);
}

static void functions_that_answer_out_of_shape_are_refused(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    int64_t build = 0;

    evq_reply_free(
        fixture_call(conn, "FUNCTION", "LOAD", "REPLACE",
                     "#!lua name=evalq_v1\nredis.register_function{function_name='evalq_v1_info', "
                     "flags={'no-writes'}, callback=function() return {'one'} end}",
                     NULL));
    assert_status(look(conn, &build, &err), EVQ_E_IO);
    // A library with evalq's name that lacks its info function is replaced.
    evq_reply_free(fixture_call(conn, "FUNCTION", "LOAD", "REPLACE",
                                "#!lua name=evalq_v1\nredis.register_function('evalq_v1_old', "
                                "function() return 1 end)",
                                NULL));
    assert_status(look(conn, &build, &err), EVQ_E_VERSION);
    assert_status_err(evq_function_library_install(conn, &build, &err), EVQ_OK, &err);
}

static void functions_survive_a_kill_with_aof(void **state)
{
    (void)state;
    const struct fixture_redis_config config = {.aof = true};
    struct fixture_redis *own = fixture_redis_start(&config);
    struct evq_conn *mine = fixture_redis_conn(own);
    struct evq_error err = {EVQ_OK, ""};
    int64_t build = 0;

    assert_status_err(evq_function_library_install(mine, &build, &err), EVQ_OK, &err);
    fixture_redis_kill(own);
    fixture_redis_restart(own);
    enum evq_status status = look(mine, &build, &err);
    if (status == EVQ_E_IO) { // This is the socket from before the kill.
        status = look(mine, &build, &err);
    }
    assert_status_err(status, EVQ_OK, &err);
    evq_conn_close(mine);
    fixture_redis_free(own);
}

/* Workers may call functions, but not load them. */
static void functions_install_needs_permission(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    char url[160];
    int64_t build = 0;

    evq_reply_free(fixture_call(conn, "ACL", "SETUSER", "worker", "on", "nopass", "~evalq:*",
                                "-@all", "+fcall", "+fcall_ro", "+time", "+@read", NULL));
    (void)snprintf(url, sizeof url, "unix://worker@%s", server->socket);
    const struct evq_conn_config config = {.url = url, .keep_environment = true};
    struct evq_conn *worker = fixture_conn_open(&config);
    assert_status(evq_function_library_install(worker, &build, &err), EVQ_E_AUTH);
    assert_holds(err.message, "worker");
    assert_status_err(evq_function_library_install(conn, &build, &err), EVQ_OK, &err);
    assert_status_err(evq_function_library_install(worker, &build, &err), EVQ_OK,
                      &err); // There is nothing to do.
    // The user may call the function, but not the commands inside it. That is a missing permission
    // too.
    evq_reply_free(fixture_call(conn, "ACL", "SETUSER", "worker", "-@read", NULL));
    assert_status_err(look(worker, &build, &err), EVQ_E_AUTH, &err);
    evq_conn_close(worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(functions_install_loads_where_none_is, empty),
        cmocka_unit_test_setup(functions_install_replaces_a_lower_build_only, empty),
        cmocka_unit_test_setup(functions_of_another_major_are_refused, empty),
        cmocka_unit_test_setup(functions_that_answer_out_of_shape_are_refused, empty),
        cmocka_unit_test(functions_survive_a_kill_with_aof),
        cmocka_unit_test_setup(functions_install_needs_permission, empty),
    };
    return cmocka_run_group_tests(tests, start, end);
}
