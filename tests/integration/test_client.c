/*
 * libevalq against a real Redis: what is submitted arrives, once, whatever dies.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/evalq.h"
#include "producer/leftovers.h"
#include "producer/ring.h"
#include "shared/checkpoint/writer.h"
#include "tests/fixture/queue.h"

#define ARRIVES_MS 20000

struct scene {
    struct fixture *fx;
    char directory[64]; // The root "test": checkpoints in out/, rings in rings/.
    char rings[96];
    char config[96];
    char log[96];
};

static int scene_make(void **state)
{
    const struct fixture_redis_config redis = {.aof = true};
    struct scene *scene = calloc(1, sizeof(*scene));
    char path[128];

    assert_non_null(scene);
    scene->fx = fixture_open(&redis);
    fixture_dir_make(scene->directory);
    snprintf(scene->rings, sizeof(scene->rings), "%s/rings", scene->directory);
    snprintf(scene->config, sizeof(scene->config), "%s/evalq.yaml", scene->directory);
    snprintf(scene->log, sizeof(scene->log), "%s/warnings", scene->directory);
    snprintf(path, sizeof(path), "%s/out", scene->directory);
    assert_int_equal(mkdir(path, 0777), 0);
    FILE *file = fopen(scene->config, "w");
    assert_non_null(file);
    fprintf(file, "roots:\n  test: %s\n", scene->directory);
    assert_int_equal(fclose(file), 0);
    *state = scene;
    return 0;
}

static int scene_free(void **state)
{
    struct scene *scene = *state;

    fixture_dir_remove(scene->directory);
    fixture_close(scene->fx);
    free(scene);
    return 0;
}

/* Closed over a restart of the server. */
static void scene_reconnect(struct scene *scene)
{
    fixture_redis_restart(scene->fx->redis);
    // The first call on each connection finds the old socket dead.
    struct evq_reply *reply = NULL;
    const char *ping[] = {"PING"};
    (void)!evq_conn_call(scene->fx->raw, 1, ping, NULL, 0, &reply, NULL);
    evq_reply_free(reply);
    reply = NULL;
    (void)!evq_conn_call(scene->fx->conn, 1, ping, NULL, 0, &reply, NULL);
    evq_reply_free(reply);
}

static struct evalq_options scene_options(const struct scene *scene)
{
    return (struct evalq_options){.url = scene->fx->redis->url,
                                  .config = scene->config,
                                  .run = "digits",
                                  .ring_directory = scene->rings,
                                  .log_path = scene->log};
}

static struct evalq_client *scene_client(const struct scene *scene)
{
    struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;

    if (evalq_client_open(&options, &client) != EVALQ_OK) {
        fail_msg("open: %s", evalq_client_error(NULL));
    }
    return client;
}

/* A small checkpoint whose content follows from its number. */
static void checkpoint_write(const struct scene *scene, const char *name, float number)
{
    char path[160];
    float values[64];

    for (int at = 0; at < 64; at++) {
        values[at] = number + (float)at;
    }
    const struct evq_writer_tensor tensor = {
        .name = "w", .dtype = EVQ_DTYPE_F32, .rank = 1, .shape = {64}, .data = values};
    snprintf(path, sizeof(path), "%s/out/%s", scene->directory, name);
    assert_status(evq_safetensors_write(path, &tensor, 1, NULL, 0, false, NULL), EVQ_OK);
}

static int submit(const struct scene *scene, struct evalq_client *client, const char *name,
                  int64_t step)
{
    char path[160];

    snprintf(path, sizeof(path), "%s/out/%s", scene->directory, name);
    const struct evalq_checkpoint checkpoint = {.path = path, .step = step, .suites = "quick"};
    return evalq_client_submit(client, &checkpoint);
}

