/*
 * Tests what status and doctor report about a Redis that answers but has a problem.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fixture/user.h"

static int setup(void **state)
{
    return fixture_user_setup(state, EVQ_TEST_BIN "/evalq");
}

static bool info_holds(const struct site *site, const char *words)
{
    struct evq_reply *reply = fixture_call(site->fx->raw, "INFO", NULL);
    const bool holds = strstr(reply->text, words) != NULL;
    evq_reply_free(reply);
    return holds;
}

/* Redis answers all reads of status, and rejects all writes of the queue. */
static void status_says_that_changes_are_refused(void **state)
{
    struct site *site = *state;
    struct evq_conn *raw = site->fx->raw;
    EXPECT(site, 0, "status");
    assert_null(strstr(site->output.out, "every change"));
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "min-replicas-to-write", "2", NULL));
    EXPECT(site, 0, "status");
    assert_holds(site->output.out, "problem: Redis has 0 good replicas of the 2 that it wants");
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "min-replicas-to-write", "0", NULL));
    evq_reply_free(fixture_call(raw, "REPLICAOF", "127.0.0.1", "1", NULL));
    EXPECT(site, 0, "status");
    assert_holds(site->output.out, "problem: this Redis is a replica of 127.0.0.1");
    evq_reply_free(fixture_call(raw, "REPLICAOF", "NO", "ONE", NULL));
    EXPECT(site, 0, "status");
    assert_null(strstr(site->output.out, "every change"));
}

/* A directory has the path of the snapshot, so Redis cannot save. */
static void doctor_says_why_a_redis_that_cannot_save_refuses(void **state)
{
    struct site *site = *state;
    struct evq_conn *raw = site->fx->raw;
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/dump.rdb", site->fx->redis->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "save", "3600 1", NULL));
    evq_reply_free(fixture_call(raw, "BGSAVE", NULL));
    FIXTURE_UNTIL(info_holds(site, "rdb_last_bgsave_status:err"));
    EXPECT(site, 0, "status");
    assert_holds(site->output.out, "problem: Redis could not save its snapshot");
    EXPECT(site, 5, "doctor");
    assert_holds(site->output.out, "MISCONF");
    assert_holds(site->output.out, "Redis could not save its snapshot");
    assert_null(strstr(site->output.out, "is the server running"));
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no", NULL));
    EXPECT(site, 0, "status");
    assert_null(strstr(site->output.out, "every change"));
}

/* Both commands name each broken key, and show everything else. */
static void status_names_keys_of_another_type(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;
    static const char *const names[] = {"n",       "leases",  "delayed",    "sharded", "workers",
                                        "classes", "runs",    "ended:dead", "bad",     "loss",
                                        "run:r",   "index:r", "ready:1:2",  "block"};
    char said[128];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fixture_reset(fx);
        (void)fixture_submit(fx, "r/1/regular/quick");
        evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, names[i]), NULL));
        evq_reply_free(fixture_call(fx->raw, "SET", fixture_key(fx, names[i]), "x", NULL));
        (void)snprintf(said, sizeof said, "the key evalq:{main}:%s is a string, not the ",
                       names[i]);
        EXPECT(site, 0, "status");
        assert_holds(site->output.out, said);
        FIXTURE_RUN(site, "doctor");
        assert_int_not_equal(site->output.exit_code, 0);
        assert_holds(site->output.out, said);
    }
}

static void status_says_that_keys_were_evicted(void **state)
{
    struct site *site = *state;
    struct evq_conn *raw = site->fx->raw;
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru", NULL));
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "maxmemory", "1", NULL));
    FIXTURE_UNTIL(!info_holds(site, "evicted_keys:0"));
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "maxmemory", "0", NULL));
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "maxmemory-policy", "noeviction", NULL));
    EXPECT(site, 0, "status");
    assert_holds(site->output.out, "warning: Redis has thrown away ");
}

static void status_says_that_replies_are_cut(void **state)
{
    struct site *site = *state;
    EXPECT(site, 0, "status");
    assert_null(strstr(site->output.out, "cuts off"));
    evq_reply_free(fixture_call(site->fx->raw, "CONFIG", "SET", "client-output-buffer-limit",
                                "normal 4mb 1mb 1", NULL));
    EXPECT(site, 0, "status");
    assert_holds(site->output.out, "warning: Redis cuts off who is sent more than 1.0 MiB");
}

static int count_of(const char *text, const char *words)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++) {
        count++;
    }
    return count;
}

/* A hundred warnings of a kind must not hide the queue. The JSON output has all of them. */
static void status_shows_few_warnings_of_a_kind(void **state)
{
    struct site *site = *state;
    char run[32];
    for (int i = 0; i < 12; i++) {
        (void)snprintf(run, sizeof run, "r%d/1/regular/quick", i);
        (void)fixture_submit(site->fx, run);
        (void)snprintf(run, sizeof run, "r%d", i);
        EXPECT(site, 0, "pause", "run", run);
    }
    EXPECT(site, 0, "status");
    assert_int_equal(count_of(site->output.out, "warning: the run 'r"), 5);
    assert_holds(site->output.out, "... and 7 more of these; `evalq doctor` lists all\n");
    EXPECT(site, 0, "status", "--plain");
    assert_int_equal(count_of(site->output.out, "\tthe run 'r"), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(status_says_that_changes_are_refused, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(doctor_says_why_a_redis_that_cannot_save_refuses, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(status_names_keys_of_another_type, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(status_says_that_keys_were_evicted, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(status_says_that_replies_are_cut, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(status_shows_few_warnings_of_a_kind, setup,
                                        fixture_user_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
