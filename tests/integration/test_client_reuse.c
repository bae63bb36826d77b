/*
 * libevalq where one step after another is saved to one path: each gets its own weights or none,
 * whether it is submitted after its save or before it. The clocks are the test's.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/client/pins/pin.h"
#include "tests/fixture/client.h"
#include "tests/fixture/program.h"
#include "tests/fixture/safetensors.h"

#define LAST "last.safetensors"

int64_t __wrap_evq_clock_unix_ms(void);
int64_t __real_evq_clock_unix_ms(void);
int64_t __wrap_evq_clock_mono_ms(void);
int64_t __real_evq_clock_mono_ms(void);

enum evq_status __wrap_evq_pin_verify(const struct evq_pin_request *request,
                                      const struct evq_pin *pin, struct evq_error *err);
enum evq_status __real_evq_pin_verify(const struct evq_pin_request *request,
                                      const struct evq_pin *pin, struct evq_error *err);

static atomic_int_fast64_t wall_ms; // 0: as it is.
static atomic_int_fast64_t ahead_ms;
static atomic_int_fast64_t late_ms; // So long after a submit the client looks at it.
static atomic_bool pin_changes;     // While it is copied.
static pthread_t trainer;

int64_t __wrap_evq_clock_unix_ms(void)
{
    const int64_t now = atomic_load(&wall_ms);

    if (now == 0) {
        return __real_evq_clock_unix_ms();
    }
    return pthread_equal(pthread_self(), trainer) ? now : now + atomic_load(&late_ms);
}

int64_t __wrap_evq_clock_mono_ms(void)
{
    return __real_evq_clock_mono_ms() + atomic_load(&ahead_ms);
}

enum evq_status __wrap_evq_pin_verify(const struct evq_pin_request *request,
                                      const struct evq_pin *pin, struct evq_error *err)
{
    if (atomic_load(&pin_changes)) {
        return evq_error_set(err, EVQ_E_CHANGED, "'%s' changed", request->path);
    }
    return __real_evq_pin_verify(request, pin, err);
}

/* The step's weights in a tensor of that name, as if they were written at that time. */
static void save_tensor(const struct scene *scene, const char *name, const char *tensor,
                        int64_t step, int64_t at_ms)
{
    const struct timespec at = {.tv_sec = at_ms / 1000, .tv_nsec = at_ms % 1000 * 1000000};
    const struct timespec times[2] = {at, at};
    const float value = (float)step;
    const struct fixture_tensor one = {
        .name = tensor, .dtype = EVQ_DTYPE_F32, .rank = 1, .shape = {1}, .data = &value};
    char from[128];
    char to[128];

    (void)snprintf(from, sizeof(from), "%s/out/next", scene->directory);
    (void)snprintf(to, sizeof(to), "%s/out/%s", scene->directory, name);
    fixture_safetensors(from, &one, 1);
    assert_int_equal(utimensat(AT_FDCWD, from, times, 0), 0);
    assert_int_equal(rename(from, to), 0);
}

static void save(const struct scene *scene, int64_t step, int64_t at_ms)
{
    save_tensor(scene, LAST, "w", step, at_ms);
}

static void submit_at(const struct scene *scene, struct evalq_client *client, int64_t step,
                      int64_t at_ms)
{
    atomic_store(&wall_ms, at_ms);
    assert_int_equal(submit(scene, client, LAST, step), EVALQ_OK);
}

/* The weight in what the next job names, or beneath that; 0: its job is to end as skipped. */
static int64_t weight_beneath(struct scene *scene, int64_t step, const char *beneath)
{
    struct evq_claim *claim = fixture_claim(scene->fx);
    char path[256];
    char bytes[1024];
    float weight = 0;

    assert_int_equal(claim->job->step, step);
    const bool skipped = strspn(claim->job->fingerprint, "0") == 32;
    assert_int_equal(claim->job->pin[0] == '\0', skipped);
    if (!skipped) {
        (void)snprintf(path, sizeof(path), "%s/%s%s", scene->directory, claim->job->pin, beneath);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        const size_t count = fread(bytes, 1, sizeof(bytes), file);
        assert_int_equal(fclose(file), 0);
        assert_true(count > sizeof(weight));
        memcpy(&weight, bytes + count - sizeof(weight), sizeof(weight));
    }
    evq_claim_free(claim);
    return (int64_t)weight;
}