/* Writes step-N.safetensors and submits it. */
static void submit_step(const struct scene *scene, struct evalq_client *client, int64_t step)
{
    char name[64];

    snprintf(name, sizeof(name), "step-%lld.safetensors", (long long)step);
    checkpoint_write(scene, name, (float)step);
    assert_int_equal(submit(scene, client, name, step), EVALQ_OK);
}

static int64_t jobs_in(struct scene *scene, enum evq_job_state state)
{
    struct evq_run_counts counts;
    struct evq_error error = {.status = EVQ_OK};

    assert_status_err(evq_queue_run_counts(scene->fx->queue, "digits", &counts, &error), EVQ_OK,
                      &error);
    return counts.by_state[state];
}

static void assert_flushed(struct evalq_client *client)
{
    if (evalq_client_flush(client, ARRIVES_MS) != EVALQ_OK) {
        fail_msg("flush: %s", evalq_client_error(client));
    }
}

static struct evalq_stats stats_of(struct evalq_client *client)
{
    struct evalq_stats stats;

    evalq_client_stats(client, &stats);
    return stats;
}

static void read_text(const char *path, char *out, size_t out_bytes)
{
    FILE *file = fopen(path, "r");
    size_t bytes = file != NULL ? fread(out, 1, out_bytes - 1, file) : 0;

    out[bytes] = '\0';
    if (file != NULL) {
        fclose(file);
    }
}

/* How often the warnings hold word. */
static int warnings_with(const struct scene *scene, const char *word)
{
    char text[8192];
    int count = 0;

    read_text(scene->log, text, sizeof(text));
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) {
        count++;
    }
    return count;
}

static void client_submit_becomes_job_when_redis_is_there(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    assert_string_equal(evalq_client_run(client), "digits");
    submit_step(scene, client, 100);
    assert_flushed(client);
    fixture_assert_state(scene->fx, "digits/100/regular/quick", "queued");

    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_string_equal(claim->id, "digits/100/regular/quick");
    assert_non_null(claim->job);
    assert_string_equal(claim->job->root, "test");
    assert_string_equal(claim->job->path, "out/step-100.safetensors");
    assert_int_equal(strlen(claim->job->fingerprint), EVQ_JOB_FINGERPRINT_CHARS);
    assert_holds(claim->job->pin, "out/.evalq/pins/100-regular-");
    assert_holds(claim->job->manifest, "step-100.safetensors\t");
    assert_true(claim->job->session_ms > 0 && claim->job->session_ms <= claim->job->created_ms);
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", scene->directory, claim->job->pin);
    assert_int_equal(access(path, R_OK), 0);
    evq_claim_free(claim);

    struct evalq_stats stats = stats_of(client);
    assert_int_equal(stats.submitted, 1);
    assert_int_equal(stats.sent, 1);
    assert_int_equal(stats.pending, 0);
    assert_int_equal(stats.dropped + stats.refused + stats.unpinned, 0);
    assert_true(stats.connected && stats.submit_ns_max > 0);
    evalq_client_close(client);
    fixture_audit(scene->fx);
}

static void client_makes_one_job_a_suite_when_several_are_named(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char path[160];
    const struct evalq_pair params = {"temperature", "0.5"};
    const struct evalq_pair trackers = {"wandb_run_id", "abc"};

    checkpoint_write(scene, "step-7.safetensors", 7);
    snprintf(path, sizeof(path), "%s/out/step-7.safetensors", scene->directory);
    const struct evalq_checkpoint checkpoint = {.path = path,
                                                .step = 7,
                                                .epoch = 1.5,
                                                .suites = "quick, full,quick",
                                                .variant = "ema",
                                                .policy = "latest",
                                                .priority = "high",
                                                .keep = 1,
                                                .params = &params,
                                                .param_count = 1,
                                                .trackers = &trackers,
                                                .tracker_count = 1};
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 2);
    fixture_assert_state(scene->fx, "digits/7/ema/full", "queued");
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_string_equal(claim->id, "digits/7/ema/quick");
    assert_near(claim->job->epoch, 1.5, 0.0);
    assert_int_equal(claim->job->policy, EVQ_POLICY_LATEST);
    assert_int_equal(claim->job->priority, 1);
    assert_true(claim->job->keep);
    assert_string_equal(claim->job->params[0].value, "0.5");
    assert_string_equal(claim->job->trackers[0].key, "wandb_run_id");
    evq_claim_free(claim);
    evalq_client_close(client);
}

