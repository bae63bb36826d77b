/*
 * Tests faults beside a worker: nothing may be lost, and nothing may happen twice. Each test shows
 * that its fault was injected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/function_library.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 300, heartbeat_ms: 100, drain_seconds: 1}\n"
    "evaluators:\n"
    "  ok: {kind: command, command: [$DIR/ok.sh]}\n"
    "  gate: {kind: command, command: [$DIR/gate.sh]}\n"
    "  hang: {kind: command, command: [$DIR/hang.sh]}\n"
    "  crash: {kind: command, command: [$DIR/crash.sh]}\n"
    "  stuck: {kind: persistent, command: [$DIR/stuck.sh]}\n"
    "  babble: {kind: persistent, command: [$DIR/babble.sh]}\n"
    "  named: {kind: persistent, command: [$DIR/named.sh]}\n"
    "  broken: {kind: persistent, command: [python3, no_such_script.py]}\n"
    "suites:\n"
    "  broken: {evaluator: broken, tasks: [{name: t, type: any}]}\n"
    "  good: {evaluator: ok, tasks: [{name: t, type: any}]}\n"
    "  gate: {evaluator: gate, tasks: [{name: t, type: any}]}\n"
    "  hang: {evaluator: hang, limits: {seconds: 3}, tasks: [{name: t, type: any}]}\n"
    "  crash: {evaluator: crash, tasks: [{name: t, type: any}]}\n"
    "  stuck: {evaluator: stuck, limits: {seconds: 3}, tasks: [{name: t, type: any}]}\n"
    "  babble: {evaluator: babble, tasks: [{name: t, type: any}]}\n"
    "  named: {evaluator: named, tasks: [{name: t, type: any}]}\n";

static const char ok_sh[] = "#!/bin/sh\necho '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";
/* Reports that it runs, and waits until it may end. Its pid marks its attempt. */
static const char gate_sh[] = "#!/bin/sh\n"
                              "echo $$ >> $DIR/started\n"
                              "while [ ! -e $DIR/go ]; do sleep 0.02; done\n"
                              "echo '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";
/*
 * It ignores SIGTERM, and so does the grandchild that it leaves in its group. The grandchild
 * reports that it lives.
 */
static const char hang_sh[] =
    "#!/bin/sh\n"
    "trap '' TERM\n"
    "echo hanging now\n"
    "sh -c \"trap '' TERM; echo \\$\\$ > $DIR/grandchild; while :; do sleep 1; done\" &\n"
    "while :; do sleep 1; done\n";
static const char crash_sh[] =
    "#!/bin/sh\necho $$ >> $DIR/crashes\necho about to crash >&2\nkill -SEGV $$\n";
static const char stuck_sh[] =
    "#!/bin/sh\necho '{\"type\": \"ready\"}'\nread job\necho $$ > $DIR/stuck\n"
    "while :; do sleep 1; done\n";
static const char babble_sh[] =
    "#!/bin/sh\necho '{\"type\": \"ready\"}'\nread job\necho no json at all\n"
    "while :; do sleep 1; done\n";
/* The metric of the first job has an invalid name. The program ends when it is told to. */
static const char named_sh[] =
    "#!/bin/sh\necho '{\"type\": \"ready\"}'\nread job\n"
    "printf '%s\\n' '{\"type\": \"task\", \"task\": \"t\", \"metrics\": {\"a\\tb\": 1}}'\n"
    "read cancel\necho '{\"type\": \"error\", \"message\": \"cancelled\"}'\nread job\n"
    "echo '{\"type\": \"task\", \"task\": \"t\", \"metrics\": {\"ab\": 1}}'\n"
    "echo '{\"type\": \"done\"}'\nread exit\n";

static int setup_with(void **state, const struct fixture_redis_config *config)
{
    struct fixture *fx = fixture_open(config);
    struct fixture_site *site = fixture_site_open(fx, BIN, EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "ok.sh", "", ok_sh);
    fixture_site_write(site, "gate.sh", "", gate_sh);
    fixture_site_write(site, "hang.sh", "", hang_sh);
    fixture_site_write(site, "crash.sh", "", crash_sh);
    fixture_site_write(site, "stuck.sh", "", stuck_sh);
    fixture_site_write(site, "babble.sh", "", babble_sh);
    fixture_site_write(site, "named.sh", "", named_sh);
    *state = site;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, NULL);
}

