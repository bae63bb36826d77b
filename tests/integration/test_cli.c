/*
 * Tests evalq with a real Redis: its usage, and the verbs submit, scan and pins. Each failure has
 * its own exit code and prints one line.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/queue/function_library.h"
#include "tests/fixture/user.h"

static int setup(void **state)
{
    return fixture_user_setup(state, EVQ_TEST_BIN "/evalq");
}

static void help_and_version_need_no_redis(void **state)
{
    struct site *site = *state;
    static const char *const verbs[] = {"up",     "submit",  "scan",   "status", "show",
                                        "logs",   "results", "watch",  "wait",   "best",
                                        "cancel", "retry",   "pause",  "resume", "dead",
                                        "forget", "gc",      "doctor", "admin"};
    site->program.url = "unix:///nowhere/at.all";
    EXPECT(site, 0, "--version");
    assert_int_equal(strncmp(site->output.out, "evalq ", 6), 0);
    EXPECT(site, 0, "--help");
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        char first[64];
        (void)snprintf(first, sizeof first, "\n  %s ", verbs[i]);
        EXPECT(site, 0, "--help");
        assert_holds(site->output.out, first);
        EXPECT(site, 0, verbs[i], "--help");
        assert_holds(site->output.out, "Usage: evalq ");
        assert_string_equal(site->output.err, "");
    }
}

static void wrong_usage_prints_one_line_with_the_nearest_word(void **state)
{
    struct site *site = *state;
    EXPECT(site, 2, "sumbit");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "did you mean 'submit'?");
    EXPECT(site, 2, "submit", "x", "--stp", "3");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "did you mean --step?");
    EXPECT(site, 2, "submit", "x", "--step");
    fixture_user_one_line(site);
    EXPECT(site, 2, "submit", "final.safetensors", "--run", "r", "--suite", "quick");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "--step is missing, and the name 'final.safetensors'");
    EXPECT(site, 2, "submit", "x", "--step", "-1");
    fixture_user_one_line(site);
    EXPECT(site, 2, "submit", "x", "--step", "3x", "--run", "r", "--suite", "quick");
    fixture_user_one_line(site);
    EXPECT(site, 2, "submit", "x", "--step", "3", "--run", "r");
    assert_holds(site->output.err, "--suite is missing");
    EXPECT(site, 2, "submit", "x", "--step", "3", "--run", "r", "--suite", "a/b");
    fixture_user_one_line(site);
    EXPECT(site, 2, "submit", "x", "--policy", "newest");
    assert_holds(site->output.err, "none of all|latest|backfill");
    EXPECT(site, 2, "status", "extra");
    assert_holds(site->output.err, "usage: evalq status");
    EXPECT(site, 2, "status", "--json=1");
    assert_holds(site->output.err, "--json takes no value");
    EXPECT(site, 2, "status", "-Z");
    fixture_user_one_line(site);
    EXPECT(site, 2, "admin", "instal");
    assert_holds(site->output.err, "did you mean 'admin install'?");
    EXPECT(site, 2, "pause", "suite");
    fixture_user_one_line(site);
    EXPECT(site, 2, "show");
    EXPECT(site, 2, "--color", "sometimes", "status");
    fixture_user_one_line(site);
}

static void errors_of_address_and_server_have_their_own_exit_codes(void **state)
{
    struct site *site = *state;
    char url[64];
    (void)snprintf(url, sizeof url, "redis://127.0.0.1:%d", fixture_free_port());
    EXPECT(site, 5, "--url", url, "status");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "(from --url)");
    EXPECT(site, 5, "--url", "unix:///nowhere/at.all", "status");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "cannot reach Redis: unix:///nowhere/at.all");
    EXPECT(site, 8, "--url", "http://example.org", "status");
    fixture_user_one_line(site);
    EXPECT(site, 8, "--url", "redis://user:secret@127.0.0.1", "status");
    fixture_user_one_line(site);
    assert_null(strstr(site->output.err, "secret"));
    EXPECT(site, 8, "--queue", "a b", "status");
    fixture_user_one_line(site);
    EXPECT(site, 8, "--config", "none.yaml", "status");
    fixture_user_one_line(site);
    fixture_file_write(site->dir, "bad.yaml", "roots:\n  work: .\nsuits: {}\n");
    EXPECT(site, 8, "--config", "bad.yaml", "status");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "suites");
    struct evq_reply *reply = fixture_call(site->fx->raw, "FUNCTION", "FLUSH", NULL);
    evq_reply_free(reply);
    EXPECT(site, 7, "status");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "evalq admin install");
    EXPECT(site, 0, "admin", "install");
    EXPECT(site, 0, "admin", "install", "--json");
    json_t *doc = fixture_user_json(site);
    assert_string_equal(json_string_value(json_object_get(doc, "library")), "evalq_v1");
    json_decref(doc);
    EXPECT(site, 0, "status");
}

static void wrong_password_is_a_permission(void **state)
{
    struct site *site = *state;
    char path[256];
    struct evq_reply *reply =
        fixture_call(site->fx->raw, "CONFIG", "SET", "requirepass", "right", NULL);
    evq_reply_free(reply);
    EXPECT(site, 6, "status");
    fixture_user_one_line(site);
    fixture_file_write(site->dir, "password", "wrong\n");
    (void)snprintf(path, sizeof path, "%s/password", site->dir);
    assert_int_equal(chmod(path, 0600), 0);
    site->program.password = path;
    EXPECT(site, 6, "status");
    fixture_user_one_line(site);
    fixture_file_write(site->dir, "password", "right\n");
    EXPECT(site, 0, "status");
    assert_int_equal(chmod(path, 0644), 0);
    EXPECT(site, 8, "status");
    assert_holds(site->output.err, "readable by every user");
}

static void submit_queues_once_and_names_what_is_wrong(void **state)
{
    struct site *site = *state;
    fixture_user_checkpoint(site, "out/step-100.safetensors", 1);
    EXPECT(site, 0, "submit", "out/step-100.safetensors", "--run", "r", "--step", "100", "--suite",
           "quick");
    assert_string_equal(site->output.out, "r/100/regular/quick  queued\n");
    EXPECT(site, 0, "--json", "submit", "./out/../out/step-100.safetensors", "--run", "r", "--step",
           "100", "--suite", "quick", "-p", "a=b");
    json_t *doc = fixture_user_json(site);
    const json_t *job = json_array_get(json_object_get(doc, "jobs"), 0);
    assert_string_equal(json_string_value(json_object_get(job, "answer")), "duplicate");
    assert_string_equal(json_string_value(json_object_get(job, "state")), "queued");
    assert_int_equal(strlen(json_string_value(json_object_get(doc, "fingerprint"))), 32);
    json_decref(doc);
    fixture_user_checkpoint(site, "out/step-100.safetensors", 2);
    EXPECT(site, 0, "submit", "out/step-100.safetensors", "--run", "r", "--step", "100", "--suite",
           "quick");
    assert_string_equal(site->output.out, "r/100/regular/quick  replaced\n");
    EXPECT(site, 0, "--plain", "submit", "out/step-100.safetensors", "--run", "r", "--step", "100",
           "--suite", "quick,other", "--variant", "ema");
    assert_string_equal(site->output.out,
                        "r/100/ema/quick\tqueued\tqueued\nr/100/ema/other\tqueued\tqueued\n");
    assert_holds(site->output.err,
                 "evalq: warning: r/100/ema/other waits: no worker offers suite other; start a "
                 "worker whose configuration has this suite. No worker offers a suite now\n");
    assert_holds(site->output.err,
                 "evalq: warning: r/100/ema/quick waits: no worker offers suite quick; start a "
                 "worker whose configuration has this suite. ");
    EXPECT(site, 0, "submit", "out/step-100.safetensors", "--run", "slip", "--step", "1", "--suite",
           "quikc");
    assert_string_equal(
        site->output.err,
        "evalq: warning: slip/1/regular/quikc waits: no worker offers suite quikc; did "
        "you mean 'quick'? No worker offers a suite now\n");
    EXPECT(site, 0, "submit", "out/step-100.safetensors", "--run", "l", "--step", "2", "--suite",
           "quick", "--policy", "latest");
    EXPECT(site, 0, "submit", "out/step-100.safetensors", "--run", "l", "--step", "1", "--suite",
           "quick", "--policy", "latest");
    assert_string_equal(site->output.out, "l/1/regular/quick  skipped: superseded by step 2\n");
    EXPECT(site, 0, "submit", "out/step-100.safetensors", "--run", "n", "--suite", "quick",
           "--needs", "gpus=2,gpu_memory=24GiB", "--format", "mine");
    EXPECT(site, 0, "show", "n/100/regular/quick", "--json");
    assert_holds(site->output.out, "\"format\": \"mine\"");
    assert_holds(site->output.out, "gpus=2,gpu_memory=25769803776");
    evq_reply_free(fixture_call(site->fx->raw, "HSET",
                                fixture_key(site->fx, "job:n/100/regular/quick"), "status", "start",
                                NULL));
    EXPECT(site, 0, "show", "n/100/regular/quick");
    // The number of the class means nothing to users.
    assert_null(strstr(site->output.out, "class"));
    // The status of an evaluator is shown only while it has the job.
    assert_null(strstr(site->output.out, "status"));
    EXPECT(site, 2, "submit", "out/step-100.safetensors", "--run", "n", "--suite", "quick",
           "--needs", "gpus=2GiB");
    fixture_user_one_line(site);
    EXPECT(site, 3, "submit", "/etc/hostname", "--run", "r", "--step", "1", "--suite", "quick");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "lies beneath no root");
    EXPECT(site, 9, "submit", "out/none", "--run", "r", "--step", "1", "--suite", "quick");
    fixture_user_one_line(site);
    EXPECT(site, 9, "submit", "out/checkpoint-7", "--run", "r", "--suite", "quick");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "the checkpoint 'out/checkpoint-7': No such file");
    fixture_file_write(site->dir, "out/cut.safetensors", "\x40\x01\x00\x00");
    EXPECT(site, 9, "submit", "out/cut.safetensors", "--run", "r", "--step", "1", "--suite",
           "quick");
    fixture_user_one_line(site);
    EXPECT(site, 124, "submit", "out/step-100.safetensors", "--run", "r", "--step", "100",
           "--suite", "quick", "--wait", "--timeout", "0");
    assert_holds(site->output.err, "still queued");
    fixture_audit(site->fx);
}

static void finish_next(struct site *site, double accuracy)
{
    struct evq_claim *claim = fixture_claim(site->fx);
    fixture_publish(site->fx, claim, "t", accuracy);
    assert_status(evq_queue_complete(site->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
}

static void submit_step(struct site *site, const char *step, int seed, const char *session,
                        const char *answer)
{
    char name[64];
    (void)snprintf(name, sizeof name, "out/step-%s.safetensors", step);
    fixture_user_checkpoint(site, name, seed);
    EXPECT(site, 0, "submit", name, "--run", "r", "--suite", "quick", "--policy", "latest",
           "--session", session);
    assert_holds(site->output.out, answer);
}

/*
 * A training uses the name of an earlier run. With the same weights, nothing is evaluated twice.
 * Other weights make a new generation of the job. A resumed training continues the run. A rewound
 * training counts as newer than what its earlier session left queued.
 */