static void client_says_what_is_wrong_when_arguments_are(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const struct {
        struct evalq_checkpoint checkpoint;
        const char *says;
    } cases[] = {
        {{.path = "a", .suites = NULL}, "suites is empty: name one"},
        {{.path = "a", .suites = ", "}, "suites is empty: name one"},
        {{.path = "a", .suites = "a/b"}, "a/b"},
        {{.path = "a", .suites = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, "no suite's name"},
        {{.path = "", .suites = "quick"}, "path is empty"},
        {{.path = "a", .suites = "quick", .step = -1}, "step is -1"},
        {{.path = "a", .suites = "quick", .policy = "newest"}, "policy is 'newest'"},
        {{.path = "a", .suites = "quick", .priority = "top"}, "priority is 'top'"},
        {{.path = "a", .suites = "quick", .param_count = 1}, "params"},
    };

    for (size_t at = 0; at < sizeof(cases) / sizeof(cases[0]); at++) {
        assert_int_equal(evalq_client_submit(client, &cases[at].checkpoint), EVALQ_INVALID);
        assert_holds(evalq_client_error(client), cases[at].says);
    }
    assert_int_equal(evalq_client_submit(NULL, &cases[0].checkpoint), EVALQ_INVALID);
    assert_int_equal(evalq_client_submit(client, NULL), EVALQ_INVALID);
    assert_int_equal(evalq_client_flush(NULL, 0), EVALQ_INVALID);
    struct evalq_options options = scene_options(scene);
    struct evalq_client *none = client;
    options.config = "/nonexistent/evalq.yaml";
    assert_int_not_equal(evalq_client_open(&options, &none), EVALQ_OK);
    assert_null(none);
    assert_holds(evalq_client_error(NULL), "/nonexistent/evalq.yaml");
    evalq_client_close(NULL);
    evalq_client_close(client);
}

static void client_keeps_submits_when_redis_is_away_at_the_start(void **state)
{
    struct scene *scene = *state;

    fixture_redis_kill(scene->fx->redis);
    struct evalq_client *client = scene_client(scene);
    for (int64_t step = 1; step <= 5; step++) {
        submit_step(scene, client, step);
    }
    assert_int_equal(evalq_client_flush(client, 300), EVALQ_UNAVAILABLE);
    // After a second of outage they are on the disk.
    char spool[160];
    snprintf(spool, sizeof(spool), "%s/main@digits.spool", scene->rings);
    FIXTURE_UNTIL(ARRIVES_MS, access(spool, F_OK) == 0);
    assert_true(stats_of(client).pending > 0);
    submit_step(scene, client, 6);
    scene_reconnect(scene);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 6);
    assert_int_equal(stats_of(client).sent, 6);
    assert_int_equal(warnings_with(scene, "are kept in"), 1);
    evalq_client_close(client);
    assert_int_not_equal(access(spool, F_OK), 0);
    fixture_audit(scene->fx);
}

static void client_loses_nothing_when_redis_dies_in_the_middle(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    checkpoint_write(scene, "step-1.safetensors", 1);
    for (int64_t step = 0; step < 300; step++) {
        assert_int_equal(submit(scene, client, "step-1.safetensors", step), EVALQ_OK);
        if (step == 100) {
            FIXTURE_UNTIL(ARRIVES_MS, stats_of(client).sent > 0);
            fixture_redis_kill(scene->fx->redis);
        }
        if (step == 200) {
            scene_reconnect(scene);
        }
    }
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 300);
    evalq_client_close(client);
    fixture_audit(scene->fx);
}

