#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/folder.h"
#include "tests/fixture/program.h"
#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 3000, heartbeat_ms: 200, drain_seconds: 10}\n"
    "evaluators:\n"
    "  ok: {kind: command, command: [$DIR/ok.sh]}\n"
    "  empty: {kind: command, command: [$DIR/empty.sh]}\n"
    "  fatal: {kind: command, command: [$DIR/fatal.sh]}\n"
    "  gone: {kind: command, command: [$DIR/gone.sh]}\n"
    "  swap: {kind: command, command: [$DIR/swap.sh]}\n"
    "  convert: {kind: command, command: [$DIR/convert.sh]}\n"
    "  join: {kind: command, command: [$DIR/join.sh]}\n"
    "  together: {kind: command, command: [$DIR/together.sh]}\n"
    "  pair: {kind: command, command: [$DIR/pair.sh]}\n"
    "  warm: {kind: persistent, command: [python3, $DATA/evaluators/persistent.py]}\n"
    "suites:\n"
    "  shell: {evaluator: ok, tasks: [{name: t, type: any}]}\n"
    "  empty: {evaluator: empty, tasks: [{name: t, type: any}]}\n"
    "  fatal: {evaluator: fatal, tasks: [{name: t, type: any}]}\n"
    "  gone: {evaluator: gone, tasks: [{name: t, type: any}]}\n"
    "  swap: {evaluator: swap, tasks: [{name: t, type: any}]}\n"
    "  ready: {evaluator: ok, prepare: convert, tasks: [{name: t, type: any}]}\n"
    "  joined: {evaluator: ok, prepare: join, tasks: [{name: t, type: any}]}\n"
    "  together: {evaluator: together, tasks: [{name: t, type: any}]}\n"
    "  pair: {evaluator: pair, tasks: [{name: a, type: any}, {name: b, type: any}]}\n"
    "  warm: {evaluator: warm, tasks: [{name: a, type: any}, {name: b, type: any}]}\n"
#define DIGITS(name, shards)                                                                       \
    "  " name ": {evaluator: native, shards: " shards                                              \
    ", tasks: [{name: digits, type: classification, "                                              \
    "model: {activation: relu}, data: {format: idx, inputs: "                                      \
    "$DATA/mnist/t10k-images-idx3-ubyte.gz, "                                                      \
    "labels: $DATA/mnist/t10k-labels-idx1-ubyte.gz, scale: 0.00392156862745098}}]}\n"
    DIGITS("digits-joined", "1, prepare: join") DIGITS("digits1", "1") DIGITS("digits2", "2")
        DIGITS("digits3", "3") DIGITS("digits7", "7");

/* Scripts whose metrics show which checkpoint they evaluated. */
static const char ok_sh[] =
    "#!/bin/sh\n"
    "set -e\n"
    "size=$(stat -c %s \"$(find \"$EVALQ_CHECKPOINT\" -type f | head -n 1)\")\n"
    "printf '{\"bytes\": %s, \"n\": 7}' \"$size\" > \"$EVALQ_RESULT\"\n";
static const char empty_sh[] = "#!/bin/sh\necho the last words of empty\nexit 0\n";
static const char fatal_sh[] = "#!/bin/sh\necho it never works >&2\nexit 65\n";
static const char gone_sh[] =
    "#!/bin/sh\nrm \"$EVALQ_CHECKPOINT\"\ncat \"$EVALQ_CHECKPOINT\" > /dev/null\n";
static const char swap_sh[] =
    "#!/bin/sh\nset -e\ncp $DIR/ckpt/other.safetensors \"$EVALQ_CHECKPOINT\"\n"
    "echo '{\"bytes\": 1}' > \"$EVALQ_RESULT\"\n";
static const char join_sh[] = "#!/bin/sh\nset -e\necho made >> $DIR/joined\n"
                              "cp \"$EVALQ_CHECKPOINT/mp_rank_00.safetensors\" \"$EVALQ_OUTPUT\"\n";
static const char convert_sh[] = "#!/bin/sh\nset -e\necho made >> $DIR/converted\n"
                                 "cp \"$EVALQ_CHECKPOINT\" \"$EVALQ_OUTPUT/merged.safetensors\"\n";

/* It ends when it reads a line from the pipe `go`. */
static const char together_sh[] =
    "#!/bin/sh\nset -e\necho begun >> $DIR/begun\nread -r line < $DIR/go || true\n"
    "echo '{\"bytes\": 1}' > \"$EVALQ_RESULT\"\n";

