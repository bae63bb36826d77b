/*
 * A pin stays until its job has ended, even if Redis loses its data, has an older function library,
 * or the trainer deletes the checkpoint before the client checks it.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/client/pins/pin_releaser.h"
#include "shared/base/clock.h"
#include "shared/queue/function_library.h"
#include "tests/fixture/client.h"

#define AHEAD       1000
#define AHEAD_STEPS 2500

#define MANY    448   // The pins of seven checks.
#define MANY_MS 20000 // Releasing each pin in its own check of five seconds would take longer.

static void path_of(const struct scene *scene, const char *below, char out[256])
{
    snprintf(out, 256, "%s/%s", scene->directory, below);
}

static void rotate(const struct scene *scene, const char *name)
{
    char path[256];

    path_of(scene, name, path);
    assert_int_equal(unlink(path), 0);
}

static bool is_empty(const char *directory)
{
    bool empty = rmdir(directory) == 0; // rmdir() fails if the directory is not empty.
    if (empty) {
        assert_int_equal(mkdir(directory, 0777), 0);
    }
    return empty;
}

struct counts {
    int metrics;
    int ends;
};

static void count(void *context, const struct evalq_metric_view *metric)
{
    struct counts *counts = context;

    counts->ends += metric->task[0] == '\0';
    counts->metrics += metric->task[0] != '\0';
}

/* One of two jobs is done. Then Redis loses its data, as in a failover to an empty replica. */
static void client_submits_again_what_redis_lost(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    struct counts counts = {0};
    char pin[256];

    submit_step(scene, client, 1);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    fixture_publish(scene->fx, claim, "digits", 0.5);
    assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    assert_int_equal(evalq_client_wait(client, count, &counts, (int)fixture_patience_ms()),
                     EVALQ_OK);
    assert_int_equal(counts.metrics + counts.ends, 2);
    path_of(scene, "out/.evalq/pins", pin);
    FIXTURE_UNTIL(is_empty(pin));

    submit_step(scene, client, 2);
    assert_flushed(client);
    rotate(scene, "out/step-2.safetensors");
    evq_reply_free(fixture_call(scene->fx->raw, "FLUSHALL", NULL));
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 1); // The client's next check submits it again.
    (void)fixture_suite(scene->fx, "quick");
    claim = fixture_claim(scene->fx);
    assert_string_equal(claim->id, "digits/2/regular/quick");
    path_of(scene, claim->job->pin, pin);
    assert_int_equal(access(pin, R_OK), 0);
    // The client warns after it has sent the submit.
    FIXTURE_UNTIL(warnings_with(scene, "Redis lost its data") > 0);
    assert_int_equal(warnings_with(scene, "Redis lost its data"), 1);

    fixture_publish(scene->fx, claim, "digits", 0.75);
    assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    // The run's result stream starts again, so an old position in it is invalid.
    assert_int_equal(evalq_client_wait(client, count, &counts, (int)fixture_patience_ms()),
                     EVALQ_OK);
    assert_int_equal(counts.metrics, 2);
    assert_int_equal(counts.ends, 2);
    evalq_client_close(client);
    assert_int_not_equal(access(pin, F_OK), 0);
}

/*
 * While a server starts with old data, its function library may reject fields that it does not
 * know.
 */
static void client_refuses_nothing_for_good_when_the_library_is_an_older_one(void **state)
{
    struct scene *scene = *state;
    char library[1024];
    const char *refusal = "redis.error_reply('EVQ_INVALID expected 12 arguments, got 13')";

    snprintf(library, sizeof(library),
             "#!lua name=evalq_v1\n"
             "redis.register_function{function_name='evalq_v1_info', flags={'no-writes'},\n"
             "callback=function() return {'1', '%lld', 'e', '0', '0', '0'} end}\n"
             "redis.register_function('evalq_v1_submit', function() return %s end)\n"
             "redis.register_function('evalq_v1_submit_batch', function() return %s end)",
             (long long)evq_function_library_build - 1, refusal, refusal);
    evq_reply_free(fixture_call(scene->fx->raw, "FUNCTION", "LOAD", "REPLACE", library, NULL));
    struct evalq_client *client = scene_client(scene);
    submit_step(scene, client, 1);
    FIXTURE_UNTIL(warnings_with(scene, "run `evalq admin install`") == 1);
    rotate(scene, "out/step-1.safetensors");
    assert_int_equal(evalq_client_flush(client, 100), EVALQ_UNAVAILABLE);
    assert_int_equal(stats_of(client).refused, 0);

    int64_t build = 0;
    assert_status(evq_function_library_install(scene->fx->raw, &build, NULL), EVQ_OK);
    assert_flushed(client);
    fixture_assert_state(scene->fx, "digits/1/regular/quick", "queued");
    struct evq_claim *claim = fixture_claim(scene->fx);
    char pin[256];
    path_of(scene, claim->job->pin, pin);
    assert_int_equal(access(pin, R_OK), 0);
    evq_claim_free(claim);
    evalq_client_close(client);
}