static int64_t weights_of_next(struct scene *scene, int64_t step)
{
    return weight_beneath(scene, step, "");
}

static void assert_waits(struct evalq_client *client)
{
    assert_int_equal(evalq_client_flush(client, 200), EVALQ_TIMEOUT);
}

/* Submits before their saves: when a step is looked at first, the one before lies there. */
static void client_waits_for_the_save_of_a_step_that_is_submitted_first(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    submit_at(scene, client, 1, start);
    assert_waits(client);
    atomic_store(&wall_ms, start + 1500);
    save(scene, 1, start + 500);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 1);
    submit_at(scene, client, 2, start + 2000);
    assert_waits(client);
    atomic_store(&wall_ms, start + 3500);
    save(scene, 2, start + 2500);
    assert_flushed(client);
    submit_at(scene, client, 3, start + 4000);
    for (int at = 0; at < 4; at++) {
        assert_waits(client); // Ever longer between its looks, so that the fourth's is the first.
    }
    save(scene, 3, start + 4500);
    submit_at(scene, client, 4, start + 5000);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 3);
    assert_waits(client);
    atomic_store(&wall_ms, start + 6500);
    save(scene, 4, start + 5500);
    assert_flushed(client);
    for (int64_t step = 1; step <= 4; step++) {
        assert_int_equal(weights_of_next(scene, step), step);
    }
    assert_int_equal(warnings_with(scene, "will be skipped"), 0);
    evalq_client_close(client);
}

/* The first step is submitted before its save, and has its weights. */
static void early_begin(struct scene *scene, struct evalq_client *client, int64_t start)
{
    submit_at(scene, client, 1, start);
    assert_waits(client);
    atomic_store(&wall_ms, start + 1500);
    save(scene, 1, start + 500);
    assert_flushed(client);
    assert_int_equal(weights_of_next(scene, 1), 1);
}

/* A save that took milliseconds is through at the first look, and stamped before its submit. */
static void client_waits_for_a_save_after_one_that_was_through_at_once(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    early_begin(scene, client, start);
    save(scene, 2, start + 1997);
    submit_at(scene, client, 2, start + 2000);
    assert_flushed(client);
    submit_at(scene, client, 3, start + 4000);
    assert_waits(client);
    save(scene, 3, start + 4500);
    assert_flushed(client);
    assert_int_equal(weights_of_next(scene, 2), 2);
    assert_int_equal(weights_of_next(scene, 3), 3);
    evalq_client_close(client);
}

/* A trainer that waits for a save before it submits the next step: both in one millisecond. */
static void client_gives_no_step_a_save_that_ended_as_it_was_submitted(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    early_begin(scene, client, start);
    submit_at(scene, client, 2, start + 2000);
    assert_waits(client);
    submit_at(scene, client, 3, start + 3000);
    save(scene, 2, start + 3000);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) > 0);
    assert_waits(client);
    save(scene, 3, start + 3500);
    assert_flushed(client);
    assert_int_equal(weights_of_next(scene, 2), 0);
    assert_int_equal(weights_of_next(scene, 3), 3);
    evalq_client_close(client);
}

/* The directory is whole with a file of the step before in it: its save is still going on. */
static void client_waits_for_the_last_file_of_a_directory_that_is_saved_over(void **state)
{
    static const char index[] =
        "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}}";
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/out/last", scene->directory);
    assert_int_equal(mkdir(path, 0700), 0);
    fixture_file_write(path, "model.safetensors.index.json", index);
    atomic_store(&wall_ms, start);
    assert_int_equal(submit(scene, client, "last", 1), EVALQ_OK);
    assert_waits(client);
    atomic_store(&wall_ms, start + 1600);
    save_tensor(scene, "last/1.safetensors", "a", 1, start + 500);
    save_tensor(scene, "last/2.safetensors", "b", 1, start + 510);
    assert_flushed(client);
    atomic_store(&wall_ms, start + 2000);
    assert_int_equal(submit(scene, client, "last", 2), EVALQ_OK);
    save_tensor(scene, "last/1.safetensors", "a", 2, start + 2100);
    assert_waits(client);
    atomic_store(&wall_ms, start + 3400);
    save_tensor(scene, "last/2.safetensors", "b", 2, start + 2200);
    assert_flushed(client);
    assert_int_equal(weight_beneath(scene, 1, "/2.safetensors"), 1);
    assert_int_equal(weight_beneath(scene, 2, "/2.safetensors"), 2);
    evalq_client_close(client);
}

