/*
 * A worker drains when it is told to end. Slurm and others signal all processes of the group at
 * once. An evaluator that dies of this signal has not crashed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>

#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 300, heartbeat_ms: 100, drain_seconds: 600}\n"
    "evaluators:\n"
    "  gate: {kind: command, command: [$DIR/gate.sh]}\n"
    "  kept: {kind: persistent, command: [$DIR/kept.sh]}\n"
    "  hang: {kind: command, command: [$DIR/hang.sh]}\n"
    "suites:\n"
    "  gate: {evaluator: gate, tasks: [{name: t, type: any}]}\n"
    "  kept: {evaluator: kept, tasks: [{name: t, type: any}]}\n"
    "  hang: {evaluator: hang, tasks: [{name: t, type: any}]}\n";
static const char short_drain_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, drain_seconds: 1}\n"
    "evaluators: {gate: {kind: command, command: [$DIR/gate.sh]}}\n"
    "suites: {gate: {evaluator: gate, tasks: [{name: t, type: any}]}}\n";

/* Each program reports its pid. This one runs until it may end; */
static const char gate_sh[] = "#!/bin/sh\n"
                              "echo $$ > $DIR/started\n"
                              "while [ ! -e $DIR/go ]; do sleep 0.02; done\n"
                              "echo '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";
/*
 * these run forever, and the second one ignores SIGTERM. The last process of the group reports its
 * pid there.
 */
static const char kept_sh[] = "#!/bin/sh\necho '{\"type\": \"ready\"}'\nread job\n"
                              "echo $$ > $DIR/started\nwhile :; do sleep 0.02; done\n";
static const char hang_sh[] =
    "#!/bin/sh\n"
    "trap '' TERM\n"
    "sh -c \"trap '' TERM; echo \\$\\$ > $DIR/started; while :; do sleep 0.02; done\" &\n"
    "while :; do sleep 0.02; done\n";

static int setup(void **state)
{
    struct fixture *fx = fixture_open(NULL);
    struct fixture_site *site = fixture_site_open(fx, BIN, EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "gate.sh", "", gate_sh);
    fixture_site_write(site, "kept.sh", "", kept_sh);
    fixture_site_write(site, "hang.sh", "", hang_sh);
    *state = site;
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
    // The attempt was not charged.
    assert_string_equal(fixture_job_field(site->fx, id, "attempts").text, "0");
}

static void worker_releases_a_command_that_dies_of_the_same_signal(void **state)
{
    told_together(*state, "gate", "run/1/regular/gate");
}

static void worker_releases_a_persistent_program_that_dies_of_the_same_signal(void **state)
{
    told_together(*state, "kept", "run/1/regular/kept");
}

/*
 * A worker that ends by itself after one job must charge a crash; otherwise such a job would never
 * end.
 */
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

static void worker_finishes_what_ends_within_the_drain(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "gate", NULL);

    fixture_site_submit(site, id);
    (void)started(site);
    fixture_worker_signal(worker, SIGTERM);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=drain"));
    fixture_site_touch(site, "go");
    assert_int_equal(fixture_worker_wait(worker), 0);
    assert_true(fixture_site_state_is(site, id, "done"));
    const struct fixture_published found = fixture_site_published(site, id, "t", "one");
    assert_int_equal(found.tasks, 1);
    assert_int_equal(found.ends, 1);
    fixture_audit(site->fx);
}

static void worker_releases_what_outlasts_the_drain(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";

    fixture_site_write(site, "evalq.yaml", EVQ_TEST_DATA, short_drain_yaml);
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "gate", NULL);
    fixture_site_submit(site, id);
    const pid_t program = started(site);
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
    FIXTURE_UNTIL(!fixture_process_lives(program));
    assert_true(fixture_site_state_is(site, id, "queued"));
    assert_string_equal(fixture_job_field(site->fx, id, "attempts").text, "0"); // Not charged.
    assert_int_equal(fixture_site_published(site, id, "t", "one").tasks, 0);
}

static void worker_releases_at_once_on_a_second_signal(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/hang";
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "hang", NULL);

    fixture_site_submit(site, id);
    const pid_t program = started(site);
    fixture_worker_signal(worker, SIGTERM);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=drain"));
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), EVQ_EXIT_INTERRUPTED);
    assert_true(fixture_worker_logged(worker, "drain_forced"));
    assert_true(fixture_site_state_is(site, id, "queued"));
    FIXTURE_UNTIL(!fixture_process_lives(program));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_site_teardown)
    const struct CMUnitTest tests[] = {
        TEST(worker_releases_a_command_that_dies_of_the_same_signal),
        TEST(worker_releases_a_persistent_program_that_dies_of_the_same_signal),
        TEST(worker_charges_a_crash_when_nobody_told_it_to_go),
        TEST(worker_finishes_what_ends_within_the_drain),
        TEST(worker_releases_what_outlasts_the_drain),
        TEST(worker_releases_at_once_on_a_second_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