static const char pair_sh[] =
    "#!/bin/sh\nset -e\necho begun >> $DIR/begun\nread -r line < $DIR/go || true\n"
    "echo '{\"a\": {\"x\": 1}, \"b\": {\"x\": 2}}' > \"$EVALQ_RESULT\"\n";

static int setup(void **state)
{
    struct fixture *fx = fixture_open(NULL);
    struct fixture_site *site = fixture_site_open(fx, BIN, EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "ok.sh", EVQ_TEST_DATA, ok_sh);
    fixture_site_write(site, "empty.sh", EVQ_TEST_DATA, empty_sh);
    fixture_site_write(site, "fatal.sh", EVQ_TEST_DATA, fatal_sh);
    fixture_site_write(site, "gone.sh", EVQ_TEST_DATA, gone_sh);
    fixture_site_write(site, "swap.sh", EVQ_TEST_DATA, swap_sh);
    fixture_site_write(site, "convert.sh", EVQ_TEST_DATA, convert_sh);
    fixture_site_write(site, "join.sh", EVQ_TEST_DATA, join_sh);
    fixture_site_write(site, "together.sh", EVQ_TEST_DATA, together_sh);
    fixture_site_write(site, "pair.sh", EVQ_TEST_DATA, pair_sh);
    *state = site;
    return 0;
}

static char *show(struct fixture_site *site, const char *id)
{
    struct evq_error err;
    char *json = NULL;

    assert_status_err(evq_queue_show(site->fx->queue, id, &json, &err), EVQ_OK, &err);
    return json;
}

static void worker_runs_a_command_and_publishes_its_result(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "shell", NULL);

    // Some jobs arrive before the worker blocks, some after.
    fixture_site_submit(site, "run/1/regular/shell");
    SITE_STATE_UNTIL(site, "run/1/regular/shell", "done");
    fixture_site_submit(site, "run/2/regular/shell");
    SITE_STATE_UNTIL(site, "run/2/regular/shell", "done");
    const struct fixture_published found =
        fixture_site_published(site, "run/2/regular/shell", "t", "bytes");
    assert_int_equal(found.tasks, 1);
    assert_int_equal(found.ends, 1);
    assert_int_equal(found.attempt, 1);
    assert_true(found.value > 256);
    fixture_audit(site->fx);
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
}

static void worker_keeps_a_persistent_program_between_jobs(void **state)
{
    struct fixture_site *site = *state;
    (void)fixture_site_worker(site, "--suites", "warm", NULL);

    fixture_site_submit(site, "run/1/regular/warm");
    fixture_site_submit(site, "run/2/regular/warm");
    SITE_STATE_UNTIL(site, "run/1/regular/warm", "done");
    SITE_STATE_UNTIL(site, "run/2/regular/warm", "done");
    const struct fixture_published first =
        fixture_site_published(site, "run/1/regular/warm", "a", "pid");
    const struct fixture_published second =
        fixture_site_published(site, "run/2/regular/warm", "b", "pid");
    assert_true(first.value > 1);
    assert_near(second.value, first.value, 0.0);
    assert_int_equal(fixture_site_published(site, "run/2/regular/warm", "a", "pid").tasks, 1);
}

static void digits_submit(struct fixture_site *site, const char *id)
{
    struct evq_job *job = fixture_job(id);

    job->path = "mlp.safetensors";
    job->fingerprint = "";
    assert_int_equal(fixture_submit_job(site->fx, job).answer, EVQ_SUBMIT_QUEUED);
    evq_job_free(job);
}

static void digits_copy(struct fixture_site *site)
{
    char path[128];

    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/ckpt/mlp.safetensors", site->dir);
    uint8_t *data =
        fixture_file_load(EVQ_TEST_DATA "/mnist/mlp_784_512_128_32_10.safetensors", &bytes);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    free(data);
}

static void worker_evaluates_mnist_natively(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "mnist/100/regular/digits1";

    digits_copy(site);
    digits_submit(site, id);
    struct fixture_worker *worker =
        fixture_site_worker(site, "--suites", "digits1", "--devices", "cpu", NULL);
    SITE_STATE_UNTIL(site, id, "done");
    assert_true(fixture_worker_logged(worker, "backend=cpu device=\""));
    assert_near(fixture_site_published(site, id, "digits", "accuracy").value, 0.9849, 1e-9);
    assert_near(fixture_site_published(site, id, "digits", "cross_entropy").value, 0.39055169,
                1e-6);
}