static pid_t trainer_killed_after(const struct scene *scene, int64_t first, int64_t count)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct evalq_options options = scene_options(scene);
        struct evalq_client *client = NULL;
        if (evalq_client_open(&options, &client) != EVALQ_OK) {
            _exit(1);
        }
        for (int64_t step = first; step < first + count; step++) {
            if (submit(scene, client, "step-1.safetensors", step) != EVALQ_OK) {
                _exit(2);
            }
        }
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    return child;
}

static void client_sends_what_killed_trainer_left_when_run_is_opened_again(void **state)
{
    struct scene *scene = *state;

    checkpoint_write(scene, "step-1.safetensors", 1);
    fixture_redis_suspend(scene->fx->redis); // So that nothing is sent before the kill.
    (void)trainer_killed_after(scene, 0, 20);
    (void)trainer_killed_after(scene, 20, 20);
    fixture_redis_resume(scene->fx->redis);
    for (int64_t step = 40; step < 60; step += 5) {
        (void)trainer_killed_after(scene, step, 5); // Some of these were sent already.
    }
    struct evalq_client *client = scene_client(scene);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 60);
    evalq_client_close(client);
    fixture_audit(scene->fx);
}

static void client_sends_spool_of_killed_trainer_when_run_is_opened_again(void **state)
{
    struct scene *scene = *state;
    char spool[160];
    int status = 0;

    checkpoint_write(scene, "step-1.safetensors", 1);
    fixture_redis_kill(scene->fx->redis);
    snprintf(spool, sizeof(spool), "%s/main@digits.spool", scene->rings);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct evalq_options options = scene_options(scene);
        struct evalq_client *client = NULL;
        if (evalq_client_open(&options, &client) != EVALQ_OK ||
            submit(scene, client, "step-1.safetensors", 1) != EVALQ_OK) {
            _exit(1);
        }
        while (true) {
            pause();
        }
    }
    struct stat info;
    FIXTURE_UNTIL(ARRIVES_MS, stat(spool, &info) == 0 && info.st_size > 100);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    scene_reconnect(scene);
    struct evalq_client *client = scene_client(scene);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
    evalq_client_close(client);
    assert_int_not_equal(access(spool, F_OK), 0);
}

static void leftovers_are_sent_when_nobody_opens_their_runs(void **state)
{
    struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct evq_leftovers left;

    checkpoint_write(scene, "step-1.safetensors", 1);
    assert_status(evq_leftovers_send(&options, "main", ARRIVES_MS, &left, NULL), EVQ_OK);
    assert_int_equal(left.runs + left.sent, 0); // There is no such directory yet.
    fixture_redis_suspend(scene->fx->redis);
    (void)trainer_killed_after(scene, 0, 10);
    options.run = NULL;
    assert_status(evq_leftovers_send(&options, "other", ARRIVES_MS, &left, NULL), EVQ_OK);
    assert_int_equal(left.runs, 0);
    fixture_redis_resume(scene->fx->redis);
    assert_status(evq_leftovers_send(&options, "main", ARRIVES_MS, &left, NULL), EVQ_OK);
    assert_int_equal(left.runs, 1);
    assert_int_equal(left.sent, 10);
    assert_int_equal(left.kept, 0);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 10);
}

static void client_uses_second_ring_when_run_is_open_elsewhere(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *first = scene_client(scene);
    struct evalq_client *second = scene_client(scene);
    char path[160];

    snprintf(path, sizeof(path), "%s/main@digits@1.ring", scene->rings);
    assert_int_equal(access(path, F_OK), 0);
    submit_step(scene, first, 1);
    submit_step(scene, second, 2);
    assert_flushed(first);
    assert_flushed(second);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 2);
    evalq_client_close(second);
    evalq_client_close(first);
    assert_int_not_equal(access(path, F_OK), 0); // Nothing in it: gone.
}