/* Copies that keep the time of what they are of, made after the submit. */
static void client_waits_for_a_copy_that_is_older_than_its_submit(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    for (int64_t step = 1; step <= 3; step++) {
        submit_at(scene, client, step, start + step * 1000);
        assert_waits(client);
        save(scene, step, start + step * 1000 - 500);
        assert_flushed(client);
    }
    for (int64_t step = 1; step <= 3; step++) {
        assert_int_equal(weights_of_next(scene, step), step);
    }
    evalq_client_close(client);
}

static void client_skips_a_step_that_never_was_saved_over_the_one_before(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    submit_at(scene, client, 1, start);
    assert_waits(client);
    atomic_store(&wall_ms, start + 1500);
    save(scene, 1, start + 500);
    assert_flushed(client);
    submit_at(scene, client, 2, start + 2000);
    assert_waits(client);
    atomic_fetch_add(&ahead_ms, 601000);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 2);
    atomic_store(&ahead_ms, 0); // What sleeps by the system's clock would sleep for as long.
    assert_int_equal(weights_of_next(scene, 1), 1);
    assert_int_equal(weights_of_next(scene, 2), 0);
    assert_int_equal(warnings_with(scene, "holds the weights of the step before still"), 1);
    evalq_client_close(client);
}

/* The next save is through and not yet submitted: what lies there is young for so long. */
static void client_gives_no_step_what_was_written_since_and_is_submitted_next(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    save(scene, 2, start + 100);
    submit_at(scene, client, 1, start);
    assert_waits(client);
    submit_at(scene, client, 2, start + 1050);
    atomic_store(&wall_ms, start + 1130);
    assert_flushed(client);
    assert_int_equal(weights_of_next(scene, 1), 0);
    assert_int_equal(weights_of_next(scene, 2), 2);
    assert_int_equal(warnings_with(scene, "another step was saved to"), 1);
    evalq_client_close(client);
}

/* The clock that stamps files is behind: of two saves within milliseconds the second seems to be
 * older than the first one's submit. */
static void client_gives_no_step_what_was_saved_within_milliseconds(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    save(scene, 2, start - 5);
    submit_at(scene, client, 1, start);
    assert_waits(client);
    submit_at(scene, client, 2, start + 14);
    atomic_store(&wall_ms, start + 16);
    assert_flushed(client);
    assert_int_equal(weights_of_next(scene, 1), 0);
    assert_int_equal(weights_of_next(scene, 2), 2);
    save(scene, 3, start + 4995); // And where none follows, it is its own.
    submit_at(scene, client, 3, start + 5000);
    assert_waits(client);
    atomic_store(&wall_ms, start + 5016);
    assert_flushed(client);
    assert_int_equal(weights_of_next(scene, 3), 3);
    evalq_client_close(client);
}

static void remove_last(const struct scene *scene)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/out/" LAST, scene->directory);
    assert_int_equal(unlink(path), 0);
}

/* Saves that delete first: that a path is gone does not tell that submits come before saves. */
static void client_gives_no_step_the_next_ones_where_saves_delete_first(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    save(scene, 1, start - 50);
    submit_at(scene, client, 1, start);
    assert_flushed(client);
    remove_last(scene); // Step 2's, by the save of step 3.
    submit_at(scene, client, 2, start + 2000);
    assert_waits(client);
    save(scene, 3, start + 2500);
    atomic_store(&wall_ms, start + 2600);
    assert_waits(client);
    submit_at(scene, client, 3, start + 2650);
    assert_flushed(client);
    assert_int_equal(weights_of_next(scene, 1), 1);
    assert_int_equal(weights_of_next(scene, 2), 0);
    assert_int_equal(weights_of_next(scene, 3), 3);
    evalq_client_close(client);
}