static void worker_gives_the_same_numbers_for_any_number_of_shards(void **state)
{
    static const char *const ids[] = {"mnist/100/regular/digits1", "mnist/100/regular/digits2",
                                      "mnist/100/regular/digits3", "mnist/100/regular/digits7"};
    struct fixture_site *site = *state;

    digits_copy(site);
    for (size_t i = 0; i < 4; i++) {
        digits_submit(site, ids[i]);
    }
    (void)fixture_site_worker(site, "--devices", "cpu", "--slots", "2", NULL);
    (void)fixture_site_worker(site, "--devices", "cpu", NULL);
    for (size_t i = 0; i < 4; i++) {
        SITE_STATE_UNTIL(site, ids[i], "done");
    }
    const double loss = fixture_site_published(site, ids[0], "digits", "cross_entropy").value;
    for (size_t i = 0; i < 4; i++) {
        const struct fixture_published found =
            fixture_site_published(site, ids[i], "digits", "cross_entropy");
        assert_int_equal(found.tasks, 1);
        assert_int_equal(found.ends, 1);
        assert_near(found.value, loss, 1e-12);
        assert_near(fixture_site_published(site, ids[i], "digits", "accuracy").value, 0.9849,
                    1e-12);
    }
    fixture_audit(site->fx);
}

static void worker_fails_a_command_that_leaves_no_results(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/empty";

    fixture_site_submit(site, id);
    (void)fixture_site_worker(site, "--suites", "empty", NULL);
    SITE_STATE_UNTIL(site, id, "delayed"); // The job will be tried again.
    char *json = show(site, id);
    assert_holds(json, "left no results");
    assert_holds(json, "the last words of empty");
    free(json);
    assert_int_equal(fixture_site_published(site, id, "t", "x").tasks, 0);
}

static void worker_ends_a_job_whose_command_says_fatal(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/fatal";

    fixture_site_submit(site, id);
    (void)fixture_site_worker(site, "--suites", "fatal", NULL);
    SITE_STATE_UNTIL(site, id, "dead");
    char *json = show(site, id);
    assert_holds(json, "it never works (evaluator 'fatal' failed for good, exit status 65)");
    assert_holds(json, "\"attempts\":\"1\",");
    free(json);
}

static void worker_skips_what_vanished_or_changed(void **state)
{
    struct fixture_site *site = *state;

    fixture_site_checkpoint(site, "other.safetensors", 99);
    fixture_site_submit(site, "run/1/regular/gone");
    fixture_site_submit(site, "run/2/regular/swap");
    fixture_site_submit(site, "run/3/regular/shell");
    fixture_site_checkpoint(site, "3.safetensors", 33); // The file is no longer the submitted one.
    (void)fixture_site_worker(site, NULL);
    SITE_STATE_UNTIL(site, "run/1/regular/gone", "skipped");
    SITE_STATE_UNTIL(site, "run/2/regular/swap", "skipped");
    SITE_STATE_UNTIL(site, "run/3/regular/shell", "skipped");
    assert_int_equal(fixture_site_published(site, "run/2/regular/swap", "t", "bytes").tasks, 0);
    assert_int_equal(fixture_site_published(site, "run/3/regular/shell", "t", "bytes").tasks, 0);
}

static void worker_prepares_a_checkpoint_once(void **state)
{
    struct fixture_site *site = *state;

    fixture_site_submit(site, "run/5/regular/ready");
    fixture_site_submit(site, "run-b/5/regular/ready"); // Both checkpoints have the same content.
    (void)fixture_site_worker(site, "--suites", "ready", "--slots", "2", NULL);
    SITE_STATE_UNTIL(site, "run/5/regular/ready", "done");
    SITE_STATE_UNTIL(site, "run-b/5/regular/ready", "done");
    assert_string_equal(fixture_site_text(site, "converted").text, "made\n");
    assert_true(fixture_site_published(site, "run/5/regular/ready", "t", "bytes").value > 256);
}

/*
 * A layout that evalq cannot read is prepared once for its content, both for programs and for
 * evalq's own tasks. Other content at the same path is prepared again.
 */