static void client_refuses_forked_child_when_parent_opened_it(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    int go[2];
    int status = 0;

    checkpoint_write(scene, "step-1.safetensors", 1);
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct evalq_stats stats;
        char byte = 0;
        bool right = submit(scene, client, "step-1.safetensors", 1) == EVALQ_FORKED &&
                     evalq_client_flush(client, 1000) == EVALQ_FORKED &&
                     evalq_client_poll(client, NULL, NULL, 1000) == EVALQ_FORKED &&
                     evalq_client_best(client, "", NULL, NULL, NULL, 0, 10) == EVALQ_FORKED;
        evalq_client_stats(client, &stats);
        evalq_client_close(client);
        close(go[1]);
        (void)!read(go[0], &byte, 1); // Lives until the parent says so.
        _exit(right ? 0 : 1);
    }
    assert_int_equal(submit(scene, client, "step-1.safetensors", 1), EVALQ_OK);
    assert_flushed(client);
    evalq_client_close(client);
    // The child lives on, but holds no lock: the first ring is free again.
    struct evq_ring *ring = NULL;
    assert_status(evq_ring_open(scene->rings, "main", "digits", 0, &ring, NULL), EVQ_OK);
    assert_null(strstr(evq_ring_path(ring), "@1.ring"));
    evq_ring_close(ring, true);
    close(go[1]);
    close(go[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
}

#define SUBMITS_EACH 10000

struct submitter {
    const struct scene *scene;
    struct evalq_client *client;
    int64_t first;
    uint64_t full;
};

static void *submit_many(void *argument)
{
    struct submitter *submitter = argument;

    for (int64_t step = submitter->first; step < submitter->first + SUBMITS_EACH; step++) {
        int code = 0;
        while ((code = submit(submitter->scene, submitter->client, "step-1.safetensors", step)) ==
               EVALQ_FULL) {
            submitter->full++;
            sched_yield();
        }
        assert_int_equal(code, EVALQ_OK);
    }
    return NULL;
}

static void client_sends_each_once_when_two_threads_submit(void **state)
{
    struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct submitter submitters[2];
    struct evalq_client *client = NULL;
    pthread_t threads[2];

    options.pin_disabled = 1;
    assert_int_equal(evalq_client_open(&options, &client), EVALQ_OK);
    checkpoint_write(scene, "step-1.safetensors", 1);
    for (int at = 0; at < 2; at++) {
        submitters[at] = (struct submitter){
            .scene = scene, .client = client, .first = (int64_t)at * SUBMITS_EACH};
        assert_int_equal(pthread_create(&threads[at], NULL, submit_many, &submitters[at]), 0);
    }
    for (int at = 0; at < 2; at++) {
        pthread_join(threads[at], NULL);
    }
    if (evalq_client_flush(client, 120000) != EVALQ_OK) {
        fail_msg("flush: %s", evalq_client_error(client));
    }
    struct evalq_stats stats = stats_of(client);
    assert_int_equal(stats.submitted, 2 * SUBMITS_EACH);
    assert_int_equal(stats.sent, 2 * SUBMITS_EACH); // An answer for each, and as many jobs:
    assert_int_equal(stats.dropped, submitters[0].full + submitters[1].full);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 2 * SUBMITS_EACH);
    evalq_client_close(client);
}

static void client_flush_and_close_end_in_time_when_redis_stands_still(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    fixture_redis_suspend(scene->fx->redis);
    submit_step(scene, client, 1);
    int64_t start = fixture_now_ms();
    int code = evalq_client_flush(client, 300);
    int64_t spent = fixture_now_ms() - start;
    assert_true(code == EVALQ_TIMEOUT || code == EVALQ_UNAVAILABLE);
    assert_true(spent >= 290 && spent < 1000);
    start = fixture_now_ms();
    assert_int_not_equal(evalq_client_poll(client, NULL, NULL, 200), EVALQ_OK);
    assert_true(fixture_now_ms() - start < 1000);
    start = fixture_now_ms();
    evalq_client_close(client);
    spent = fixture_now_ms() - start;
    assert_true(spent < 1500); // 1 s, and what a busy machine adds.
    fixture_redis_resume(scene->fx->redis);
    client = scene_client(scene); // What was left goes out now.
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
    evalq_client_close(client);
}