/* The same of the first that is looked at, for which the client had no time before. */
static void client_gives_no_step_the_next_ones_where_it_looks_late(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    atomic_store(&late_ms, 2000);
    submit_at(scene, client, 1, start);
    assert_waits(client);
    save(scene, 2, start + 2500);
    atomic_store(&wall_ms, start + 600);
    assert_waits(client);
    submit_at(scene, client, 2, start + 2600);
    assert_flushed(client);
    assert_int_equal(weights_of_next(scene, 1), 0);
    assert_int_equal(weights_of_next(scene, 2), 2);
    evalq_client_close(client);
}

/* Steps that were submitted after their saves go on to be theirs when one was lost: read late, or
 * overwritten while it was copied, by a save that ended long before its submit. */
static void client_gives_each_step_its_own_after_one_was_overwritten(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    atomic_store(&late_ms, 5000);
    save(scene, 2, start + 3000);
    submit_at(scene, client, 1, start);
    assert_flushed(client);
    atomic_store(&late_ms, 0);
    submit_at(scene, client, 2, start + 6000);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 2);
    save(scene, 3, start + 7000);
    atomic_store(&pin_changes, true);
    submit_at(scene, client, 3, start + 8000);
    assert_waits(client);
    save(scene, 4, start + 9000);
    atomic_store(&wall_ms, start + 11000);
    atomic_store(&pin_changes, false);
    assert_flushed(client);
    submit_at(scene, client, 4, start + 12000);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 4);
    (void)weights_of_next(scene, 1);
    assert_int_equal(weights_of_next(scene, 2), 2);
    (void)weights_of_next(scene, 3);
    assert_int_equal(weights_of_next(scene, 4), 4);
    evalq_client_close(client);
}

/* Saves after their submits, where a file was there at first: nothing tells them from others, so
 * that is said as soon as it seems to be. */
static void client_says_when_steps_seem_to_get_the_weights_of_those_before(void **state)
{
    static const char word[] = "was written 500 ms after step 3 was submitted and 2500 ms before";
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t start = __real_evq_clock_unix_ms();

    for (int64_t step = 1; step <= 3; step++) { // After their saves, which is right.
        save(scene, step, start + step * 3000 - 1200);
        submit_at(scene, client, step, start + step * 3000);
        assert_flushed(client);
    }
    assert_int_equal(warnings_with(scene, "was written"), 0);
    save(scene, 3, start + 9500);
    submit_at(scene, client, 4, start + 12000);
    assert_flushed(client);
    assert_int_equal(warnings_with(scene, word), 1);
    evalq_client_close(client);
}

static int reuse_make(void **state)
{
    atomic_store(&wall_ms, 0);
    atomic_store(&late_ms, 0);
    atomic_store(&pin_changes, false);
    trainer = pthread_self();
    return scene_make(state);
}

#define REUSE_TEST(name) cmocka_unit_test_setup_teardown(name, reuse_make, scene_free)

int main(void)
{
    const struct CMUnitTest tests[] = {
        REUSE_TEST(client_waits_for_the_save_of_a_step_that_is_submitted_first),
        REUSE_TEST(client_waits_for_a_save_after_one_that_was_through_at_once),
        REUSE_TEST(client_gives_no_step_a_save_that_ended_as_it_was_submitted),
        REUSE_TEST(client_waits_for_the_last_file_of_a_directory_that_is_saved_over),
        REUSE_TEST(client_waits_for_a_copy_that_is_older_than_its_submit),
        REUSE_TEST(client_skips_a_step_that_never_was_saved_over_the_one_before),
        REUSE_TEST(client_gives_no_step_what_was_written_since_and_is_submitted_next),
        REUSE_TEST(client_gives_no_step_what_was_saved_within_milliseconds),
        REUSE_TEST(client_gives_no_step_the_next_ones_where_saves_delete_first),
        REUSE_TEST(client_gives_no_step_the_next_ones_where_it_looks_late),
        REUSE_TEST(client_gives_each_step_its_own_after_one_was_overwritten),
        REUSE_TEST(client_says_when_steps_seem_to_get_the_weights_of_those_before),
    };
    scene_clear_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
