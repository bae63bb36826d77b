/*
 * Tests libevalq after a submit: checkpoints and roots that do not exist yet, arriving metrics,
 * withdrawn jobs, and checkpoints that are kept until their jobs end.
 */
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
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/base/clock.h"
#include "tests/fixture/client.h"

static void config_add_root(const struct scene *scene, const char *line)
{
    char path[160];

    snprintf(path, sizeof(path), "%s.new", scene->config);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "roots:\n  test: %s\n%s", scene->directory, line);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(path, scene->config), 0);
}

/* Creates a checkpoint that no root contains, in a directory that the caller removes. */
static void checkpoint_elsewhere(const struct scene *scene, char elsewhere[static 64],
                                 char path[static 128])
{
    char from[128];

    fixture_dir_make(elsewhere);
    checkpoint_write(scene, "step-1.safetensors", 1);
    snprintf(from, sizeof(from), "%s/out/step-1.safetensors", scene->directory);
    snprintf(path, 128, "%s/step-1.safetensors", elsewhere);
    assert_int_equal(rename(from, path), 0);
}

/*
 * A missing root does not delay training. When the root is configured, the checkpoints are
 * submitted.
 */
static void client_submits_after_the_missing_root_is_configured(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char elsewhere[64];
    char path[128];
    char line[160];

    checkpoint_elsewhere(scene, elsewhere, path);
    const struct evalq_checkpoint checkpoint = {.path = path, .step = 1, .suites = "quick,full"};
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    submit_step(scene, client, 2); // Other submits do not wait for this one.
    assert_flushed(client);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
    assert_int_equal(stats_of(client).pending, 2);
    // The job of step 2 is open.
    assert_int_equal(evalq_client_wait(client, NULL, NULL, 100), EVALQ_TIMEOUT);
    assert_int_equal(warnings_with(scene, "not submitted: "), 1);
    snprintf(line, sizeof(line), "roots: {%s: %s}", strrchr(elsewhere, '/') + 1, elsewhere);
    assert_int_equal(warnings_with(scene, line), 1);
    evalq_client_close(client);
    client = scene_client(scene); // The next process of the run still has the submit.
    assert_flushed(client);
    config_add_root(scene, "nonsense: 1\n");
    snprintf(line, sizeof(line), "  other: %s\n", elsewhere);
    config_add_root(scene, line);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 3);
    FIXTURE_UNTIL(stats_of(client).pending == 0);
    assert_int_equal(stats_of(client).refused, 0);
    evalq_client_close(client);
    fixture_dir_remove(elsewhere);
}

/* wait() neither reports success nor waits forever if a root is missing. */
static void client_wait_says_that_a_root_is_missing(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const struct evalq_checkpoint checkpoint = {
        .path = "/usr/step-1.safetensors", .step = 1, .suites = "quick"};

    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_int_equal(evalq_client_wait(client, NULL, NULL, (int)fixture_patience_ms()),
                     EVALQ_NOT_FOUND);
    assert_non_null(
        strstr(evalq_client_error(client), "1 of the checkpoints lies beneath no root"));
    assert_int_equal(stats_of(client).pending, 1);
    evalq_client_close(client);
}

/* A root that was added just before wait() counts, so wait() waits for its jobs. */
static void client_wait_reads_the_configuration_again(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char elsewhere[64];
    char path[128];
    char line[160];

    checkpoint_elsewhere(scene, elsewhere, path);
    const struct evalq_checkpoint checkpoint = {.path = path, .step = 1, .suites = "quick"};
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    snprintf(line, sizeof(line), "  other: %s\n", elsewhere);
    config_add_root(scene, line);
    // The job is open.
    assert_int_equal(evalq_client_wait(client, NULL, NULL, 4000), EVALQ_TIMEOUT);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 1);
    evalq_client_close(client);
    fixture_dir_remove(elsewhere);
}

struct late_root {
    struct scene *scene;
    char line[160];
    bool added;
};

/*
 * Called after the open jobs were counted. Only then does the missing root exist, and with it the
 * job.
 */