static void client_says_full_once_when_ring_and_spool_are(void **state)
{
    struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;
    int dropped = 0;

    fixture_redis_kill(scene->fx->redis);
    options.ring_bytes = 1;
    options.spool_bytes_max = 4096;
    assert_int_equal(evalq_client_open(&options, &client), EVALQ_OK);
    checkpoint_write(scene, "step-1.safetensors", 1);
    int64_t end = fixture_now_ms() + ARRIVES_MS;
    for (int64_t step = 0; dropped < 50; step++) {
        int code = submit(scene, client, "step-1.safetensors", step);
        dropped += code == EVALQ_FULL;
        assert_true(code == EVALQ_OK || code == EVALQ_FULL);
        assert_true(fixture_now_ms() < end);
    }
    assert_holds(evalq_client_error(client), "full");
    assert_int_equal(stats_of(client).dropped, 50);
    FIXTURE_UNTIL(ARRIVES_MS, warnings_with(scene, "is full, so a submit was dropped") == 1);
    FIXTURE_UNTIL(ARRIVES_MS, warnings_with(scene, "what the ring cannot hold") == 1);
    uint64_t kept = stats_of(client).submitted;
    scene_reconnect(scene);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), kept);
    assert_int_equal(warnings_with(scene, "is full, so a submit was dropped"), 1);
    evalq_client_close(client);
}

static void client_warns_with_missing_line_when_no_root_holds_it(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const struct evalq_checkpoint checkpoint = {
        .path = "/var/tmp/elsewhere/step-1.pt", .step = 1, .suites = "quick,full"};

    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    assert_int_equal(stats_of(client).refused, 4);
    assert_int_equal(warnings_with(scene, "roots: {elsewhere: /var/tmp/elsewhere}"), 1);
    evalq_client_close(client);
}

static void client_waits_for_checkpoint_when_it_is_still_written(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char whole[160];
    char half[160];
    char data[4096];

    checkpoint_write(scene, "whole.safetensors", 5);
    snprintf(whole, sizeof(whole), "%s/out/whole.safetensors", scene->directory);
    snprintf(half, sizeof(half), "%s/out/step-5.safetensors", scene->directory);
    int from = open(whole, O_RDONLY);
    ssize_t bytes = read(from, data, sizeof(data));
    close(from);
    assert_true(bytes > 200);
    int to = open(half, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(to, data, 150), 150);
    assert_int_equal(submit(scene, client, "step-5.safetensors", 5), EVALQ_OK);
    assert_int_equal(submit(scene, client, "whole.safetensors", 6), EVALQ_OK);
    FIXTURE_UNTIL(ARRIVES_MS, stats_of(client).sent == 1); // The later one overtakes it.
    assert_int_equal(evalq_client_flush(client, 50), EVALQ_TIMEOUT);
    assert_int_equal(write(to, data + 150, (size_t)bytes - 150), bytes - 150);
    close(to);
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 2);
    assert_int_equal(warnings_with(scene, "evalq"), 0);
    evalq_client_close(client);
}

struct seen {
    int metrics;
    int ends;
    double value;
    char key[64];
    struct evalq_client *client;
    int inside;
};

static void see(void *context, const struct evalq_metric_view *metric)
{
    struct seen *seen = context;

    if (metric->task[0] == '\0') {
        seen->ends++;
        assert_string_equal(metric->state, "done");
        return;
    }
    seen->metrics++;
    seen->value = metric->value;
    snprintf(seen->key, sizeof(seen->key), "%s", metric->key);
    seen->inside = evalq_client_poll(seen->client, NULL, NULL, 1000);
}