static int setup_aof(void **state)
{
    static const struct fixture_redis_config config = {.aof = true};

    return setup_with(state, &config);
}

static void once_published(struct fixture_site *site, const char *id)
{
    const struct fixture_published found = fixture_site_published(site, id, "t", "one");

    assert_int_equal(found.tasks, 1);
    assert_int_equal(found.ends, 1);
    assert_near(found.value, 1.0, 0.0);
    fixture_audit(site->fx);
}

static pid_t child_of(const struct fixture_worker *worker)
{
    pid_t pid = 0;

    FIXTURE_UNTIL(fixture_process_children(worker->pid, &pid, 1) == 1);
    return pid;
}

static void worker_killed_loses_nothing_and_publishes_once(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *first = fixture_site_worker(site, "--suites", "gate", NULL);

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    const pid_t gate = (pid_t)atoi(fixture_site_text(site, "started").text);
    const pid_t child = child_of(first);
    fixture_worker_signal(first, SIGKILL);
    assert_int_equal(fixture_worker_wait(first), -SIGKILL);
    FIXTURE_UNTIL(!fixture_process_lives(child));
    FIXTURE_UNTIL(!fixture_process_lives(gate)); // The guard has killed the child's program.
    (void)fixture_site_worker(site, "--suites", "gate", NULL);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 2);
    fixture_site_touch(site, "go");
    SITE_STATE_UNTIL(site, id, "done");
    once_published(site, id);
    assert_int_equal(fixture_site_published(site, id, "t", "one").attempt, 2);
}

/*
 * The result is published, but the call that completes the job is lost. The next attempt has no
 * task left to run.
 */
static void worker_runs_nothing_when_all_tasks_were_published(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *first = fixture_site_worker(site, "--suites", "gate", NULL);
    struct evq_claim claim = {.job = fixture_job(id)};

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    fixture_worker_signal(first, SIGSTOP);
    (void)snprintf(claim.id, sizeof claim.id, "%s", id);
    const struct fixture_text token = fixture_job_field(site->fx, id, "token");
    memcpy(claim.token, token.text, sizeof claim.token - 1);
    fixture_publish(site->fx, &claim, "t", 0.5);
    evq_job_free(claim.job);
    fixture_worker_signal(first, SIGKILL);
    (void)fixture_site_worker(site, "--suites", "gate", NULL);
    SITE_STATE_UNTIL(site, id, "done");
    assert_int_equal(fixture_site_lines(site, "started"), 1);
    assert_int_equal(fixture_site_published(site, id, "t", "accuracy").tasks, 1);
}

static void worker_says_that_a_redis_which_stands_still_is_unreachable(void **state)
{
    struct fixture_site *site = *state;

    fixture_redis_suspend(site->fx->redis);
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "gate", NULL);
    assert_int_equal(fixture_worker_wait(worker), EVQ_EXIT_UNREACHABLE);
    fixture_redis_resume(site->fx->redis);
}

static void assert_restarts(struct fixture_site *site, struct fixture_worker *worker)
{
    const char *id = "run/1/regular/gate";

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    const pid_t child = child_of(worker);
    assert_int_equal(kill(child, SIGKILL), 0);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "child_died"));
    SITE_STATE_UNTIL(site, id, "delayed"); // The crash was reported at once; no lease had to lapse.
    assert_string_equal(fixture_job_field(site->fx, id, "crashes").text, "1");
    fixture_due(site->fx, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 2);
    assert_int_not_equal(child_of(worker), child);
    fixture_site_touch(site, "go");
    SITE_STATE_UNTIL(site, id, "done");
    once_published(site, id);
}

static void worker_restarts_a_killed_child_at_once(void **state)
{
    assert_restarts(*state, fixture_site_worker(*state, "--suites", "gate", NULL));
}

