/*
 * A worker's call reaches Redis, but the answer is lost. The worker repeats the call, and gets what
 * it was given the first time. No lease lapses here that would return a lost job.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 600000, heartbeat_ms: 200000, drain_seconds: 1}\n"
    "evaluators: {gate: {kind: persistent, command: [$DIR/gate.sh]}}\n"
    "suites: {gate: {evaluator: gate, tasks: [{name: t, type: any}]}}\n";

/* It gives its result at once, and reports the end when it may. */
static const char gate_sh[] =
    "#!/bin/sh\n"
    "echo '{\"type\": \"ready\"}'\n"
    "while read job; do\n"
    "    echo '{\"type\": \"task\", \"task\": \"t\", \"metrics\": {\"one\": 1}}'\n"
    "    while [ ! -e $DIR/go ]; do sleep 0.02; done\n"
    "    echo '{\"type\": \"done\"}'\n"
    "done\n";

static int setup(void **state)
{
    struct fixture *fx = fixture_open(NULL);
    struct fixture_site *site = fixture_site_open(fx, BIN, EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "gate.sh", "", gate_sh);
    *state = site;
    return 0;
}

/* Redis stops during a call that completes a job and asks for the next one. */
static void worker_gets_the_claim_whose_reply_was_lost(void **state)
{
    static const char *const ids[] = {"run/1/regular/gate", "run/2/regular/gate"};
    struct fixture_site *site = *state;
    struct fixture_worker *worker = fixture_site_worker(site, NULL);

    fixture_site_submit(site, ids[0]);
    FIXTURE_UNTIL(fixture_site_published(site, ids[0], "t", "one").tasks == 1);
    fixture_site_submit(site, ids[1]);
    fixture_redis_suspend(site->fx->redis);
    fixture_site_touch(site, "go");
    FIXTURE_UNTIL(fixture_worker_logged(worker, "redis_away status=timeout"));
    fixture_redis_resume(site->fx->redis);
    for (int i = 0; i < 2; i++) {
        SITE_STATE_UNTIL(site, ids[i], "done");
        assert_string_equal(fixture_job_field(site->fx, ids[i], "attempts").text, "1");
    }
    assert_int_equal(fixture_site_published(site, ids[1], "t", "one").ends, 1);
    fixture_audit(site->fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(worker_gets_the_claim_whose_reply_was_lost, setup,
                                        fixture_site_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
