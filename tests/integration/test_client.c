/*
 * Tests libevalq with a real Redis: each submit becomes exactly one job, and its results come back.
 */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/client/submit_log/ring.h"
#include "tests/fixture/client.h"

int64_t __wrap_evq_clock_backoff_ms(uint64_t *state, uint32_t try_count, int64_t first_ms,
                                    int64_t max_ms);
int64_t __real_evq_clock_backoff_ms(uint64_t *state, uint32_t try_count, int64_t first_ms,
                                    int64_t max_ms);

static atomic_bool backs_off_far; // If set, the client waits for an hour before it retries.
static atomic_int put_off;

int64_t __wrap_evq_clock_backoff_ms(uint64_t *state, uint32_t try_count, int64_t first_ms,
                                    int64_t max_ms)
{
    atomic_fetch_add(&put_off, 1);
    return atomic_load(&backs_off_far)
               ? 3600000
               : __real_evq_clock_backoff_ms(state, try_count, first_ms, max_ms);
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

/*
 * A background save takes so long that the client checks only every few seconds. The save ends just
 * before close().
 */
static void client_sends_what_was_saved_just_before_it_is_closed(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    atomic_store(&put_off, 0);
    atomic_store(&backs_off_far, true);
    assert_int_equal(submit(scene, client, "step-7.safetensors", 7), EVALQ_OK);
    FIXTURE_UNTIL(atomic_load(&put_off) > 0);
    checkpoint_write(scene, "step-7.safetensors", 7);
    FIXTURE_UNTIL(evalq_client_flush(client, 1000) == EVALQ_OK);
    atomic_store(&backs_off_far, false);
    fixture_assert_state(scene->fx, "digits/7/regular/quick", "queued");
    evalq_client_close(client);
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

static void client_carries_needs_when_they_are_given(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    struct evq_error err;
    char path[160];
    char *json = NULL;

    checkpoint_write(scene, "step-7.safetensors", 7);
    snprintf(path, sizeof(path), "%s/out/step-7.safetensors", scene->directory);
    const struct evalq_checkpoint checkpoint = {
        .path = path, .step = 7, .suites = "quick", .needs = "labels=b+a,gpus=2,gpu_memory=1.5GiB"};
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    assert_status_err(evq_queue_show(scene->fx->queue, "digits/7/regular/quick", &json, &err),
                      EVQ_OK, &err);
    assert_holds(json, "gpus=2,gpu_memory=1610612736,labels=a+b");
    free(json);
    evalq_client_close(client);
}

static void client_reports_wrong_arguments(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const struct evalq_pair twice[] = {{"key", "a"}, {"key", "b"}};
    const struct evalq_pair bytes = {"key", "\xff"};
    const struct {
        struct evalq_checkpoint checkpoint;
        const char *says;
    } cases[] = {
        {{.path = "a", .suites = NULL}, "suites is empty: name one"},
        {{.path = "a", .suites = ", "}, "suites is empty: name one"},
        {{.path = "a", .suites = "a/b"}, "a/b"},
        {{.path = "a", .suites = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
         "is not the name of a suite"},
        {{.path = "", .suites = "quick"}, "path is empty"},
        {{.path = "a", .suites = "quick", .step = -1}, "step is -1"},
        {{.path = "a", .suites = "quick", .policy = "newest"}, "policy is 'newest'"},
        {{.path = "a", .suites = "quick", .priority = "top"}, "priority is 'top'"},
        {{.path = "a", .suites = "quick", .param_count = 1}, "params is NULL"},
        // Without this check, the client would accept these, and the queue would reject them.
        {{.path = "a", .suites = "quick", .params = twice, .param_count = 2}, "'key' twice"},
        {{.path = "a", .suites = "quick", .trackers = &bytes, .tracker_count = 1},
         "trackers is not UTF-8"},
        {{.path = "a\xff", .suites = "quick"}, "path is not UTF-8 at byte 1"},
        {{.path = "a\nb", .suites = "quick"}, "path holds a control byte at 1"},
        {{.path = "a", .suites = "quick", .format = "\xff"}, "format is not UTF-8"},
        {{.path = "a", .suites = "quick", .epoch = INFINITY}, "epoch is infinite"},
        {{.path = "a", .suites = "quick", .needs = "gpu=1"}, "'gpu=1' is not gpus="},
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
    assert_holds(evalq_client_error(NULL), "named by config: open '/nonexistent/evalq.yaml'");
    options = scene_options(scene);
    // This value is in microseconds, so it is wrong.
    options.session_ms = INT64_C(1700000000123456);
    assert_int_equal(evalq_client_open(&options, &none), EVALQ_INVALID);
    assert_holds(evalq_client_error(NULL), "session_ms");
    evalq_client_stats(client, NULL);
    evalq_client_stats(NULL, NULL);
    evalq_client_close(NULL);
    evalq_client_close(client);
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
    assert_int_not_equal(access(path, F_OK), 0); // The client removes a ring file that is empty.
}

/* A new training uses the name of an earlier run, with other weights at the same steps. */
static void client_says_when_the_run_had_other_weights_of_a_step(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    submit_step(scene, client, 1);
    submit_step(scene, client, 2);
    assert_flushed(client);
    for (int at = 0; at < 2; at++) {
        struct evq_claim *claim = fixture_claim(scene->fx);
        fixture_publish(scene->fx, claim, "digits", 0.5);
        assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
        evq_claim_free(claim);
    }
    evalq_client_close(client);

    client = scene_client(scene);
    submit_step(scene, client, 1); // A resumed training submits the same weights again.
    assert_flushed(client);
    assert_int_equal(warnings_with(scene, "with other weights"), 0);
    checkpoint_write(scene, "step-1.safetensors", 7);
    assert_int_equal(submit(scene, client, "step-1.safetensors", 1), EVALQ_OK);
    checkpoint_write(scene, "step-2.safetensors", 8);
    assert_int_equal(submit(scene, client, "step-2.safetensors", 2), EVALQ_OK);
    assert_flushed(client);
    // The client warns after it has sent the submit.
    FIXTURE_UNTIL(warnings_with(scene, "with other weights") > 0);
    assert_int_equal(warnings_with(scene, "with other weights"), 1);
    assert_int_equal(warnings_with(scene, "these as 'digits/1/regular/quick~2'"), 1);
    assert_int_equal(warnings_with(scene, "`evalq forget digits` before it begins"), 1);
    evalq_client_close(client);
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
                     submit(scene, client, "step-1.safetensors", 2) == EVALQ_FORKED &&
                     evalq_client_flush(client, 1000) == EVALQ_FORKED &&
                     evalq_client_poll(client, NULL, NULL, 1000) == EVALQ_FORKED &&
                     evalq_client_best(client, "", NULL, NULL, NULL, 0, 10) == EVALQ_FORKED;
        evalq_client_stats(client, &stats);
        evalq_client_close(client);
        close(go[1]);
        (void)!read(go[0], &byte, 1); // The child lives until the parent says so.
        _exit(right ? 0 : 1);
    }
    fixture_redis_suspend(scene->fx->redis); // This keeps a submit in the ring.
    assert_int_equal(submit(scene, client, "step-1.safetensors", 1), EVALQ_OK);
    evalq_client_close(client);
    // The child lives, but does not hold the ring's lock, so a new client takes over the first ring
    // with its content.
    struct evq_ring *ring = NULL;
    assert_status(evq_ring_open(scene->rings, "main", "digits", 0, &ring, NULL), EVQ_OK);
    assert_null(strstr(evq_ring_path(ring), "@1.ring"));
    assert_true(evq_ring_tail(ring) > evq_ring_head(ring));
    evq_ring_close(ring, true);
    fixture_redis_resume(scene->fx->redis);
    client = scene_client(scene);
    assert_flushed(client);
    evalq_client_close(client);
    close(go[1]);
    close(go[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
    assert_int_equal(warnings_with(scene, "nothing is submitted: this process was forked"), 1);
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
        while ((code = submit_link(submitter->scene, submitter->client, step)) == EVALQ_FULL) {
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
    assert_flushed(client);
    struct evalq_stats stats = stats_of(client);
    assert_int_equal(stats.submitted, 2 * SUBMITS_EACH);
    assert_int_equal(stats.sent, 2 * SUBMITS_EACH); // Each submit has an answer and a job.
    assert_int_equal(stats.dropped, submitters[0].full + submitters[1].full);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 2 * SUBMITS_EACH);
    evalq_client_close(client);
}

static void client_finds_configuration_of_evalq_up_when_none_is_named(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = NULL;
    const struct evalq_checkpoint checkpoint = {
        .path = "./out//step-1.safetensors", .step = 1, .suites = "quick"};
    char here[4096];
    char path[160];

    assert_non_null(getcwd(here, sizeof(here)));
    snprintf(path, sizeof(path), "%s/.evalq", scene->directory);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/.evalq/evalq.yaml", scene->directory);
    assert_int_equal(rename(scene->config, path), 0);
    snprintf(path, sizeof(path), "%s/.evalq/url", scene->directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s\n", scene->fx->redis->url);
    assert_int_equal(fclose(file), 0);

    assert_int_equal(chdir(scene->directory), 0);
    struct evalq_options options = {.ring_directory = scene->rings};
    int opened = evalq_client_open(&options, &client);
    checkpoint_write(scene, "step-1.safetensors", 1);
    int submitted = evalq_client_submit(client, &checkpoint);
    assert_int_equal(chdir(here), 0); // The client has made the path absolute before.
    assert_int_equal(opened, EVALQ_OK);
    assert_int_equal(submitted, EVALQ_OK);
    assert_flushed(client);
    // The run has the name of the directory with a hash of host and path.
    const char *base = strrchr(scene->directory, '/') + 1;
    assert_int_equal(strncmp(evalq_client_run(client), base, strlen(base)), 0);
    assert_int_equal(strlen(evalq_client_run(client)), strlen(base) + 9);
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_string_equal(claim->job->run, evalq_client_run(client));
    assert_string_equal(claim->job->path, "out/step-1.safetensors");
    evq_claim_free(claim);
    evalq_client_close(client);
}

/* Returns the signal mask of this process's thread with the name. */
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

    FIXTURE_UNTIL(thread_blocked("evalq") != 0);
    assert_true((thread_blocked("evalq") & catchable & 0x7fffffff) == (catchable & 0x7fffffff));
    evalq_client_close(client);
}

/*
 * libevalq.so must export only the functions evalq_client_* of version EVALQ_1.0; no symbol of
 * hiredis, msgpack or its own internals.
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
    assert_int_equal(functions, 15);
}

/*
 * libevalq must not need libraries that only the programs use. Jansson, for example, is built only
 * for programs in many distributions, and would have to be installed on every training machine.
 */
static void client_library_needs_no_library_of_programs(void **state)
{
    FILE *needed = popen("readelf -d '" EVQ_TEST_BIN "/../lib/libevalq.so' | grep NEEDED", "r");
    char line[256];
    bool libc = false;

    (void)state;
    assert_non_null(needed);
    while (fgets(line, sizeof(line), needed) != NULL) {
        assert_null(strstr(line, "jansson"));
        libc = libc || strstr(line, "[libc.so") != NULL;
    }
    assert_int_equal(pclose(needed), 0);
    assert_true(libc);
}

/*
 * Compiled programs depend on the sizes of these structs. New fields must use the reserved words.
 */
static void client_structures_keep_their_size(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct evalq_options), 160);
    assert_int_equal(sizeof(struct evalq_checkpoint), 168);
    assert_int_equal(sizeof(struct evalq_metric_view), 96);
    assert_int_equal(sizeof(struct evalq_stats), 136);
    assert_int_equal(sizeof(struct evalq_pair), 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(client_submit_becomes_job_when_redis_is_there),
        SCENE_TEST(client_sends_what_was_saved_just_before_it_is_closed),
        SCENE_TEST(client_makes_one_job_a_suite_when_several_are_named),
        SCENE_TEST(client_carries_needs_when_they_are_given),
        SCENE_TEST(client_reports_wrong_arguments),
        SCENE_TEST(client_uses_second_ring_when_run_is_open_elsewhere),
        SCENE_TEST(client_says_when_the_run_had_other_weights_of_a_step),
        SCENE_TEST(client_refuses_forked_child_when_parent_opened_it),
        SCENE_TEST(client_sends_each_once_when_two_threads_submit),
        SCENE_TEST(client_finds_configuration_of_evalq_up_when_none_is_named),
        SCENE_TEST(client_thread_blocks_all_signals_when_it_runs),
        cmocka_unit_test(client_library_exports_its_functions_alone),
        cmocka_unit_test(client_structures_keep_their_size),
        cmocka_unit_test(client_library_needs_no_library_of_programs),
    };
    scene_clear_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