/* A launcher may ignore SIGCHLD to avoid zombies, and the programs that it starts inherit this. */
static void worker_notices_deaths_although_its_parent_ignores_them(void **state)
{
    (void)signal(SIGCHLD, SIG_IGN);
    struct fixture_worker *worker = fixture_site_worker(*state, "--suites", "gate", NULL);
    (void)signal(SIGCHLD, SIG_DFL);

    assert_restarts(*state, worker);
}

/*
 * The worker and its child are stopped until their lease lapses, and another worker does the job.
 * Then they continue.
 */
static void worker_that_slept_through_its_lease_publishes_nothing(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *late = fixture_site_worker(site, "--suites", "gate", NULL);

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    fixture_worker_signal(late, SIGSTOP);
    struct fixture_worker *other = fixture_site_worker(site, "--suites", "gate", NULL);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") ==
                  2); // The lease has lapsed, and the other worker has the job.
    fixture_site_touch(site, "go");
    SITE_STATE_UNTIL(site, id, "done");
    // Its child has finished too, so the worker holds a result.
    fixture_worker_signal(late, SIGCONT);
    FIXTURE_UNTIL(fixture_worker_logged(late, "job_stale"));
    once_published(site, id);
    assert_int_equal(fixture_site_published(site, id, "t", "one").attempt, 2);
    assert_false(fixture_worker_logged(other, "job_stale"));
}

static void worker_stops_a_cancelled_job(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *worker = fixture_site_worker(site, NULL);
    struct evq_error err;
    enum evq_job_state state_after;

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    const pid_t gate = (pid_t)atoi(fixture_site_text(site, "started").text);
    assert_true(fixture_process_lives(gate));
    assert_status_err(evq_queue_cancel(site->fx->queue, id, "not wanted", &state_after, &err),
                      EVQ_OK, &err);
    assert_int_equal(state_after, EVQ_JOB_RUNNING);
    SITE_STATE_UNTIL(site, id, "cancelled");
    FIXTURE_UNTIL(!fixture_process_lives(gate));
    // The slot is free again and has the same child.
    fixture_site_submit(site, "run/2/regular/good");
    SITE_STATE_UNTIL(site, "run/2/regular/good", "done");
    assert_false(fixture_worker_logged(worker, "child_died"));
    assert_int_equal(fixture_site_published(site, id, "t", "one").tasks, 0);
}

static void worker_kills_what_runs_past_its_limit(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/hang";
    struct evq_error err;
    char *json = NULL;

    fixture_site_submit(site, id);
    (void)fixture_site_worker(site, "--suites", "hang,good", NULL);
    FIXTURE_UNTIL(fixture_site_text(site, "grandchild").text[0] != '\0');
    const pid_t grandchild = (pid_t)atoi(fixture_site_text(site, "grandchild").text);
    SITE_STATE_UNTIL(site, id, "delayed");
    FIXTURE_UNTIL(!fixture_process_lives(grandchild));
    assert_status_err(evq_queue_show(site->fx->queue, id, &json, &err), EVQ_OK, &err);
    assert_holds(json, "limit of 3 s");
    assert_holds(json, "hanging now");
    free(json);
    fixture_site_submit(site, "run/2/regular/good");
    SITE_STATE_UNTIL(site, "run/2/regular/good", "done");
}

static void worker_replaces_a_persistent_program_that_hangs_or_sends_garbage(void **state)
{
    struct fixture_site *site = *state;
    struct evq_error err;
    char *json = NULL;

    fixture_site_submit(site, "run/1/regular/stuck");
    fixture_site_submit(site, "run/2/regular/babble");
    fixture_site_submit(site, "run/3/regular/good");
    (void)fixture_site_worker(site, NULL);
    FIXTURE_UNTIL(fixture_site_text(site, "stuck").text[0] != '\0');
    const pid_t stuck = (pid_t)atoi(fixture_site_text(site, "stuck").text);
    SITE_STATE_UNTIL(site, "run/1/regular/stuck", "delayed");
    FIXTURE_UNTIL(!fixture_process_lives(stuck));
    SITE_STATE_UNTIL(site, "run/2/regular/babble", "delayed");
    assert_string_equal(fixture_job_field(site->fx, "run/2/regular/babble", "crashes").text, "1");
    assert_status_err(evq_queue_show(site->fx->queue, "run/2/regular/babble", &json, &err), EVQ_OK,
                      &err);
    assert_holds(json, "broke the protocol");
    free(json);
    SITE_STATE_UNTIL(site, "run/3/regular/good", "done");
}