static void root_comes(void *context, const struct evalq_metric_view *metric)
{
    struct late_root *late = context;

    (void)metric;
    if (!late->added) {
        late->added = true;
        config_add_root(late->scene, late->line);
        FIXTURE_UNTIL(jobs_in(late->scene, EVQ_JOB_QUEUED) == 1);
    }
}

static void client_waits_for_what_was_submitted_since_the_jobs_were_counted(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    struct late_root late = {.scene = scene};
    char elsewhere[64];
    char path[128];

    checkpoint_elsewhere(scene, elsewhere, path);
    const struct evalq_checkpoint checkpoint = {.path = path, .step = 1, .suites = "quick"};
    submit_step(scene, client, 2);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    fixture_publish(scene->fx, claim, "digits", 0.5);
    assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    snprintf(late.line, sizeof(late.line), "  other: %s\n", elsewhere);
    assert_int_equal(evalq_client_wait(client, root_comes, &late, 3000), EVALQ_TIMEOUT);
    assert_true(late.added);
    evalq_client_close(client);
    fixture_dir_remove(elsewhere);
}

/* Returns how many read-only functions were called. */
static int64_t asked(struct evq_conn *conn)
{
    struct evq_reply *reply = fixture_call(conn, "INFO", "commandstats", NULL);
    const char *calls = strstr(reply->text, "cmdstat_fcall_ro:calls=");
    const int64_t count = calls != NULL ? strtoll(strchr(calls, '=') + 1, NULL, 10) : 0;

    evq_reply_free(reply);
    return count;
}

/*
 * Redis stops after wait() has received the number of open jobs. One round asks two or three times.
 */
static void *suspend_after_a_round(void *context)
{
    const struct scene *scene = context;
    struct evq_conn *conn = fixture_redis_conn(scene->fx->redis);
    const int64_t before = asked(conn);

    FIXTURE_UNTIL(asked(conn) >= before + 8);
    fixture_redis_suspend(scene->fx->redis);
    evq_conn_close(conn);
    return NULL;
}

static void client_wait_returns_known_jobs_when_its_last_question_is_cut_short(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    pthread_t thread;

    submit_step(scene, client, 1);
    assert_flushed(client);
    assert_int_equal(pthread_create(&thread, NULL, suspend_after_a_round, scene), 0);
    assert_int_equal(evalq_client_wait(client, NULL, NULL, 5000), EVALQ_TIMEOUT);
    assert_holds(evalq_client_error(client), "with 1 job of the run still open");
    assert_int_equal(pthread_join(thread, NULL), 0);
    fixture_redis_resume(scene->fx->redis);
    evalq_client_close(client);
}

static void signal_take(int number)
{
    (void)number;
}

/*
 * A profiler sends a thousand signals a second. Each signal once ended the pause between two
 * questions.
 */