/* The client keeps the pin of a job if the queue answers with an error. */
static void client_keeps_pin_when_the_queue_cannot_answer(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char library[1024];
    char pin[256];

    submit_step(scene, client, 1);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    path_of(scene, claim->job->pin, pin);
    evq_claim_free(claim);
    snprintf(library, sizeof(library),
             "#!lua name=evalq_v1\n"
             "redis.register_function{function_name='evalq_v1_info', flags={'no-writes'},\n"
             "callback=function() return {'1', '%lld', 'e', '0', '0', '0'} end}\n"
             "redis.register_function{function_name='evalq_v1_show', flags={'no-writes'},\n"
             "callback=function(keys) redis.call('INCR', 'asked') end}",
             (long long)evq_function_library_build);
    evq_reply_free(fixture_call(scene->fx->raw, "FUNCTION", "LOAD", "REPLACE", library, NULL));
    evalq_client_close(client); // close() checks the pins once more.
    assert_int_equal(access(pin, R_OK), 0);
}

/* Claims the next job and makes it dead. out gets the path of its pin. */
static void die(struct scene *scene, char out[256])
{
    enum evq_job_state ended = EVQ_JOB_QUEUED;
    struct evq_error error;
    struct evq_claim *claim = fixture_claim(scene->fx);

    path_of(scene, claim->job->pin, out);
    assert_int_equal(access(out, R_OK), 0);
    assert_status_err(evq_queue_fail(scene->fx->queue, claim->id, claim->token, EVQ_FAIL_FATAL,
                                     "the evaluator is not installed", "", &ended, &error),
                      EVQ_OK, &error);
    assert_int_equal(ended, EVQ_JOB_DEAD);
    evq_claim_free(claim);
}

static bool is_gone(const char *path)
{
    return access(path, F_OK) != 0;
}

/* A job that was set aside never runs again and cannot be retried. */
static void client_releases_the_pin_of_a_job_that_was_set_aside(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char pin[256];
    char key[EVQ_JOB_ID_BYTES_MAX + 8];

    submit_step(scene, client, 1);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    path_of(scene, claim->job->pin, pin);
    assert_int_equal(access(pin, R_OK), 0);
    snprintf(key, sizeof(key), "job:%s", claim->id);
    evq_reply_free(fixture_call(scene->fx->raw, "HSET", fixture_key(scene->fx, key), "state", "bad",
                                "token", "", NULL));
    evq_claim_free(claim);
    evalq_client_close(client);
    assert_true(is_gone(pin));
}