/* Another attempt would give the same names, so the job is dead at once. The program continues. */
static void worker_ends_a_job_whose_metrics_have_no_proper_names(void **state)
{
    struct fixture_site *site = *state;
    struct evq_error err;
    char *json = NULL;

    fixture_site_submit(site, "run/1/regular/named");
    (void)fixture_site_worker(site, NULL);
    SITE_STATE_UNTIL(site, "run/1/regular/named", "dead");
    assert_string_equal(fixture_job_field(site->fx, "run/1/regular/named", "crashes").text, "");
    assert_string_equal(fixture_job_field(site->fx, "run/1/regular/named", "attempts").text, "1");
    assert_status_err(evq_queue_show(site->fx->queue, "run/1/regular/named", &json, &err), EVQ_OK,
                      &err);
    assert_holds(json, "evaluator 'named': task message: a metric of task 't' is named 'a");
    assert_holds(json, "(3 bytes), expected 1 to 128 bytes without control characters");
    free(json);
    fixture_site_submit(site, "run/2/regular/named"); // This is the second job of the same program.
    SITE_STATE_UNTIL(site, "run/2/regular/named", "done");
}

/*
 * A job that kills its evaluator becomes dead, and the good jobs around it are done. The worker
 * does not call itself sick.
 */
static void worker_outlives_a_poison_job(void **state)
{
    struct fixture_site *site = *state;
    const char *poison = "run/1/regular/crash";
    struct fixture_worker *worker = fixture_site_worker(site, "--slots", "2", NULL);
    char id[64];
    struct evq_error err;
    char *json = NULL;
    int good = 10;

    fixture_site_submit(site, poison);
    const int64_t end_ms = fixture_now_ms() + fixture_patience_ms();
    while (!fixture_site_state_is(site, poison, "dead")) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/good", good++);
        fixture_site_submit(site, id);
        SITE_STATE_UNTIL(site, id, "done");
        if (fixture_site_state_is(site, poison, "delayed")) {
            fixture_due(site->fx, poison);
        }
        fixture_tick(end_ms, "the poison job dies", __FILE__, __LINE__);
    }
    assert_true(good > 11);
    assert_status_err(evq_queue_show(site->fx->queue, poison, &json, &err), EVQ_OK, &err);
    assert_holds(json, "signal 11");
    assert_holds(json, "about to crash");
    free(json);
    assert_false(fixture_worker_logged(worker, "worker_sick"));
    fixture_audit(site->fx);
}

static void worker_calls_itself_sick_when_different_jobs_crash(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *worker = fixture_site_worker(site, NULL);

    fixture_site_submit(site, "run/1/regular/crash");
    fixture_site_submit(site, "run/2/regular/crash");
    fixture_site_submit(site, "run/3/regular/crash");
    FIXTURE_UNTIL(fixture_worker_logged(worker, "worker_sick"));
    fixture_site_submit(site, "run/4/regular/good");
    // The worker sends heartbeats and reports that it is sick, but claims no job.
    char *json = NULL;
    struct evq_error err;
    bool told = false;
    for (const int64_t end_ms = fixture_now_ms() + fixture_patience_ms(); !told;) {
        assert_status_err(evq_queue_stats(site->fx->queue, &json, &err), EVQ_OK, &err);
        told = strstr(json, "\"sick\":true") != NULL || strstr(json, "\"sick\": true") != NULL ||
               strstr(json, "\\\"sick\\\": true") != NULL;
        free(json);
        fixture_tick(end_ms, "the worker's record says sick", __FILE__, __LINE__);
    }
    assert_true(fixture_site_state_is(site, "run/4/regular/good", "queued"));
    (void)fixture_site_worker(site, "--suites", "good", NULL); // A healthy worker claims it.
    SITE_STATE_UNTIL(site, "run/4/regular/good", "done");
}

