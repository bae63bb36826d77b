/*
 * Redis answers reads and rejects writes. The worker logs this once, tries less and less often, and
 * continues when Redis accepts writes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/function_library.h"
#include "tests/fixture/program.h"
#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"

enum { REFUSALS = 5 }; // The back-off starts at 100 ms and doubles, so this takes three seconds.

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 300, heartbeat_ms: 50, drain_seconds: 1}\n"
    "evaluators: {ok: {kind: command, command: [$DIR/ok.sh]}}\n"
    "suites: {good: {evaluator: ok, tasks: [{name: t, type: any}]}}\n";

static const char ok_sh[] = "#!/bin/sh\necho '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";

static int setup(void **state)
{
    struct fixture *fx = fixture_open(NULL);
    struct fixture_site *site = fixture_site_open(fx, BIN, EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "ok.sh", "", ok_sh);
    *state = site;
    return 0;
}

static int teardown(void **state)
{
    struct fixture_site *site = *state;
    struct fixture *fx = site->fx;

    fixture_site_close(site);
    fixture_close(fx);
    return 0;
}

/* Returns how many calls Redis has rejected with an error that begins so. */
static int refusals(struct fixture *fx, const char *word)
{
    char name[64];
    struct evq_reply *reply = fixture_call(fx->raw, "INFO", "errorstats", NULL);

    (void)snprintf(name, sizeof(name), "errorstat_%s:count=", word);
    const char *at = strstr(reply->text, name);
    const int count = at != NULL ? atoi(at + strlen(name)) : 0;
    evq_reply_free(reply);
    return count;
}

/*
 * Waits until the worker was rejected a few more times, and asserts that it has logged this once.
 */
static void said_once(const struct fixture_site *site, const struct fixture_worker *worker,
                      const char *word)
{
    const int before = refusals(site->fx, word);

    FIXTURE_UNTIL(refusals(site->fx, word) >= before + REFUSALS);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "redis_away"));
    assert_int_equal(fixture_file_holds("", worker->log, "redis_away"), 1);
    assert_int_equal(fixture_file_holds("", worker->log, "redis_back"), 0);
}

static void goes_on(struct fixture_site *site, struct fixture_worker *worker)
{
    const char *id = "run/1/regular/good";

    FIXTURE_UNTIL(fixture_worker_logged(worker, "redis_back"));
    fixture_site_submit(site, id);
    SITE_STATE_UNTIL(site, id, "done");
    fixture_audit(site->fx);
}

static void worker_says_once_that_changes_are_refused(void **state)
{
    struct fixture_site *site = *state;
    struct evq_conn *raw = site->fx->raw;
    struct fixture_worker *worker = fixture_site_worker(site, NULL);

    FIXTURE_UNTIL(fixture_worker_logged(worker, "child_ready"));
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "min-replicas-to-write", "1", NULL));
    said_once(site, worker, "NOREPLICAS");
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "min-replicas-to-write", "0", NULL));
    goes_on(site, worker);
}

/* All claims fail and heartbeats succeed. The worker names the key once. */
static void worker_says_once_that_a_key_is_in_the_way(void **state)
{
    struct fixture_site *site = *state;
    struct fixture *fx = site->fx;
    const char *id = "run/1/regular/good";
    struct fixture_worker *worker = fixture_site_worker(site, NULL);

    FIXTURE_UNTIL(fixture_worker_logged(worker, "child_ready"));
    evq_reply_free(fixture_call(fx->raw, "SET", fixture_key(fx, "block"), "rubbish", NULL));
    fixture_site_submit(site, id);
    FIXTURE_UNTIL(refusals(fx, "EVQ_CORRUPT") >= 2);
    assert_int_equal(fixture_file_holds("", worker->log, "claim_refused"), 1);
    assert_int_equal(fixture_file_holds("", worker->log, "evalq:{main}:block is a string"), 1);
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, "block"), NULL));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "claim_back"));
    SITE_STATE_UNTIL(site, id, "done");
    fixture_audit(fx);
}

static void worker_says_once_that_the_library_is_missing(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *worker = fixture_site_worker(site, NULL);
    struct evq_error err;
    int64_t build = 0;

    FIXTURE_UNTIL(fixture_worker_logged(worker, "child_ready"));
    evq_reply_free(fixture_call(site->fx->raw, "FUNCTION", "FLUSH", NULL));
    said_once(site, worker, "ERR");
    assert_status_err(evq_function_library_install(site->fx->conn, &build, &err), EVQ_OK, &err);
    goes_on(site, worker);
}

/* The cause of the outage is not the one at its start. */
static void worker_says_each_reason_of_an_outage(void **state)
{
    struct fixture_site *site = *state;
    struct evq_conn *raw = site->fx->raw;
    struct fixture_worker *worker = fixture_site_worker(site, NULL);

    FIXTURE_UNTIL(fixture_worker_logged(worker, "child_ready"));
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "min-replicas-to-write", "1", NULL));
    said_once(site, worker, "NOREPLICAS");
    evq_reply_free(fixture_call(raw, "ACL", "SETUSER", "default", "-fcall", "-fcall_ro", NULL));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "redis_away status=auth"));
    assert_int_equal(fixture_file_holds("", worker->log, "redis_away"), 2);
    evq_reply_free(fixture_call(raw, "ACL", "SETUSER", "default", "+fcall", "+fcall_ro", NULL));
    evq_reply_free(fixture_call(raw, "CONFIG", "SET", "min-replicas-to-write", "0", NULL));
    goes_on(site, worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(worker_says_once_that_changes_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(worker_says_once_that_a_key_is_in_the_way, setup, teardown),
        cmocka_unit_test_setup_teardown(worker_says_once_that_the_library_is_missing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(worker_says_each_reason_of_an_outage, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
