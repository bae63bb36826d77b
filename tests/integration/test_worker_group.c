/* Who ends a worker often signals every process of it at once, as Slurm does: what its evaluators
 * die of then is no crash of theirs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>

#include "tests/fixture/folder.h"
#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 300, heartbeat_ms: 100, drain_seconds: 60}\n"
    "evaluators:\n"
    "  gate: {kind: command, command: [$DIR/gate.sh]}\n"
    "  kept: {kind: persistent, command: [$DIR/kept.sh]}\n"
    "suites:\n"
    "  gate: {evaluator: gate, tasks: [{name: t, type: any}]}\n"
    "  kept: {evaluator: kept, tasks: [{name: t, type: any}]}\n";

/* Both say that they run, by their pid, and would run for ever. */
static const char gate_sh[] = "#!/bin/sh\necho $$ > $DIR/started\nwhile :; do sleep 0.02; done\n";
static const char kept_sh[] = "#!/bin/sh\necho '{\"type\": \"ready\"}'\nread job\n"
                              "echo $$ > $DIR/started\nwhile :; do sleep 0.02; done\n";

static int setup(void **state)
{
    struct fixture *fx = fixture_open(NULL);
    struct fixture_site *site = fixture_site_open(fx, BIN, EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "gate.sh", "", gate_sh);
    fixture_site_write(site, "kept.sh", "", kept_sh);
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

static pid_t started(const struct fixture_site *site)
{
    FIXTURE_UNTIL(fixture_site_text(site, "started").text[0] != '\0');
    return (pid_t)atoi(fixture_site_text(site, "started").text);
}

static void told_together(struct fixture_site *site, const char *suite, const char *id)
{
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", suite, NULL);

    fixture_site_submit(site, id);
    const pid_t program = started(site);
    fixture_worker_signal(worker, SIGTERM);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=drain"));
    assert_int_equal(kill(program, SIGTERM), 0);
    assert_int_equal(fixture_worker_wait(worker), 0);
    assert_true(fixture_site_state_is(site, id, "queued"));
    assert_string_equal(fixture_job_field(site->fx, id, "attempts").text, "0"); // Not charged.
}

static void worker_releases_a_command_that_dies_of_the_same_signal(void **state)
{
    told_together(*state, "gate", "run/1/regular/gate");
}

static void worker_releases_a_persistent_program_that_dies_of_the_same_signal(void **state)
{
    told_together(*state, "kept", "run/1/regular/kept");
}

/* A worker that leaves by itself after one job must charge a crash, or that job would never end. */
static void worker_charges_a_crash_when_nobody_told_it_to_go(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *worker =
        fixture_site_worker(site, "--suites", "gate", "--max-jobs", "1", NULL);

    fixture_site_submit(site, id);
    assert_int_equal(kill(started(site), SIGTERM), 0);
    assert_int_equal(fixture_worker_wait(worker), 0);
    assert_string_equal(fixture_job_field(site->fx, id, "attempts").text, "1");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(worker_releases_a_command_that_dies_of_the_same_signal),
        TEST(worker_releases_a_persistent_program_that_dies_of_the_same_signal),
        TEST(worker_charges_a_crash_when_nobody_told_it_to_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