/*
 * A program that never starts is broken: its jobs fail, and the worker continues with other jobs.
 */
static void worker_is_not_sick_when_a_program_does_not_start(void **state)
{
    struct fixture_site *site = *state;

    fixture_site_submit(site, "run/1/regular/broken");
    fixture_site_submit(site, "run/2/regular/broken");
    fixture_site_submit(site, "run/3/regular/broken");
    struct fixture_worker *worker = fixture_site_worker(site, NULL);
    SITE_STATE_UNTIL(site, "run/1/regular/broken", "delayed");
    SITE_STATE_UNTIL(site, "run/2/regular/broken", "delayed");
    SITE_STATE_UNTIL(site, "run/3/regular/broken", "delayed");
    fixture_site_submit(site, "run/4/regular/good");
    SITE_STATE_UNTIL(site, "run/4/regular/good", "done");
    assert_string_equal(fixture_job_field(site->fx, "run/3/regular/broken", "crashes").text, "");
    assert_false(fixture_worker_logged(worker, "worker_sick"));
}

/* A worker counts as idle if it cannot claim a job because it is sick or Redis is away. */
static void worker_exits_when_idle_without_redis(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *worker = fixture_site_worker(site, "--idle-exit", "1", NULL);

    FIXTURE_UNTIL(fixture_worker_logged(worker, "child_ready"));
    fixture_redis_kill(site->fx->redis);
    assert_int_equal(fixture_worker_wait(worker), 0);
    assert_true(fixture_worker_logged(worker, "why=idle"));
}

static void worker_holds_its_result_while_redis_is_away(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "gate", NULL);

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    fixture_redis_kill(site->fx->redis);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "redis_away"));
    fixture_site_touch(site, "go");
    // The evaluation continues without Redis.
    FIXTURE_UNTIL(fixture_worker_logged(worker, "job_done"));
    fixture_redis_restart(site->fx->redis);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "redis_back"));
    evq_conn_drop(site->fx->conn);
    evq_conn_drop(site->fx->raw);
    SITE_STATE_UNTIL(site, id, "done");
    once_published(site, id);
    assert_int_equal(fixture_site_lines(site, "started"), 1);
}

/*
 * Redis stops while the worker completes a job and asks for the next one, so the worker does not
 * know whether the call arrived. A call that arrived must not be repeated, and a job that was given
 * must not be lost.
 */
static void worker_repeats_what_redis_may_have_heard(void **state)
{
    struct fixture_site *site = *state;
    const char *first = "run/1/regular/gate";
    const char *next = "run/2/regular/good";
    struct fixture_worker *worker = fixture_site_worker(site, NULL);

    fixture_site_submit(site, first);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    fixture_site_submit(site, next);
    fixture_redis_suspend(site->fx->redis);
    fixture_site_touch(site, "go");
    FIXTURE_UNTIL(fixture_worker_logged(worker, "job_done"));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "redis_away status=timeout"));
    fixture_redis_resume(site->fx->redis);
    SITE_STATE_UNTIL(site, first, "done");
    SITE_STATE_UNTIL(site, next, "done");
    once_published(site, first);
    once_published(site, next);
    assert_int_equal(fixture_site_lines(site, "started"), 1);
}

/*
 * FLUSHALL during a job: the worker notices another epoch, registers again and restores its running
 * job.
 */
static void worker_adopts_its_job_after_the_keyspace_was_lost(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "gate", NULL);

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    evq_reply_free(fixture_call(site->fx->raw, "FLUSHALL", NULL));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "job_adopted"));
    fixture_site_touch(site, "go");
    SITE_STATE_UNTIL(site, id, "done");
    once_published(site, id);
    assert_int_equal(fixture_site_lines(site, "started"), 1);
}

/*
 * The function library is removed while a job runs. The worker keeps its child and waits, and
 * continues when the library is back.
 */