static void worker_prepares_a_layout_that_it_does_not_read(void **state)
{
    static const char *const ids[] = {"run/5/regular/joined", "run/6/regular/joined",
                                      "run/5/regular/digits-joined", "run/7/regular/joined"};
    struct fixture_site *site = *state;
    char path[128];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/ckpt/cut", site->dir);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/ckpt/cut/mp_rank_00.safetensors", site->dir);
    uint8_t *weights =
        fixture_file_load(EVQ_TEST_DATA "/mnist/mlp_784_512_128_32_10.safetensors", &bytes);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(weights, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    free(weights);
    fixture_site_checkpoint(site, "cut/mp_rank_01.safetensors", 6);
    (void)fixture_site_worker(site, "--slots", "1", NULL);
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        if (i == 3) {
            fixture_site_checkpoint(site, "cut/mp_rank_01.safetensors", 7);
        }
        struct evq_job *job = fixture_job(ids[i]);
        job->path = "cut";
        job->fingerprint = "";
        (void)fixture_submit_job(site->fx, job);
        evq_job_free(job);
        SITE_STATE_UNTIL(site, ids[i], "done");
    }
    assert_string_equal(fixture_site_text(site, "joined").text, "made\nmade\n");
    assert_true(fixture_site_published(site, ids[0], "t", "bytes").value > 256);
    assert_true(fixture_site_published(site, ids[2], "digits", "accuracy").value > 0.9);
}

static void worker_says_which_line_is_missing_for_an_unknown_root(void **state)
{
    struct fixture_site *site = *state;
    struct evq_job *job = fixture_job("run/1/regular/shell");

    job->root = "elsewhere";
    job->fingerprint = "";
    (void)fixture_submit_job(site->fx, job);
    evq_job_free(job);
    (void)fixture_site_worker(site, "--suites", "shell", NULL);
    SITE_STATE_UNTIL(site, "run/1/regular/shell", "delayed");
    char *json = show(site, "run/1/regular/shell");
    assert_holds(json, "elsewhere");
    free(json);
}

/*
 * The record of a queued job is overwritten with garbage. That job becomes dead with a reason, and
 * the next job is evaluated.
 */
static void worker_ends_a_job_whose_record_is_garbage(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/shell";

    fixture_site_submit(site, id);
    fixture_site_submit(site, "run/2/regular/shell");
    evq_reply_free(fixture_call(site->fx->raw, "SET",
                                fixture_key(site->fx, "msg:run/1/regular/shell"), "garbage", NULL));
    (void)fixture_site_worker(site, "--suites", "shell", NULL);
    SITE_STATE_UNTIL(site, "run/2/regular/shell", "done");
    SITE_STATE_UNTIL(site, id, "dead");
    assert_int_equal(fixture_site_published(site, id, "t", "bytes").tasks, 0);
}

static void worker_exits_after_its_jobs_and_when_idle(void **state)
{
    struct fixture_site *site = *state;

    fixture_site_submit(site, "run/1/regular/shell");
    fixture_site_submit(site, "run/2/regular/shell");
    struct fixture_worker *one =
        fixture_site_worker(site, "--suites", "shell", "--max-jobs", "1", NULL);
    assert_int_equal(fixture_worker_wait(one), 0);
    SITE_STATE_UNTIL(site, "run/1/regular/shell", "done");
    assert_true(fixture_site_state_is(site, "run/2/regular/shell", "queued"));
    struct fixture_worker *rest =
        fixture_site_worker(site, "--suites", "shell", "--idle-exit", "0", NULL);
    assert_int_equal(fixture_worker_wait(rest), 0);
    SITE_STATE_UNTIL(site, "run/2/regular/shell", "done");
}

/* The worker refuses a suite that can evaluate no job when it starts, not for each job. */
static void refuses_task(struct fixture_site *site, const char *task, const char *line)
{
    char body[512];
    char path[512];

    (void)snprintf(body, sizeof(body), "suites: {s: {tasks: [{name: t, %s}]}}\n", task);
    fixture_site_write(site, "bad.yaml", "", body);
    (void)snprintf(path, sizeof(path), "%s/bad.yaml", site->dir);
    assert_int_equal(fixture_site_run(site, "out", "--config", path, "--url", site->fx->redis->url,
                                      "--idle-exit", "0", NULL),
                     EVQ_EXIT_CONFIG);
    assert_true(fixture_site_holds(site, "out", line));
}

