/*
 * Tests programs that misbehave. Their output must never become the metric of another checkpoint,
 * and their leftovers must not pile up. Each test shows that its fault was injected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 300, heartbeat_ms: 100, drain_seconds: 1}\n"
    "evaluators:\n"
    "  twice: {kind: persistent, command: [$DIR/twice.sh]}\n"
    "  late: {kind: persistent, command: [$DIR/late.sh]}\n"
    "  echo: {kind: persistent, command: [$DIR/echo.sh]}\n"
    "  gate: {kind: command, command: [$DIR/gate.sh]}\n"
    "  daemon: {kind: command, command: [$DIR/daemon.sh]}\n"
    "  half: {kind: command, command: [$DIR/half.sh]}\n"
    "suites:\n"
    "  halved: {evaluator: daemon, prepare: half, tasks: [{name: t, type: any}]}\n"
    "  twice: {evaluator: twice, tasks: [{name: t, type: any}, {name: u, type: any}]}\n"
    "  late: {evaluator: late, tasks: [{name: t, type: any}]}\n"
    "  echo: {evaluator: echo, tasks: [{name: t, type: any}]}\n"
    "  gate: {evaluator: gate, tasks: [{name: t, type: any}]}\n"
    "  daemon: {evaluator: daemon, tasks: [{name: t, type: any}]}\n";

/* Reports one of two tasks twice, and then the end. */
static const char twice_sh[] =
    "#!/bin/sh\necho '{\"type\": \"ready\"}'\nread job\n"
    "echo '{\"type\": \"task\", \"task\": \"t\", \"metrics\": {\"one\": 1}}'\n"
    "echo '{\"type\": \"task\", \"task\": \"t\", \"metrics\": {\"one\": 1}}'\n"
    "echo '{\"type\": \"done\"}'\nread job\n";
/* Sends all lines of a job twice. The second copy could be taken for the next job's. */
static const char late_sh[] =
    "#!/bin/sh\necho '{\"type\": \"ready\"}'\n"
    "while read job; do\n"
    "  step=$(echo \"$job\" | sed 's/.*\"step\": *\\([0-9]*\\).*/\\1/')\n"
    "  line='{\"type\": \"task\", \"task\": \"t\", \"metrics\": {\"one\": '$step'}}'\n"
    "  printf '%s\\n{\"type\": \"done\"}\\n%s\\n{\"type\": \"done\"}\\n' \"$line\" \"$line\"\n"
    "  echo $step >> $DIR/spoke\n"
    "done\n";
/*
 * The same, but each line names its job, and the program sends the rest only after it has the next
 * job.
 */
static const char echo_sh[] =
    "#!/bin/sh\necho '{\"type\": \"ready\"}'\necho started >> $DIR/echo\n"
    "while read job; do\n"
    "  step=$(echo \"$job\" | sed 's/.*\"step\": *\\([0-9]*\\).*/\\1/')\n"
    "  [ -z \"$late\" ] || printf '%s\\n{\"type\": \"done\", \"turn\": %s}\\n' \"$late\" "
    "\"$turn\"\n"
    "  turn=$(echo \"$job\" | sed 's/.*\"turn\": *\\([0-9]*\\).*/\\1/')\n"
    "  late='{\"type\": \"task\", \"task\": \"t\", \"turn\": '$turn', \"metrics\": {\"one\": "
    "'$step'}}'\n"
    "  printf '%s\\n{\"type\": \"done\", \"turn\": %s}\\n' \"$late\" \"$turn\"\n"
    "done\n";
static const char gate_sh[] = "#!/bin/sh\n"
                              "touch filled\n"
                              "echo $$ >> $DIR/started\n"
                              "while [ ! -e $DIR/go ]; do sleep 0.02; done\n"
                              "echo '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";
/* Leaves a process in a new session; its parent has ended. */
static const char daemon_sh[] =
    "#!/bin/sh\n"
    "(setsid sh -c 'echo $$ > $DIR/daemon; while :; do sleep 1; done' > /dev/null 2>&1 &)\n"
    "while [ ! -s $DIR/daemon ]; do sleep 0.02; done\n"
    "echo '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";