/* The trainer has deleted a checkpoint whose evaluation died of an error that the user can fix. */
static void client_keeps_pin_of_a_dead_job_for_its_retry(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char id[EVQ_JOB_ID_BYTES_MAX];
    char pin[256];

    submit_step(scene, client, 1);
    assert_flushed(client);
    rotate(scene, "out/step-1.safetensors");
    die(scene, pin);
    evalq_client_close(client); // Looks at its pins once more.
    assert_int_equal(access(pin, R_OK), 0);
    assert_status(evq_queue_retry(scene->fx->queue, "digits/1/regular/quick", "", id, NULL),
                  EVQ_OK);
    client = scene_client(scene);
    submit_step(scene, client, 2); // From now on, this client manages the pins in the directory.
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_string_equal(claim->id, "digits/1/regular/quick");
    assert_int_equal(access(pin, R_OK), 0);
    fixture_publish(scene->fx, claim, "digits", 0.5);
    assert_status(evq_queue_complete(scene->fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    FIXTURE_UNTIL(is_gone(pin));
    evalq_client_close(client);
}

/*
 * A broken evaluator must not fill the disk: only the newest few pins of dead jobs stay, for one
 * day.
 */
static void client_keeps_few_pins_of_dead_jobs_for_a_day(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char pins[EVQ_PIN_RELEASER_DEAD_PINS_MAX + 2][256];
    const int count = EVQ_PIN_RELEASER_DEAD_PINS_MAX + 2;

    for (int step = 1; step <= count; step++) {
        submit_step(scene, client, step);
        assert_flushed(client);
        die(scene, pins[step - 1]);
    }
    FIXTURE_UNTIL(is_gone(pins[0]) && is_gone(pins[1]));
    for (int at = 2; at < count; at++) {
        assert_int_equal(access(pins[at], R_OK), 0);
    }
    struct evq_reply *reply =
        fixture_call(scene->fx->raw, "HSET", "evalq:{main}:job:digits/3/regular/quick", "ended",
                     "1600000000000", NULL); // The job died years ago.
    evq_reply_free(reply);
    FIXTURE_UNTIL(is_gone(pins[2]));
    assert_int_equal(access(pins[3], R_OK), 0);
    evalq_client_close(client);
}

/* The callbacks hold a copy of a checkpoint until its metrics are known. */
static void client_pins_what_is_held_when_checkpoint_was_rotated_first(void **state)
{
    struct scene *scene = *state;
    char held[256];
    char path[256];

    fixture_redis_suspend(scene->fx->redis);
    path_of(scene, "out/.evalq", held);
    assert_int_equal(mkdir(held, 0777), 0);
    path_of(scene, "out/.evalq/held", held);
    assert_int_equal(mkdir(held, 0777), 0);
    checkpoint_write(scene, "step-9.safetensors", 9);
    path_of(scene, "out/step-9.safetensors", path);
    path_of(scene, "out/.evalq/held/step-9.safetensors", held);
    // The checkpoint is gone before the client can check it.
    assert_int_equal(rename(path, held), 0);
    struct evalq_client *client = scene_client(scene);
    const struct evalq_checkpoint checkpoint = {
        .path = path, .step = 9, .suites = "quick", .held = held};
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    fixture_redis_resume(scene->fx->redis);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_string_equal(claim->job->path, "out/step-9.safetensors");
    assert_holds(claim->job->pin, "out/.evalq/pins/9-regular-");
    assert_int_equal(unlink(held), 0);
    path_of(scene, claim->job->pin, path);
    assert_int_equal(access(path, R_OK), 0);
    assert_int_equal(strlen(claim->job->fingerprint), EVQ_JOB_FINGERPRINT_CHARS);
    evq_claim_free(claim);
    assert_int_equal(warnings_with(scene, "evalq"), 0);
    evalq_client_close(client);
}

/* The trainer is deleting the checkpoint: the weights still exist, but other files do not. */
static void client_pins_a_checkpoint_as_a_whole_while_it_is_deleted(void **state)
{
    struct scene *scene = *state;
    static const char *const folders[] = {"out/.evalq", "out/.evalq/held",
                                          "out/.evalq/held/checkpoint-7", "out/checkpoint-7"};
    char path[256];
    char held[256];
    char config[300];

    for (size_t at = 0; at < sizeof(folders) / sizeof(folders[0]); at++) {
        path_of(scene, folders[at], path);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    checkpoint_write(scene, "checkpoint-7/model.safetensors", 7);
    path_of(scene, "out/checkpoint-7/model.safetensors", path);
    path_of(scene, "out/.evalq/held/checkpoint-7/model.safetensors", held);
    assert_int_equal(link(path, held), 0);
    path_of(scene, "out/.evalq/held/checkpoint-7/config.json", held);
    FILE *file = fopen(held, "w");
    assert_non_null(file);
    assert_true(fputs("{}", file) >= 0);
    assert_int_equal(fclose(file), 0);
    path_of(scene, "out/checkpoint-7", path);
    path_of(scene, "out/.evalq/held/checkpoint-7", held);
    struct evalq_client *client = scene_client(scene);
    const struct evalq_checkpoint checkpoint = {
        .path = path, .step = 7, .suites = "quick", .held = held};
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    path_of(scene, claim->job->pin, path);
    snprintf(config, sizeof(config), "%s/config.json", path);
    assert_int_equal(access(config, R_OK), 0);
    evq_claim_free(claim);
    evalq_client_close(client);
}

/* With Accelerate's names, a pin has two parts: checkpoints/checkpoint_0. */
static void client_releases_pins_with_names_of_accelerate(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char path[256];

    path_of(scene, "out/checkpoints", path);
    assert_int_equal(mkdir(path, 0777), 0);
    path_of(scene, "out/checkpoints/checkpoint_0", path);
    assert_int_equal(mkdir(path, 0777), 0);
    checkpoint_write(scene, "checkpoints/checkpoint_0/model.safetensors", 1);
    assert_int_equal(submit(scene, client, "checkpoints/checkpoint_0", 10), EVALQ_OK);
    assert_flushed(client);
    path_of(scene, "out/.evalq/pins", path);
    assert_false(is_empty(path));
    assert_status(evq_queue_cancel(scene->fx->queue, "digits/10/regular/quick", "", NULL, NULL),
                  EVQ_OK);
    FIXTURE_UNTIL(is_empty(path));
    evalq_client_close(client);
}

/* Ten checkpoints a second are submitted after an outage of Redis. Their pins must not pile up. */
static void client_releases_many_pins_at_once(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char id[64];
    char pins[256];

    for (int step = 1; step <= MANY; step++) {
        submit_step(scene, client, step);
    }
    assert_flushed(client);
    for (int step = 1; step <= MANY; step++) {
        snprintf(id, sizeof(id), "digits/%d/regular/quick", step);
        assert_status(evq_queue_cancel(scene->fx->queue, id, "", NULL, NULL), EVQ_OK);
    }
    const int64_t ended_ms = evq_clock_mono_ms();
    path_of(scene, "out/.evalq/pins", pins);
    FIXTURE_UNTIL(is_empty(pins));
    assert_true(evq_clock_mono_ms() - ended_ms < MANY_MS);
    evalq_client_close(client);
}

static int64_t pins_in(const char *directory)
{
    DIR *dir = opendir(directory);
    const struct dirent *entry = NULL;
    int64_t pins = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        pins += entry->d_name[0] != '.';
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return pins;
}

/*
 * Submits keep arriving while earlier ones are pinned, for example if copies take longer than
 * steps. Pinned submits are sent meanwhile.
 */
static void client_sends_what_is_ready_while_more_is_submitted(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char pins[256];
    int64_t pinned = 0;
    int64_t step = 0;

    path_of(scene, "out/.evalq/pins", pins);
    while (step < AHEAD_STEPS) {
        while (step < pinned + AHEAD) {
            submit_step(scene, client, ++step);
        }
        FIXTURE_UNTIL(pins_in(pins) > pinned);
        pinned = pins_in(pins);
    }
    assert_true(stats_of(client).sent > 0);
    evalq_client_close(client);
}

/*
 * The last submit arrives while the thread reads other checkpoints. Nothing else wakes the thread,
 * so it must check the ring again.
 */
static void client_sends_a_submit_that_arrives_while_others_are_read(void **state)
{
    struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;
    int64_t step = 0;

    options.pin_disabled = 1;
    assert_int_equal(evalq_client_open(&options, &client), EVALQ_OK);
    checkpoint_write(scene, "step-1.safetensors", 1);
    for (int64_t round = 1; round <= 5; round++) {
        for (int at = 0; at < 1500; at++) {
            assert_int_equal(submit_link(scene, client, ++step), EVALQ_OK);
        }
        const int64_t now_us = evq_clock_mono_us();
        // The thread checks every 10 ms; one read takes longer.
        while (evq_clock_mono_us() - now_us < 25000) {
        }
        assert_int_equal(submit_link(scene, client, ++step), EVALQ_OK);
        FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == step);
    }
    evalq_client_close(client);
}

int main(void)
{
    scene_clear_environment();
    const struct CMUnitTest tests[] = {
        SCENE_TEST(client_submits_again_what_redis_lost),
        SCENE_TEST(client_refuses_nothing_for_good_when_the_library_is_an_older_one),
        SCENE_TEST(client_keeps_pin_of_a_dead_job_for_its_retry),
        SCENE_TEST(client_keeps_few_pins_of_dead_jobs_for_a_day),
        SCENE_TEST(client_keeps_pin_when_the_queue_cannot_answer),
        SCENE_TEST(client_releases_the_pin_of_a_job_that_was_set_aside),
        SCENE_TEST(client_sends_what_is_ready_while_more_is_submitted),
        SCENE_TEST(client_sends_a_submit_that_arrives_while_others_are_read),
        SCENE_TEST(client_releases_pins_with_names_of_accelerate),
        SCENE_TEST(client_releases_many_pins_at_once),
        SCENE_TEST(client_pins_what_is_held_when_checkpoint_was_rotated_first),
        SCENE_TEST(client_pins_a_checkpoint_as_a_whole_while_it_is_deleted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