static void worker_refuses_with_a_line_and_a_code(void **state)
{
    struct fixture_site *site = *state;
    char url[64];

    assert_int_equal(fixture_site_run(site, "escape", "\x1b[31m", NULL), 2);
    assert_true(fixture_site_holds(site, "escape", "unknown command '\\x1b[31m'"));
    assert_int_equal(fixture_site_run(site, "out", "--slots", "none", NULL), EVQ_EXIT_USAGE);
    assert_true(
        fixture_site_holds(site, "out", "--slots 'none' is not a whole number from 1 to 1024"));
    assert_int_equal(fixture_site_run(site, "out", "--config", "missing.yaml", NULL),
                     EVQ_EXIT_CONFIG);
    (void)snprintf(url, sizeof(url), "redis://127.0.0.1:%d", fixture_free_port());
    assert_int_equal(fixture_site_run(site, "out", "--config", site->config, "--url", url, NULL),
                     EVQ_EXIT_UNREACHABLE);
    assert_int_equal(fixture_site_run(site, "out", "--config", site->config, "--suites", "nosuch",
                                      "--url", site->fx->redis->url, NULL),
                     EVQ_EXIT_CONFIG);
    assert_true(fixture_site_holds(site, "out", "nosuch"));
    refuses_task(site, "type: clasification, data: {format: npy, inputs: a, labels: b}",
                 "suite 's', task 't': task type 'clasification' is not known");
    refuses_task(site, "type: classification, data: {format: npx, inputs: a, labels: b}",
                 "suite 's', task 't': data: format 'npx' is not known");
    refuses_task(site, "type: regression, data: {format: npy, inputs: a}",
                 "suite 's', task 't': data: targets is missing");
    refuses_task(site,
                 "type: regression, model: {activation: rely}, data: {format: npy, inputs: a, "
                 "targets: b}",
                 "suite 's', task 't': model: activation is 'rely'");
    refuses_task(site,
                 "type: classification, top_k: none, data: {format: npy, inputs: a, labels: b}",
                 "suite 's', task 't': classification: top_k");
    // This is another definition of the suite, from another file.
    (void)fixture_suite(site->fx, "shell");
    assert_int_equal(fixture_site_run(site, "out", "--config", site->config, "--url",
                                      site->fx->redis->url, NULL),
                     EVQ_EXIT_CONFIG);
    assert_true(fixture_site_holds(site, "out", "fixture:/etc/evalq.yaml"));
    evq_reply_free(fixture_call(site->fx->raw, "FUNCTION", "FLUSH", NULL));
    assert_int_equal(fixture_site_run(site, "out", "--config", site->config, "--url",
                                      site->fx->redis->url, NULL),
                     EVQ_EXIT_VERSION);
    assert_true(fixture_site_holds(site, "out", "evalq admin install"));
}

static size_t lines(const struct fixture_site *site, const char *name)
{
    const struct fixture_text text = fixture_site_text(site, name);
    size_t count = 0;

    for (const char *at = text.text; (at = strchr(at, '\n')) != NULL; at++) {
        count++;
    }
    return count;
}

/* Returns how often Redis was sent this command since its slow log records everything. */
static int calls_of(struct fixture_site *site, const char *function)
{
    struct evq_reply *reply = fixture_call(site->fx->raw, "SLOWLOG", "GET", "-1", NULL);
    int count = 0;

    for (size_t i = 0; i < reply->item_count; i++) {
        const struct evq_reply *words = reply->items[i]->items[3];
        count += words->item_count > 1 && strcmp(words->items[1]->text, function) == 0;
    }
    evq_reply_free(reply);
    return count;
}

static void config_set(struct fixture_site *site, const char *name, const char *value)
{
    evq_reply_free(fixture_call(site->fx->raw, "CONFIG", "SET", name, value, NULL));
}