/* Prepares one half, and the other half when it is told. */
static const char half_sh[] = "#!/bin/sh\n"
                              "touch \"$EVALQ_OUTPUT/one\" $DIR/began\n"
                              "while [ ! -e $DIR/go ]; do sleep 0.02; done\n"
                              "touch \"$EVALQ_OUTPUT/other\"\n";

static int setup(void **state)
{
    struct fixture *fx = fixture_open(NULL);
    struct fixture_site *site = fixture_site_open(fx, BIN, EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "twice.sh", "", twice_sh);
    fixture_site_write(site, "late.sh", "", late_sh);
    fixture_site_write(site, "echo.sh", "", echo_sh);
    fixture_site_write(site, "gate.sh", "", gate_sh);
    fixture_site_write(site, "daemon.sh", "", daemon_sh);
    fixture_site_write(site, "half.sh", "", half_sh);
    *state = site;
    return 0;
}

/* Returns the number of entries. ret_last gets the name of one of them. */
static int entries(const struct fixture_site *site, const char *name, char ret_last[256])
{
    struct dirent *entry;
    char path[512];
    int count = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", site->dir, name);
    DIR *dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            (void)snprintf(ret_last, 256, "%s", entry->d_name);
            count++;
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return count;
}

static void persistent_fails_job_whose_task_came_twice_instead_of_another(void **state)
{
    struct fixture_site *site = *state;
    struct evq_error err;
    char *json = NULL;

    fixture_site_submit(site, "run/1/regular/twice");
    (void)fixture_site_worker(site, "--suites", "twice", NULL);
    SITE_STATE_UNTIL(site, "run/1/regular/twice", "delayed");
    assert_status_err(evq_queue_show(site->fx->queue, "run/1/regular/twice", &json, &err), EVQ_OK,
                      &err);
    assert_holds(json, "'t' was given twice");
    free(json);
}

static void persistent_takes_nothing_said_of_one_job_for_the_next(void **state)
{
    struct fixture_site *site = *state;
    char id[64];

    for (int step = 1; step <= 5; step++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/late", step);
        fixture_site_submit(site, id);
    }
    (void)fixture_site_worker(site, "--suites", "late", NULL);
    for (int step = 1; step <= 5; step++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/late", step);
        SITE_STATE_UNTIL(site, id, "done");
        const struct fixture_published found = fixture_site_published(site, id, "t", "one");
        assert_int_equal(found.tasks, 1);
        assert_near(found.value, (double)step, 0.0);
    }
    assert_true(fixture_site_has(site, "spoke"));
}

static void persistent_drops_what_is_said_of_an_earlier_job(void **state)
{
    struct fixture_site *site = *state;
    struct evq_queue_info info;
    char id[64];
    char log[96];

    for (int step = 1; step <= 5; step++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/echo", step);
        fixture_site_submit(site, id);
    }
    (void)fixture_site_worker(site, "--suites", "echo", NULL);
    for (int step = 1; step <= 5; step++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/echo", step);
        SITE_STATE_UNTIL(site, id, "done");
        const struct fixture_published found = fixture_site_published(site, id, "t", "one");
        assert_int_equal(found.tasks, 1);
        assert_near(found.value, (double)step, 0.0);
    }
    // One program stayed warm. Its log says that its lines came too late.
    assert_string_equal(fixture_site_text(site, "echo").text, "started\n");
    assert_status(evq_queue_info(site->fx->queue, &info, NULL), EVQ_OK);
    (void)snprintf(log, sizeof(log), "scratch/logs/run_5_regular_echo.a1.%.8s.log", info.epoch);
    assert_true(fixture_site_holds(site, log, "2 lines about an earlier job were dropped"));
}

static void scratch_of_a_killed_child_is_swept_when_the_next_one_works(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "gate", NULL);
    pid_t child = 0;
    char dead[256];
    char alive[256];
    char path[512];

    fixture_site_submit(site, "run/1/regular/gate");
    FIXTURE_UNTIL(fixture_site_has(site, "started"));
    assert_int_equal(entries(site, "scratch/jobs", dead), 1);
    assert_int_equal(fixture_process_children(worker->pid, &child, 1), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    fixture_site_touch(site, "go");
    SITE_STATE_UNTIL(site, "run/1/regular/gate", "done");
    // The directory is kept for the next job.
    assert_int_equal(entries(site, "scratch/jobs", alive), 1);
    assert_string_not_equal(alive, dead);
    (void)snprintf(path, sizeof(path), "scratch/jobs/%s", alive);
    assert_int_equal(entries(site, path, dead), 0);
    assert_int_equal(kill(worker->pid, SIGTERM), 0);
    FIXTURE_UNTIL(entries(site, "scratch/jobs", dead) == 0);
}