static void client_asks_no_more_often_when_signals_come(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const struct sigaction take = {.sa_handler = signal_take};
    const struct itimerval often = {{0, 1000}, {0, 1000}};
    const struct itimerval never = {{0, 0}, {0, 0}};
    struct sigaction before;

    submit_step(scene, client, 1);
    assert_flushed(client);
    const int64_t asked_before = asked(scene->fx->raw);
    assert_int_equal(sigaction(SIGALRM, &take, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    const int waited = evalq_client_wait(client, NULL, NULL, 500);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_int_equal(waited, EVALQ_TIMEOUT);
    // There are seven rounds with at most three questions each.
    assert_true(asked(scene->fx->raw) - asked_before < 40);
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
    FIXTURE_UNTIL(stats_of(client).sent == 1); // The later checkpoint is complete first.
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
    int withdrawn;
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
    seen->withdrawn =
        evalq_client_withdraw_job(seen->client, "digits/10/regular/quick", "no need", 1000);
}

static int withdraw(struct evalq_client *client, const char *job)
{
    return evalq_client_withdraw_job(client, job, "no room", (int)fixture_patience_ms());
}

static void client_withdraws_only_what_no_worker_has_begun(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    submit_step(scene, client, 10);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    submit_step(scene, client, 20);
    assert_flushed(client);
    assert_int_equal(withdraw(client, "digits/10/regular/quick"), EVALQ_BUSY);
    assert_int_equal(withdraw(client, "digits/20/regular/quick"), EVALQ_OK);
    assert_int_equal(withdraw(client, "digits/20/regular/quick"), EVALQ_OK);
    fixture_assert_state(scene->fx, "digits/20/regular/quick", "skipped");
    assert_int_equal(withdraw(client, "digits/30/regular/quick"), EVALQ_NOT_FOUND);
    evq_claim_free(claim);
    evalq_client_close(client);
}

static void job_of(const struct scene *scene, struct evalq_client *client, const char *suite,
                   char out[EVQ_JOB_ID_BYTES_MAX])
{
    char path[160];

    snprintf(path, sizeof(path), "%s/out/a.safetensors", scene->directory);
    assert_int_equal(evalq_client_job(client, path, suite, out, EVQ_JOB_ID_BYTES_MAX), EVALQ_OK);
}

/* A step that is submitted again may get another job. */
static void client_returns_the_job_of_a_submit(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char job[EVQ_JOB_ID_BYTES_MAX];

    checkpoint_write(scene, "a.safetensors", 1);
    assert_int_equal(evalq_client_job(client, "a.safetensors", "quick", job, sizeof(job)),
                     EVALQ_NOT_FOUND);
    assert_int_equal(submit(scene, client, "a.safetensors", 10), EVALQ_OK);
    assert_flushed(client);
    job_of(scene, client, "quick", job);
    assert_string_equal(job, "digits/10/regular/quick");
    struct evq_claim *claim = fixture_claim(scene->fx);
    checkpoint_write(scene, "a.safetensors", 2);
    assert_int_equal(submit(scene, client, "a.safetensors", 10), EVALQ_OK);
    assert_flushed(client);
    job_of(scene, client, "quick", job);
    assert_string_equal(job, "digits/10/regular/quick~2");
    assert_int_equal(evalq_client_job(client, "safetensors", "quick", job, sizeof(job)),
                     EVALQ_NOT_FOUND); // Only whole names match, and only this suite.
    assert_int_equal(evalq_client_job(client, "out/a.safetensors", "slow", job, sizeof(job)),
                     EVALQ_NOT_FOUND);
    char small[8] = "";
    assert_int_equal(evalq_client_job(client, "out/a.safetensors", "quick", small, sizeof(small)),
                     EVALQ_INVALID);
    assert_holds(evalq_client_error(client), "job_out has room for 8 bytes, 26 are needed");
    assert_string_equal(small, "");
    assert_int_equal(evalq_client_withdraw_job(client, job, "no room", (int)fixture_patience_ms()),
                     EVALQ_OK);
    fixture_assert_state(scene->fx, job, "skipped");
    fixture_assert_state(scene->fx, claim->id, "running");
    assert_int_equal(submit(scene, client, "a.safetensors", 10), EVALQ_OK);
    assert_flushed(client);
    job_of(scene, client, "quick", job);
    assert_string_equal(job, ""); // The job had ended before.
    evq_claim_free(claim);
    evalq_client_close(client);
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
    assert_int_equal(evalq_client_poll(client, see, &seen, (int)fixture_patience_ms()), EVALQ_OK);
    assert_int_equal(seen.metrics + seen.ends, 0);
    assert_int_equal(evalq_client_wait(client, see, &seen, 100), EVALQ_TIMEOUT);
    assert_int_equal(evalq_client_best(client, "", &value, &step, path, sizeof(path),
                                       (int)fixture_patience_ms()),
                     EVALQ_NOT_FOUND);

    struct evq_claim *claim = fixture_claim(scene->fx);
    fixture_publish(scene->fx, claim, "digits", 0.75);
    assert_int_equal(evalq_client_poll(client, see, &seen, (int)fixture_patience_ms()), EVALQ_OK);
    assert_int_equal(seen.metrics, 1);
    assert_near(seen.value, 0.75, 0.0);
    assert_string_equal(seen.key, "eval/digits/accuracy");
    // A call from inside the callback is rejected; it must not deadlock.
    assert_int_equal(seen.inside, EVALQ_INVALID);
    assert_int_equal(seen.withdrawn, EVALQ_INVALID);
    assert_holds(evalq_client_error(client), "withdraw and idle must not be called from inside");
    assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    assert_int_equal(evalq_client_wait(client, see, &seen, (int)fixture_patience_ms()), EVALQ_OK);
    assert_int_equal(seen.metrics, 1);
    assert_int_equal(seen.ends, 1);

    struct evq_best best = {.value = 0.75, .step = 10};
    snprintf(best.run, sizeof(best.run), "digits");
    snprintf(best.metric, sizeof(best.metric), "eval/digits/accuracy");
    snprintf(best.job, sizeof(best.job), "%s", claim->id);
    snprintf(best.checkpoint, sizeof(best.checkpoint), "test:out/step-10.safetensors");
    assert_status(evq_queue_best_put(scene->fx->queue, &best, NULL), EVQ_OK);
    assert_int_equal(evalq_client_best(client, NULL, &value, &step, path, sizeof(path),
                                       (int)fixture_patience_ms()),
                     EVALQ_OK);
    assert_near(value, 0.75, 0.0);
    assert_int_equal(step, 10);
    assert_holds(path, scene->directory);
    assert_int_equal(access(path, R_OK), 0);
    // A path that is cut could name another checkpoint.
    assert_int_equal(evalq_client_best(client, NULL, &value, NULL, path, strlen(path),
                                       (int)fixture_patience_ms()),
                     EVALQ_INVALID);
    assert_holds(evalq_client_error(client), "path_out has room for");
    char metric[64] = "";
    assert_int_equal(evalq_client_best_metric(client, "", NULL, NULL, NULL, 0, metric,
                                              sizeof(metric), (int)fixture_patience_ms()),
                     EVALQ_OK);
    assert_string_equal(metric, "eval/digits/accuracy");
    evq_claim_free(claim);
    evalq_client_close(client);
}

/*
 * A process resumes a run of several weeks. Results that retention removed do not end the reading.
 */
static void client_delivers_results_behind_those_that_retention_took(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    struct seen seen = {.client = client};

    fixture_finish_and_retain_one(scene->fx, "digits");
    assert_int_equal(evalq_client_wait(client, see, &seen, (int)fixture_patience_ms()), EVALQ_OK);
    assert_int_equal(seen.metrics, 1);
    assert_int_equal(seen.ends, 1);
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
    evalq_client_close(client); // A task has ended, but its job still runs, so the pin stays.
    assert_int_equal(access(pin, R_OK), 0);

    client = scene_client(scene); // This is a resumed training in the same directory.
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
    assert_int_not_equal(access(pin, F_OK), 0); // The pin was removed.
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(client_submits_after_the_missing_root_is_configured),
        SCENE_TEST(client_wait_says_that_a_root_is_missing),
        SCENE_TEST(client_wait_reads_the_configuration_again),
        SCENE_TEST(client_wait_returns_known_jobs_when_its_last_question_is_cut_short),
        SCENE_TEST(client_waits_for_what_was_submitted_since_the_jobs_were_counted),
        SCENE_TEST(client_asks_no_more_often_when_signals_come),
        SCENE_TEST(client_waits_for_checkpoint_when_it_is_still_written),
        SCENE_TEST(client_delivers_metrics_when_polled_and_waited_for),
        SCENE_TEST(client_withdraws_only_what_no_worker_has_begun),
        SCENE_TEST(client_returns_the_job_of_a_submit),
        SCENE_TEST(client_delivers_results_behind_those_that_retention_took),
        SCENE_TEST(client_keeps_rotated_checkpoint_until_its_job_ends),
    };
    scene_clear_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