static void generations_of_a_restarted_run_are_distinguished(void **state)
{
    struct site *site = *state;
    submit_step(site, "100", 1, "1000", "r/100/regular/quick  queued");
    finish_next(site, 0.5);
    submit_step(site, "100", 1, "2000", "duplicate: it is done");
    submit_step(site, "100", 2, "2000", "r/100/regular/quick~2  followed");
    finish_next(site, 0.75);
    EXPECT(site, 0, "results", "r"); // Each row shows its generation.
    assert_holds(site->output.out, "\n  100  ");
    assert_holds(site->output.out, "\n100~2  ");
    EXPECT(site, 0, "watch", "r");
    assert_holds(site->output.out, "best accuracy 0.75 at step 100~2\n");
    EXPECT(site, 0, "compare", "r");
    assert_holds(site->output.out, "  100~2 "); // The second generation is the better one.
    EXPECT(site, 0, "compare", "r", "--json");
    assert_holds(site->output.out, "r/100/regular/quick~2");
    struct evq_best best = {.run = "r",
                            .metric = "eval/t/accuracy",
                            .value = 0.75,
                            .step = 100,
                            .job = "r/100/regular/quick~2",
                            .checkpoint = "work:out/step-100"};
    assert_status(evq_queue_best_put(site->fx->queue, &best, NULL), EVQ_OK);
    EXPECT(site, 0, "best", "r");
    assert_holds(site->output.out, "step 100~2  eval/t/accuracy 0.75");
    submit_step(site, "200", 3, "3000", "r/200/regular/quick  queued"); // The training was resumed.
    submit_step(site, "150", 4, "4000", "r/150/regular/quick  queued"); // The training was rewound.
    fixture_assert_state(site->fx, "r/200/regular/quick", "skipped");
    // This is the earlier session.
    submit_step(site, "210", 5, "3000", "skipped: superseded by step 150");
    submit_step(site, "200", 6, "4000", "r/200/regular/quick~2  followed");
    fixture_assert_state(site->fx, "r/150/regular/quick", "skipped");
    fixture_audit(site->fx);
}