static bool matches(const struct fixture_site *site, const char *pattern)
{
    char path[512];
    glob_t found;

    (void)snprintf(path, sizeof(path), "%s/%s", site->dir, pattern);
    const bool any = glob(path, 0, NULL, &found) == 0;
    globfree(&found);
    return any;
}

/* A killed worker may leave half of a prepared model, and perhaps nobody prepares it again. */
static void prepared_half_of_a_killed_worker_goes_with_the_next_preparation(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *worker =
        fixture_site_worker(site, "--suites", "halved", "--slots", "1", NULL);
    char path[512];

    fixture_site_submit(site, "run/1/regular/halved");
    FIXTURE_UNTIL(fixture_site_has(site, "began"));
    // Another worker prepares the same checkpoint. Its files stay.
    (void)snprintf(path, sizeof(path), "%s/scratch/prepared/held.lock", site->dir);
    const int held = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(held, LOCK_EX), 0);
    (void)snprintf(path, sizeof(path), "%s/scratch/prepared/held.partial", site->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    fixture_worker_signal(worker, SIGKILL);
    (void)fixture_worker_wait(worker);
    assert_true(matches(site, "scratch/prepared/*-half.partial/one"));
    (void)snprintf(path, sizeof(path), "%s/ckpt/1.safetensors", site->dir);
    assert_int_equal(unlink(path), 0); // The job is not prepared again.
    fixture_site_touch(site, "go");
    fixture_site_submit(site, "run/2/regular/halved");
    (void)fixture_site_worker(site, "--suites", "halved", "--slots", "1", NULL);
    SITE_STATE_UNTIL(site, "run/2/regular/halved", "done");
    assert_true(matches(site, "scratch/prepared/*-half/other"));
    assert_false(matches(site, "scratch/prepared/*-half.partial"));
    assert_true(matches(site, "scratch/prepared/held.partial"));
    assert_int_equal(close(held), 0);
}

static void scratch_that_was_tidied_away_is_made_again(void **state)
{
    struct fixture_site *site = *state;
    char kept[256];
    char path[512];

    fixture_site_touch(site, "go");
    (void)fixture_site_worker(site, "--suites", "gate", NULL);
    fixture_site_submit(site, "run/1/regular/gate");
    SITE_STATE_UNTIL(site, "run/1/regular/gate", "done");
    assert_int_equal(entries(site, "scratch/jobs", kept), 1);
    (void)snprintf(path, sizeof(path), "%s/scratch/jobs/%s", site->dir, kept);
    assert_int_equal(rmdir(path), 0);
    fixture_site_submit(site, "run/2/regular/gate");
    SITE_STATE_UNTIL(site, "run/2/regular/gate", "done");
    assert_string_equal(fixture_job_field(site->fx, "run/2/regular/gate", "attempts").text, "1");
}

static void command_leaves_no_daemon_behind(void **state)
{
    struct fixture_site *site = *state;

    fixture_site_submit(site, "run/1/regular/daemon");
    (void)fixture_site_worker(site, "--suites", "daemon", NULL);
    SITE_STATE_UNTIL(site, "run/1/regular/daemon", "done");
    const pid_t left = (pid_t)atoi(fixture_site_text(site, "daemon").text);
    assert_true(left > 1);
    FIXTURE_UNTIL(!fixture_process_lives(left));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_site_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(persistent_fails_job_whose_task_came_twice_instead_of_another),
        TEST(persistent_takes_nothing_said_of_one_job_for_the_next),
        TEST(persistent_drops_what_is_said_of_an_earlier_job),
        TEST(scratch_of_a_killed_child_is_swept_when_the_next_one_works),
        TEST(prepared_half_of_a_killed_worker_goes_with_the_next_preparation),
        TEST(scratch_that_was_tidied_away_is_made_again),
        TEST(command_leaves_no_daemon_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