/* Eight attempts end while Redis delays the first of their calls. */
static void worker_completes_in_one_call_what_ended_together(void **state)
{
    struct fixture_site *site = *state;
    char id[64], go[96];

    (void)snprintf(go, sizeof go, "%s/go", site->dir);
    assert_int_equal(mkfifo(go, 0600), 0);
    (void)fixture_site_worker(site, "--suites", "together", "--slots", "8", NULL);
    for (int step = 1; step <= 8; step++) {
        (void)snprintf(id, sizeof id, "run/%d/regular/together", step);
        fixture_site_submit(site, id);
    }
    FIXTURE_UNTIL(lines(site, "begun") == 8);
    config_set(site, "slowlog-max-len", "1000000");
    config_set(site, "slowlog-log-slower-than", "0");
    evq_reply_free(fixture_call(site->fx->raw, "CLIENT", "PAUSE", "600000", "WRITE", NULL));
    const int held = open(go, O_RDWR | O_CLOEXEC);
    assert_true(held >= 0);
    assert_int_equal(write(held, "\n\n\n\n\n\n\n\n", 8), 8);
    // The worker knows all of them.
    FIXTURE_UNTIL(fixture_file_holds(site->dir, "worker0.log", "event=job_done") == 8);
    evq_reply_free(fixture_call(site->fx->raw, "CLIENT", "UNPAUSE", NULL));
    for (int step = 1; step <= 8; step++) {
        (void)snprintf(id, sizeof id, "run/%d/regular/together", step);
        SITE_STATE_UNTIL(site, id, "done");
    }
    (void)close(held);
    assert_true(calls_of(site, "evalq_v1_complete_many") > 0);
    assert_true(calls_of(site, "evalq_v1_complete") + calls_of(site, "evalq_v1_complete_claim") <
                7);
    const struct fixture_published found =
        fixture_site_published(site, "run/8/regular/together", "t", "bytes");
    assert_int_equal(found.tasks, 1);
    assert_int_equal(found.ends, 1);
    fixture_audit(site->fx);
}

static bool matches(const struct fixture_site *site, const char *pattern)
{
    char path[256];
    glob_t found;

    (void)snprintf(path, sizeof path, "%s/%s", site->dir, pattern);
    const bool any = glob(path, 0, NULL, &found) == 0;
    globfree(&found);
    return any;
}

/*
 * A stopped worker has two results and the end of a job, which belongs to another worker by now.
 * After the first answer, it drops all three.
 */
static void worker_drops_all_results_of_a_job_that_it_has_lost(void **state)
{
    struct fixture_site *site = *state;
    const char *id = "run/1/regular/pair";
    char go[96];

    (void)snprintf(go, sizeof go, "%s/go", site->dir);
    assert_int_equal(mkfifo(go, 0600), 0);
    struct fixture_worker *worker = fixture_site_worker(site, "--suites", "pair", NULL);
    fixture_site_submit(site, id);
    FIXTURE_UNTIL(lines(site, "begun") == 1);
    assert_true(matches(site, "scratch/jobs/*/job.json"));
    assert_int_equal(kill(worker->pid, SIGSTOP), 0);
    const int held = open(go, O_RDWR | O_CLOEXEC);
    assert_true(held >= 0);
    assert_int_equal(write(held, "\n", 1), 1);
    FIXTURE_UNTIL(!matches(site, "scratch/jobs/*/job.json")); // The child has sent everything.
    const char *key = fixture_key(site->fx, "job:run/1/regular/pair");
    evq_reply_free(fixture_call(site->fx->raw, "HSET", key, "token", "9.another", NULL));
    assert_int_equal(kill(worker->pid, SIGCONT), 0);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "job_stale"));
    assert_int_equal(fixture_results_published(site->fx), 0);
    fixture_site_submit(site, "run/2/regular/pair");
    assert_int_equal(write(held, "\n\n", 2), 2);
    SITE_STATE_UNTIL(site, "run/2/regular/pair", "done");
    assert_int_equal(fixture_results_published(site->fx), 2);
    (void)close(held);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_site_teardown)
    const struct CMUnitTest tests[] = {
        TEST(worker_runs_a_command_and_publishes_its_result),
        TEST(worker_completes_in_one_call_what_ended_together),
        TEST(worker_drops_all_results_of_a_job_that_it_has_lost),
        TEST(worker_keeps_a_persistent_program_between_jobs),
        TEST(worker_evaluates_mnist_natively),
        TEST(worker_gives_the_same_numbers_for_any_number_of_shards),
        TEST(worker_fails_a_command_that_leaves_no_results),
        TEST(worker_ends_a_job_whose_command_says_fatal),
        TEST(worker_skips_what_vanished_or_changed),
        TEST(worker_prepares_a_checkpoint_once),
        TEST(worker_prepares_a_layout_that_it_does_not_read),
        TEST(worker_says_which_line_is_missing_for_an_unknown_root),
        TEST(worker_ends_a_job_whose_record_is_garbage),
        TEST(worker_exits_after_its_jobs_and_when_idle),
        TEST(worker_refuses_with_a_line_and_a_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