static int pins_of(const struct site *site)
{
    char path[256];
    int count = 0;
    (void)snprintf(path, sizeof path, "%s/out/.evalq/pins", site->dir);
    DIR *dir = opendir(path);
    for (const struct dirent *entry = NULL; dir != NULL && (entry = readdir(dir)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return count;
}

static void pin_goes_by_gc_when_its_job_has_ended(void **state)
{
    struct site *site = *state;
    fixture_user_checkpoint(site, "out/step-7.safetensors", 7);
    EXPECT(site, 0, "submit", "out/step-7.safetensors", "--run", "named", "--suite", "quick");
    assert_holds(site->output.out, "named/7/regular/quick");
    EXPECT(site, 0, "submit", "out/step-7.safetensors", "--run", "r", "--step", "7", "--suite",
           "quick", "--pin");
    assert_int_equal(pins_of(site), 1);
    EXPECT(site, 0, "gc", "--json");
    json_t *doc = fixture_user_json(site);
    assert_int_equal(json_integer_value(json_object_get(doc, "pins_left")), 1);
    assert_int_equal(json_integer_value(json_object_get(doc, "pins_released")), 0);
    json_decref(doc);
    assert_int_equal(pins_of(site), 1);
    EXPECT(site, 0, "cancel", "r/7/regular/quick");
    EXPECT(site, 0, "gc");
    assert_holds(site->output.out, "1 pin released");
    assert_int_equal(pins_of(site), 0);
}

static void pin_of_a_dead_job_stays_for_its_retry_unless_told_otherwise(void **state)
{
    struct site *site = *state;
    enum evq_job_state ended = EVQ_JOB_QUEUED;
    fixture_user_checkpoint(site, "out/step-7.safetensors", 7);
    EXPECT(site, 0, "submit", "out/step-7.safetensors", "--run", "r", "--suite", "quick", "--pin");
    struct evq_claim *claim = fixture_claim(site->fx);
    assert_status(evq_queue_fail(site->fx->queue, claim->id, claim->token, EVQ_FAIL_FATAL, "broken",
                                 "", &ended, NULL),
                  EVQ_OK);
    evq_claim_free(claim);
    EXPECT(site, 0, "gc");
    assert_holds(site->output.out, "1 pin still needed");
    assert_int_equal(pins_of(site), 1);
    EXPECT(site, 0, "gc", "--dead");
    assert_holds(site->output.out, "1 pin released");
    assert_int_equal(pins_of(site), 0);
}

static void gc_keeps_the_newest_four_pins_of_dead_jobs_of_a_run(void **state)
{
    struct site *site = *state;
    enum evq_job_state ended = EVQ_JOB_QUEUED;
    char path[64];

    for (int step = 1; step <= 7; step++) {
        (void)snprintf(path, sizeof path, "out/step-%d.safetensors", step);
        fixture_user_checkpoint(site, path, step);
        EXPECT(site, 0, "submit", path, "--run", step == 1 ? "other" : "r", "--suite", "quick",
               "--pin");
        struct evq_claim *claim = fixture_claim(site->fx);
        assert_status(evq_queue_fail(site->fx->queue, claim->id, claim->token, EVQ_FAIL_FATAL,
                                     "broken", "", &ended, NULL),
                      EVQ_OK);
        evq_claim_free(claim);
    }
    EXPECT(site, 0, "gc");
    assert_holds(site->output.out, "2 pins released, 5 pins still needed");
    assert_int_equal(pins_of(site), 5);
    EXPECT(site, 0, "retry", "r/4/regular/quick"); // This is the oldest one that was kept.
    EXPECT(site, 0, "gc");
    assert_int_equal(pins_of(site), 5);
}

static void scan_submits_all_and_the_incomplete_one_when_it_is_complete(void **state)
{
    struct site *site = *state;
    static const char *const names[] = {
        "out/step-100.safetensors", "out/model_step_200.safetensors", "out/ckpt-300.safetensors"};
    char path[256];
    for (size_t i = 0; i < 3; i++) {
        fixture_user_checkpoint(site, names[i], (int)i);
    }
    (void)snprintf(path, sizeof path, "%s/out/checkpoint-400", site->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    fixture_file_write(site->dir, "out/checkpoint-400/model.safetensors", "\x40\x01");
    fixture_file_write(site->dir, "out/training_7.log", "no checkpoint");
    EXPECT(site, 0, "scan", "out", "--run", "s", "--suite", "quick", "--json");
    json_t *doc = fixture_user_json(site);
    assert_int_equal(json_integer_value(json_object_get(doc, "submitted")), 3);
    assert_int_equal(json_integer_value(json_object_get(doc, "incomplete")), 1);
    assert_int_equal(json_array_size(json_object_get(doc, "checkpoints")), 4);
    json_decref(doc);
    fixture_assert_state(site->fx, "s/200/regular/quick", "queued");
    fixture_user_checkpoint(site, "out/checkpoint-400/model.safetensors", 4);
    EXPECT(site, 0, "scan", "out", "--run", "s", "--suite", "quick", "--json");
    doc = fixture_user_json(site);
    assert_int_equal(json_integer_value(json_object_get(doc, "submitted")), 1);
    assert_int_equal(json_integer_value(json_object_get(doc, "duplicates")), 3);
    json_decref(doc);
    fixture_assert_state(site->fx, "s/400/regular/quick", "queued");
    EXPECT(site, 0, "scan", "out", "--run", "p", "--suite", "quick", "--pattern", "ckpt-*");
    fixture_assert_state(site->fx, "p/300/regular/quick", "queued");
    EXPECT(site, 3, "show", "p/100/regular/quick");
    fixture_file_write(site->dir, "out/step-900.pt",
                       "this is not a checkpoint of any kind, but long enough");
    EXPECT(site, 9, "scan", "out", "--run", "s", "--suite", "quick");
    assert_holds(site->output.out, "refused");
    EXPECT(site, 3, "scan", "none", "--run", "s", "--suite", "quick");
    fixture_user_one_line(site);
    fixture_audit(site->fx);
}

/* A broken checkpoint does not keep the others from being submitted, in any order. */
static void scan_continues_after_checkpoints_that_cannot_be_read(void **state)
{
    struct site *site = *state;
    char path[256];

    fixture_user_checkpoint(site, "out/step-2.safetensors", 2);
    (void)snprintf(path, sizeof path, "%s/out/step-1.safetensors", site->dir);
    assert_int_equal(symlink("/proc/self/exe", path), 0); // The link leads out of the root.
    EXPECT(site, 9, "scan", "out", "--run", "s", "--suite", "quick");
    assert_holds(site->output.err, "leaves its root directory");
    fixture_assert_state(site->fx, "s/2/regular/quick", "queued");
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/out/checkpoint-1", site->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/out/checkpoint-1/model.safetensors", site->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    EXPECT(site, 9, "scan", "out", "--run", "t", "--suite", "quick");
    assert_holds(site->output.err, "is not a regular file");
    fixture_assert_state(site->fx, "t/2/regular/quick", "queued");
    // The name is not valid UTF-8.
    fixture_user_checkpoint(site, "out/caf\xe9-step-0.safetensors", 1);
    EXPECT(site, 9, "scan", "out", "--run", "v", "--suite", "quick", "--json");
    assert_holds(site->output.err, "path is not UTF-8");
    json_t *doc = fixture_user_json(site);
    const json_t *first = json_array_get(json_object_get(doc, "checkpoints"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "name")),
                        "caf\\xe9-step-0.safetensors");
    json_decref(doc);
    fixture_assert_state(site->fx, "v/2/regular/quick", "queued");
    char odd[256];
    (void)snprintf(odd, sizeof odd, "%s/out/caf\xe9-step-0.safetensors", site->dir);
    assert_int_equal(unlink(odd), 0);
    // With this other path to the directory, no root contains it.
    assert_int_equal(rmdir(path), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0);
    (void)snprintf(path, sizeof path, "%s/out/step-1.safetensors", site->dir);
    assert_int_equal(symlink("/proc/self/exe", path), 0);
    EXPECT(site, 3, "scan", "./out", "--run", "u", "--suite", "quick");
    assert_holds(site->output.err, "no root");
    fixture_assert_state(site->fx, "u/2/regular/quick", "queued");
}

static void acl_default(struct fixture *fx, const char *fcall, const char *fcall_ro)
{
    evq_reply_free(fixture_call(fx->raw, "ACL", "SETUSER", "default", fcall, fcall_ro, NULL));
}

static void scan_watch_finds_what_comes_later(void **state)
{
    struct site *site = *state;
    struct evq_error err;
    int64_t build = 0;
    fixture_user_checkpoint(site, "out/step-1.safetensors", 1);
    pid_t pid = fixture_program_start(&site->program, "watch", "scan", "out", "--run", "w",
                                      "--suite", "quick", "--watch", (char *)NULL);
    FIXTURE_UNTIL(
        strcmp(fixture_job_field(site->fx, "w/1/regular/quick", "state").text, "queued") == 0);
    // The functions are missing for a moment. Who watches waits for them.
    evq_reply_free(fixture_call(site->fx->raw, "FUNCTION", "FLUSH", NULL));
    fixture_user_checkpoint(site, "out/step-2.safetensors", 2);
    FIXTURE_UNTIL(fixture_file_holds(site->dir, "watch.err", "trying on") == 1);
    // Another reason is printed too, because it needs another fix.
    acl_default(site->fx, "-fcall", "-fcall_ro");
    FIXTURE_UNTIL(fixture_file_holds(site->dir, "watch.err", "trying on") == 2);
    acl_default(site->fx, "+fcall", "+fcall_ro");
    assert_status_err(evq_function_library_install(site->fx->conn, &build, &err), EVQ_OK, &err);
    FIXTURE_UNTIL(
        strcmp(fixture_job_field(site->fx, "w/2/regular/quick", "state").text, "queued") == 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), -SIGTERM);
    assert_int_equal(fixture_file_holds(site->dir, "watch.out", "w/1/regular/quick"), 1);
}

static void write_last_value(const char *path, float value)
{
    FILE *file = fopen(path, "r+b");

    assert_non_null(file);
    assert_int_equal(fseek(file, -(long)sizeof value, SEEK_END), 0);
    assert_int_equal(fwrite(&value, sizeof value, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* A resumed training writes into the existing file, so the directory's time does not change. */
static void scan_watch_submits_a_directory_whose_file_was_written_again(void **state)
{
    struct site *site = *state;
    char path[256];

    (void)snprintf(path, sizeof path, "%s/out/checkpoint-100", site->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    fixture_user_checkpoint(site, "out/checkpoint-100/model.safetensors", 1);
    pid_t pid = fixture_program_start(&site->program, "watch", "scan", "out", "--run", "w",
                                      "--suite", "quick", "--watch", (char *)NULL);
    FIXTURE_UNTIL(fixture_file_holds(site->dir, "watch.out", "w/100/regular/quick") == 1);
    const struct fixture_text first =
        fixture_job_field(site->fx, "w/100/regular/quick", "fingerprint");
    (void)snprintf(path, sizeof path, "%s/out/checkpoint-100/model.safetensors", site->dir);
    write_last_value(path, 0.5f);
    FIXTURE_UNTIL(strcmp(fixture_job_field(site->fx, "w/100/regular/quick", "fingerprint").text,
                         first.text) != 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), -SIGTERM);
    fixture_audit(site->fx);
}

/* No root contains the directory until the configuration changes. */
static void scan_watch_continues_when_no_root_contains_its_directory(void **state)
{
    struct site *site = *state;
    char away[256];
    char out[256];

    (void)snprintf(away, sizeof away, "%s.away", site->dir);
    (void)snprintf(out, sizeof out, "%s/out", site->dir);
    fixture_user_checkpoint(site, "out/step-1.safetensors", 1);
    assert_int_equal(rename(out, away), 0);
    assert_int_equal(symlink(away, out), 0);
    pid_t pid = fixture_program_start(&site->program, "watch", "scan", "./out", "--run", "w",
                                      "--suite", "quick", "--watch", (char *)NULL);
    FIXTURE_UNTIL(fixture_file_holds(site->dir, "watch.err", "no root") == 1);
    // The file is never missing.
    assert_int_equal(renameat2(AT_FDCWD, away, AT_FDCWD, out, RENAME_EXCHANGE), 0);
    assert_int_equal(unlink(away), 0);
    FIXTURE_UNTIL(
        strcmp(fixture_job_field(site->fx, "w/1/regular/quick", "state").text, "queued") == 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), -SIGTERM);
    // The message is printed once.
    assert_int_equal(fixture_file_holds(site->dir, "watch.err", "no root"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(help_and_version_need_no_redis, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(wrong_usage_prints_one_line_with_the_nearest_word, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(errors_of_address_and_server_have_their_own_exit_codes,
                                        setup, fixture_user_teardown),
        cmocka_unit_test_setup_teardown(wrong_password_is_a_permission, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(generations_of_a_restarted_run_are_distinguished, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(submit_queues_once_and_names_what_is_wrong, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(pin_of_a_dead_job_stays_for_its_retry_unless_told_otherwise,
                                        setup, fixture_user_teardown),
        cmocka_unit_test_setup_teardown(gc_keeps_the_newest_four_pins_of_dead_jobs_of_a_run, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(pin_goes_by_gc_when_its_job_has_ended, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(scan_submits_all_and_the_incomplete_one_when_it_is_complete,
                                        setup, fixture_user_teardown),
        cmocka_unit_test_setup_teardown(scan_continues_after_checkpoints_that_cannot_be_read, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(scan_watch_continues_when_no_root_contains_its_directory,
                                        setup, fixture_user_teardown),
        cmocka_unit_test_setup_teardown(scan_watch_submits_a_directory_whose_file_was_written_again,
                                        setup, fixture_user_teardown),
        cmocka_unit_test_setup_teardown(scan_watch_finds_what_comes_later, setup,
                                        fixture_user_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