static void client_delivers_metrics_when_polled_and_waited_for(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    struct seen seen = {.client = client};
    double value = 0;
    int64_t step = 0;
    char path[256];

    submit_step(scene, client, 10);
    assert_flushed(client);
    assert_int_equal(evalq_client_poll(client, see, &seen, 2000), EVALQ_OK);
    assert_int_equal(seen.metrics + seen.ends, 0);
    assert_int_equal(evalq_client_wait(client, see, &seen, 100), EVALQ_TIMEOUT);
    assert_int_equal(evalq_client_best(client, "", &value, &step, path, sizeof(path), 2000),
                     EVALQ_NOT_FOUND);

    struct evq_claim *claim = fixture_claim(scene->fx);
    fixture_publish(scene->fx, claim, "digits", 0.75);
    assert_int_equal(evalq_client_poll(client, see, &seen, 2000), EVALQ_OK);
    assert_int_equal(seen.metrics, 1);
    assert_near(seen.value, 0.75, 0.0);
    assert_string_equal(seen.key, "eval/digits/accuracy");
    assert_int_equal(seen.inside, EVALQ_INVALID); // No deadlock: refused.
    assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    assert_int_equal(evalq_client_wait(client, see, &seen, ARRIVES_MS), EVALQ_OK);
    assert_int_equal(seen.metrics, 1);
    assert_int_equal(seen.ends, 1);

    struct evq_best best = {.value = 0.75, .step = 10};
    snprintf(best.run, sizeof(best.run), "digits");
    snprintf(best.metric, sizeof(best.metric), "eval/digits/accuracy");
    snprintf(best.job, sizeof(best.job), "%s", claim->id);
    snprintf(best.checkpoint, sizeof(best.checkpoint), "test:out/step-10.safetensors");
    assert_status(evq_queue_best_put(scene->fx->queue, &best, NULL), EVQ_OK);
    assert_int_equal(evalq_client_best(client, NULL, &value, &step, path, sizeof(path), 2000),
                     EVALQ_OK);
    assert_near(value, 0.75, 0.0);
    assert_int_equal(step, 10);
    assert_holds(path, scene->directory);
    assert_int_equal(access(path, R_OK), 0);
    evq_claim_free(claim);
    evalq_client_close(client);
}

static void client_keeps_rotated_checkpoint_until_its_job_ends(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char original[160];
    char pin[256];

    submit_step(scene, client, 3);
    assert_flushed(client);
    snprintf(original, sizeof(original), "%s/out/step-3.safetensors", scene->directory);
    assert_int_equal(unlink(original), 0);
    struct evq_claim *claim = fixture_claim(scene->fx);
    snprintf(pin, sizeof(pin), "%s/%s", scene->directory, claim->job->pin);
    assert_int_equal(access(pin, R_OK), 0);
    fixture_publish(scene->fx, claim, "digits", 0.5);
    evalq_client_close(client); // A task is done, but its job runs: the pin stays.
    assert_int_equal(access(pin, R_OK), 0);

    client = scene_client(scene); // A resumed training, in the same directory.
    submit_step(scene, client, 4);
    assert_flushed(client);
    assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    claim = fixture_claim(scene->fx);
    assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    evalq_client_close(client);
    assert_int_not_equal(access(pin, F_OK), 0);
    snprintf(pin, sizeof(pin), "%s/out/.evalq", scene->directory);
    assert_int_not_equal(access(pin, F_OK), 0); // Nothing stays behind.
}

