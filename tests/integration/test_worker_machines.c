/*
 * Two workers on two machines share one Redis. The machines are network namespaces, each with one
 * cable to the machine of Redis. The test needs root and ip(8); it is skipped with a reason
 * otherwise.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fixture/site.h"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 600, heartbeat_ms: 100, drain_seconds: 1}\n"
    "evaluators:\n"
    "  ok: {kind: command, command: [$DIR/ok.sh]}\n"
    "  gate: {kind: command, command: [$DIR/gate.sh]}\n"
    "suites:\n"
    "  good: {evaluator: ok, tasks: [{name: t, type: any}]}\n"
    "  gate: {evaluator: gate, tasks: [{name: t, type: any}]}\n";
static const char ok_sh[] = "#!/bin/sh\nsleep 0.05\necho '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";
static const char gate_sh[] = "#!/bin/sh\n"
                              "echo $$ >> $DIR/started\n"
                              "while [ ! -e $DIR/go ]; do sleep 0.02; done\n"
                              "echo '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";
/* A machine waits for its cable, and then becomes evalq-worker. */
static const char machine_sh[] =
    "#!/bin/sh\n"
    "exec unshare --net sh -c 'echo $$ > $DIR/pid%d.new; mv $DIR/pid%d.new $DIR/pid%d\n"
    "until ip link show evq%dn >/dev/null 2>&1; do sleep 0.02; done\n"
    "ip link set lo up; ip addr add 10.213.%d.2/24 dev evq%dn; ip link set evq%dn up\n"
    "until ip link show evq%dn | grep -q \"state UP\"; do sleep 0.02; done\n"
    "until [ -e $DIR/cable%d ]; do sleep 0.02; done\n"
    "exec " EVQ_TEST_BIN "/evalq-worker \"$@\"' evalq-worker \"$@\"\n";

static const char *skip_reason;

static bool shell(const char *script)
{
    int status = -1;

    const pid_t pid = fork();
    if (pid == 0) {
        (void)execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

/*
 * Creates a network for the test first. So this machine's network does not change, and everything
 * disappears with the test.
 */
static int group_setup(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        skip_reason = "not root";
    } else if (!shell("command -v ip unshare >/dev/null")) {
        skip_reason = "ip(8) or unshare(1) is not installed";
    } else if (unshare(CLONE_NEWNET) != 0) {
        skip_reason = "no network namespace may be made here";
    } else if (!shell("ip link set lo up && ip link add evqx type veth peer name evqy")) {
        skip_reason = "no veth pair can be made here";
    }
    return 0;
}

static int setup(void **state)
{
    static const char *const open_to_all[] = {"--bind", "0.0.0.0", "--protected-mode", "no", NULL};
    const struct fixture_redis_config config = {.tcp = true, .options = open_to_all};

    *state = NULL;
    if (skip_reason != NULL) {
        return 0;
    }
    struct fixture *fx = fixture_open(&config);
    struct fixture_site *site = fixture_site_open(fx, "", "", site_yaml);
    fixture_site_write(site, "ok.sh", "", ok_sh);
    fixture_site_write(site, "gate.sh", "", gate_sh);
    *state = site;
    return 0;
}

/* Starts machine 1 or 2 with its worker, and connects its cable. */
static struct fixture_worker *machine_start(struct fixture_site *site, int number, char bin[128])
{
    char script[1024];
    char name[32];
    char url[64];

    (void)snprintf(script, sizeof(script), machine_sh, number, number, number, number, number,
                   number, number, number, number);
    (void)snprintf(name, sizeof(name), "machine%d.sh", number);
    fixture_site_write(site, name, "", script);
    (void)snprintf(bin, 128, "%s/%s", site->dir, name);
    (void)snprintf(url, sizeof(url), "redis://10.213.%d.1:%d", number, site->fx->redis->port);
    site->bin = bin;
    struct fixture_worker *worker = fixture_site_worker(site, "--url", url, NULL);
    (void)snprintf(name, sizeof(name), "pid%d", number);
    FIXTURE_UNTIL(fixture_site_has(site, name));
    assert_int_equal(atoi(fixture_site_text(site, name).text), worker->pid);
    (void)snprintf(script, sizeof(script),
                   "ip link del evq%d 2>/dev/null; "
                   "ip link add evq%d type veth peer name evq%dn netns %d && "
                   "ip addr add 10.213.%d.1/24 dev evq%d && ip link set evq%d up",
                   number, number, number, (int)worker->pid, number, number, number);
    // The kernel takes a while to remove a dead machine's end of the cable, and with it ours.
    assert_true(shell(script));
    (void)snprintf(script, sizeof(script), "ip link show evq%d | grep -q 'state UP'", number);
    FIXTURE_UNTIL(shell(script)); // A new cable carries nothing for a moment.
    (void)snprintf(name, sizeof(name), "cable%d", number);
    fixture_site_touch(site, name);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=start"));
    return worker;
}

static struct fixture_site *site_or_skip(void **state)
{
    if (*state == NULL) {
        print_message("skipped: %s\n", skip_reason);
        skip();
    }
    return *state;
}

static void machines_share_the_jobs_of_one_redis(void **state)
{
    struct fixture_site *site = site_or_skip(state);
    char bin[2][128];
    char id[64];
    struct fixture_worker *workers[2] = {machine_start(site, 1, bin[0]),
                                         machine_start(site, 2, bin[1])};

    // Each machine has a job that waits for the other machine's job.
    fixture_site_submit(site, "run/101/regular/gate");
    fixture_site_submit(site, "run/102/regular/gate");
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 2);
    fixture_site_touch(site, "go");
    for (int step = 1; step <= 24; step++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/good", step);
        fixture_site_submit(site, id);
    }
    for (int step = 1; step <= 24; step++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/good", step);
        SITE_STATE_UNTIL(site, id, "done");
        const struct fixture_published found = fixture_site_published(site, id, "t", "one");
        assert_int_equal(found.tasks, 1);
        assert_int_equal(found.ends, 1);
    }
    FIXTURE_UNTIL(fixture_worker_logged(workers[0], "event=job_done"));
    FIXTURE_UNTIL(fixture_worker_logged(workers[1], "event=job_done"));
    fixture_audit(site->fx);
}

/*
 * The cable is cut during a job. The other machine gets the job. When the first machine is back,
 * its result is rejected.
 */
static void machine_cut_off_loses_its_job_to_the_other(void **state)
{
    struct fixture_site *site = site_or_skip(state);
    const char *id = "run/1/regular/gate";
    char bin[2][128];
    struct fixture_worker *first = machine_start(site, 1, bin[0]);

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    (void)machine_start(site, 2, bin[1]);
    assert_true(shell("ip link set evq1 down"));
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 2);
    fixture_site_touch(site, "go");
    SITE_STATE_UNTIL(site, id, "done");
    assert_true(shell("ip link set evq1 up"));
    FIXTURE_UNTIL(fixture_worker_logged(first, "job_stale") ||
                  fixture_worker_logged(first, "why=stale"));
    const struct fixture_published found = fixture_site_published(site, id, "t", "one");
    assert_int_equal(found.tasks, 1);
    assert_int_equal(found.ends, 1);
    assert_int_equal(found.attempt, 2);
    fixture_audit(site->fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(machines_share_the_jobs_of_one_redis, setup,
                                        fixture_site_teardown),
        cmocka_unit_test_setup_teardown(machine_cut_off_loses_its_job_to_the_other, setup,
                                        fixture_site_teardown),
    };
    return cmocka_run_group_tests(tests, group_setup, NULL);
}
