#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shared/redis/conn_error.h"
#include "tests/fixture/check.h"

static void conn_refusal_sorts_error_replies(void **state)
{
    (void)state;
    const struct {
        const char *text;
        enum evq_status status;
    } cases[] = {
        {"LOADING Redis is loading the dataset in memory", EVQ_E_RETRY},
        {"BUSY Redis is busy running a script.", EVQ_E_RETRY},
        {"MISCONF Errors writing to the AOF file: No space left on device", EVQ_E_RETRY},
        {"OOM command not allowed when used memory > 'maxmemory'.", EVQ_E_RETRY},
        {"READONLY You can't write against a read only replica.", EVQ_E_RETRY},
        {"MASTERDOWN Link with MASTER is down", EVQ_E_RETRY},
        {"NOREPLICAS Not enough good replicas to write.", EVQ_E_RETRY},
        {"TRYAGAIN Multiple keys request during rehashing of slot", EVQ_E_RETRY},
        {"CLUSTERDOWN Hash slot not served", EVQ_E_RETRY},
        {"ASK 3999 127.0.0.1:6381", EVQ_E_RETRY},
        {"MOVED 3999 127.0.0.1:6381", EVQ_E_RETRY},
        {"UNBLOCKED force unblock from blocking operation", EVQ_E_RETRY},
        {"ERR max number of clients reached", EVQ_E_RETRY},
        {"NOAUTH Authentication required.", EVQ_E_AUTH},
        {"WRONGPASS invalid username-password pair", EVQ_E_AUTH},
        {"NOPERM this user has no permissions", EVQ_E_AUTH},
        {"DENIED Redis is running in protected mode", EVQ_E_AUTH},
        {"ERR AUTH <password> called without any password configured", EVQ_E_AUTH},
        {"ERR The user executing the script can't run this command or subcommand", EVQ_E_AUTH},
        {"ERR ACL failure in script: User w has no permissions to run the 'hget' command",
         EVQ_E_AUTH},
        {"NOSCRIPT No matching script.", EVQ_E_VERSION},
        {"ERR Function not found", EVQ_E_VERSION},
        {"ERR unknown command 'FCALL', with args beginning with: ", EVQ_E_VERSION},
        {"ERR unknown command 'fcall_ro'", EVQ_E_VERSION},
        {"NOGROUP No such key 'x' or consumer group", EVQ_E_NOT_FOUND},
        {"BUSYGROUP Consumer Group name already exists", EVQ_E_CONFLICT},
        {"WRONGTYPE Operation against a key", EVQ_E_INVALID},
        {"ERR wrong number of arguments for 'get' command", EVQ_E_INVALID},
        {"ERR unknown command 'FOO'", EVQ_E_INVALID},
        {"EVQ_INVALID step must be an integer", EVQ_E_INVALID},
        {"EVQ_CONFLICT other owner", EVQ_E_CONFLICT},
        {"EVQ_NOT_FOUND sink", EVQ_E_NOT_FOUND},
        {"EVQ_INTERNAL nil index", EVQ_E_BUG},
        {"BUSYKEY x", EVQ_E_INVALID}, // A whole word, not the beginning of one.
        {"LOADINGS x", EVQ_E_INVALID},
        {"", EVQ_E_INVALID},
        {"ERR", EVQ_E_INVALID},
        {"MOVED", EVQ_E_RETRY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_conn_error refusal = evq_conn_error_parse(cases[i].text);
        if (refusal.status != cases[i].status) {
            fail_msg("'%s' is %s, wanted %s", cases[i].text, evq_status_name(refusal.status),
                     evq_status_name(cases[i].status));
        }
    }
}

static void conn_refusal_tells_where_to_go(void **state)
{
    (void)state;
    struct evq_conn_error refusal = evq_conn_error_parse("MOVED 3999 10.0.0.1:6381");
    assert_string_equal(refusal.moved, "10.0.0.1:6381");
    assert_null(evq_conn_error_parse("ASK 3999 10.0.0.1:6381").moved); // Never followed.
    assert_null(evq_conn_error_parse("MOVED 3999").moved);
    assert_true(evq_conn_error_parse("READONLY x").reconnect);
    assert_true(evq_conn_error_parse("ERR max number of clients reached").reconnect);
    assert_false(evq_conn_error_parse("ASK 3999 10.0.0.1:6381").reconnect);
    assert_false(evq_conn_error_parse("LOADING x").reconnect);
    refusal = evq_conn_error_parse("EVQ_CONFLICT suite 'a' is taken");
    assert_true(refusal.own);
    assert_string_equal(refusal.text, "suite 'a' is taken");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conn_refusal_sorts_error_replies),
        cmocka_unit_test(conn_refusal_tells_where_to_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