/* The signal mask of the thread of this process that is called name. */
static uint64_t thread_blocked(const char *name)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry = NULL;
    uint64_t blocked = 0;

    assert_non_null(tasks);
    while ((entry = readdir(tasks)) != NULL) {
        char path[300];
        char text[4096];
        char want[64];
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
        snprintf(want, sizeof(want), "Name:\t%s\n", name);
        read_text(path, text, sizeof(text));
        const char *mask = strstr(text, "SigBlk:");
        if (strncmp(text, want, strlen(want)) == 0 && mask != NULL) {
            blocked = strtoull(mask + 7, NULL, 16);
        }
    }
    closedir(tasks);
    return blocked;
}

static void client_thread_blocks_all_signals_when_it_runs(void **state)
{
    struct evalq_client *client = scene_client(*state);
    const uint64_t catchable =
        ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 1ull << 31 | 1ull << 32 | 1ull << 33);

    FIXTURE_UNTIL(ARRIVES_MS, thread_blocked("evalq") != 0);
    assert_true((thread_blocked("evalq") & catchable & 0x7fffffff) == (catchable & 0x7fffffff));
    evalq_client_close(client);
}

/* libevalq.so shows evalq_client_* of EVALQ_1.0, and nothing of hiredis, msgpack or its own inside.
 */
static void client_library_exports_its_functions_alone(void **state)
{
    FILE *names = popen("nm -D --defined-only '" EVQ_TEST_BIN "/../lib/libevalq.so'", "r");
    char line[256];
    int functions = 0;

    (void)state;
    assert_non_null(names);
    while (fgets(line, sizeof(line), names) != NULL) {
        char kind = 0;
        char name[128];
        assert_int_equal(sscanf(line, "%*s %c %127s", &kind, name), 2);
        if (kind == 'A') {
            assert_string_equal(name, "EVALQ_1.0");
        } else {
            assert_int_equal(kind, 'T');
            assert_true(strncmp(name, "evalq_client_", 13) == 0);
            assert_non_null(strstr(name, "@@EVALQ_1.0"));
            functions++;
        }
    }
    assert_int_equal(pclose(names), 0);
    assert_int_equal(functions, 11);
}

int main(void)
{
    unsetenv("EVALQ_URL");
    unsetenv("EVALQ_CONFIG");
    unsetenv("EVALQ_RUN");
    unsetenv("EVALQ_QUEUE");
#define CLIENT_TEST(name) cmocka_unit_test_setup_teardown(name, scene_make, scene_free)
    const struct CMUnitTest tests[] = {
        CLIENT_TEST(client_submit_becomes_job_when_redis_is_there),
        CLIENT_TEST(client_makes_one_job_a_suite_when_several_are_named),
        CLIENT_TEST(client_says_what_is_wrong_when_arguments_are),
        CLIENT_TEST(client_keeps_submits_when_redis_is_away_at_the_start),
        CLIENT_TEST(client_loses_nothing_when_redis_dies_in_the_middle),
        CLIENT_TEST(client_sends_what_killed_trainer_left_when_run_is_opened_again),
        CLIENT_TEST(client_sends_spool_of_killed_trainer_when_run_is_opened_again),
        CLIENT_TEST(leftovers_are_sent_when_nobody_opens_their_runs),
        CLIENT_TEST(client_uses_second_ring_when_run_is_open_elsewhere),
        CLIENT_TEST(client_refuses_forked_child_when_parent_opened_it),
        CLIENT_TEST(client_sends_each_once_when_two_threads_submit),
        CLIENT_TEST(client_flush_and_close_end_in_time_when_redis_stands_still),
        CLIENT_TEST(client_says_full_once_when_ring_and_spool_are),
        CLIENT_TEST(client_warns_with_missing_line_when_no_root_holds_it),
        CLIENT_TEST(client_waits_for_checkpoint_when_it_is_still_written),
        CLIENT_TEST(client_delivers_metrics_when_polled_and_waited_for),
        CLIENT_TEST(client_keeps_rotated_checkpoint_until_its_job_ends),
        CLIENT_TEST(client_thread_blocks_all_signals_when_it_runs),
        cmocka_unit_test(client_library_exports_its_functions_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