static void worker_waits_while_the_library_is_missing(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/gate";
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "gate", NULL);
    struct evq_error err;
    int64_t build = 0;

    fixture_site_submit(site, id);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    evq_reply_free(fixture_call(site->fx->raw, "FUNCTION", "FLUSH", NULL));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "redis_away status=version"));
    fixture_site_touch(site, "go");
    FIXTURE_UNTIL(fixture_worker_logged(worker, "job_done"));
    assert_status_err(evq_function_library_install(site->fx->conn, &build, &err), EVQ_OK, &err);
    SITE_STATE_UNTIL(site, id, "done");
    once_published(site, id);
    assert_int_equal(fixture_site_lines(site, "started"), 1);
}

static size_t log_place(const struct fixture_worker *worker, const char *words)
{
    size_t bytes = 0;
    char *log = (char *)fixture_file_load(worker->log, &bytes);
    const char *found = memmem(log, bytes, words, strlen(words));

    if (found == NULL) {
        fail_msg("the log does not hold '%s'", words);
    }
    const size_t place = (size_t)(found - log);
    free(log);
    return place;
}

/*
 * A job that has crashed workers waits until nothing else runs, and nothing else starts while it
 * runs.
 */
static void worker_runs_an_alone_job_with_nothing_beside_it(void **state)
{
    struct fixture_site *site = *state;
    const char *busy = "run/1/regular/gate";
    const char *alone = "run/2/regular/gate";
    const char *later = "run/3/regular/good";
    struct fixture_worker *worker = fixture_site_worker(site, "--slots", "3", NULL);
    struct evq_error err;

    fixture_site_submit(site, busy);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 1);
    // The job gets its mark while nobody can claim it.
    assert_status_err(evq_queue_pause(site->fx->queue, EVQ_PAUSE_SUITE, "gate", true, &err), EVQ_OK,
                      &err);
    fixture_site_submit(site, alone);
    assert_int_equal(fixture_call_integer(site->fx->raw, "HSET",
                                          fixture_key(site->fx, "job:run/2/regular/gate"), "alone",
                                          "1", NULL),
                     1);
    assert_status_err(evq_queue_pause(site->fx->queue, EVQ_PAUSE_SUITE, "gate", false, &err),
                      EVQ_OK, &err);
    SITE_STATE_UNTIL(site, alone, "running");
    fixture_site_submit(site, later);
    fixture_site_touch(site, "go");
    SITE_STATE_UNTIL(site, alone, "done");
    SITE_STATE_UNTIL(site, later, "done");
    assert_true(fixture_worker_logged(worker, "alone=1"));
    assert_true(log_place(worker, "job_done job=run/1/regular/gate") <
                log_place(worker, "job_start job=run/2/regular/gate"));
    assert_true(log_place(worker, "job_done job=run/2/regular/gate") <
                log_place(worker, "job_start job=run/3/regular/good"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_site_teardown)
    const struct CMUnitTest tests[] = {
        TEST(worker_killed_loses_nothing_and_publishes_once),
        TEST(worker_runs_nothing_when_all_tasks_were_published),
        TEST(worker_says_that_a_redis_which_stands_still_is_unreachable),
        TEST(worker_restarts_a_killed_child_at_once),
        TEST(worker_notices_deaths_although_its_parent_ignores_them),
        TEST(worker_that_slept_through_its_lease_publishes_nothing),
        TEST(worker_stops_a_cancelled_job),
        TEST(worker_kills_what_runs_past_its_limit),
        TEST(worker_replaces_a_persistent_program_that_hangs_or_sends_garbage),
        TEST(worker_ends_a_job_whose_metrics_have_no_proper_names),
        TEST(worker_outlives_a_poison_job),
        TEST(worker_calls_itself_sick_when_different_jobs_crash),
        TEST(worker_is_not_sick_when_a_program_does_not_start),
        TEST(worker_exits_when_idle_without_redis),
        cmocka_unit_test_setup_teardown(worker_holds_its_result_while_redis_is_away, setup_aof,
                                        fixture_site_teardown),
        TEST(worker_repeats_what_redis_may_have_heard),
        TEST(worker_adopts_its_job_after_the_keyspace_was_lost),
        TEST(worker_waits_while_the_library_is_missing),
        TEST(worker_runs_an_alone_job_with_nothing_beside_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
