/*
 * libevalq where several steps are saved to one path, by the contract of docs/client.md: a step
 * that is overwritten before it is pinned is skipped, and no step gets another one's weights. The
 * linker puts a hook in front of evq_pin_make(), so that a test can act between a look and its pin.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/client/pins/pin.h"
#include "tests/fixture/client.h"
#include "tests/fixture/program.h"
#include "tests/fixture/safetensors.h"

#define LAST "last.safetensors"

int64_t __wrap_evq_clock_mono_ms(void);
int64_t __real_evq_clock_mono_ms(void);
enum evq_status __wrap_evq_pin_make(const struct evq_pin_request *request, struct evq_pin *ret_pin,
                                    struct evq_error *err);
enum evq_status __real_evq_pin_make(const struct evq_pin_request *request, struct evq_pin *ret_pin,
                                    struct evq_error *err);

static atomic_int_fast64_t ahead_ms;

// Actions between the check of a step's checkpoint and its pin. The client's thread performs them.
static struct {
    const struct scene *scene;
    struct evalq_client *client;
    const char *name;
    int64_t at_step;     // Act when this step is pinned; 0: do nothing.
    int64_t save_step;   // Save the weights of this step; 0: save nothing.
    int64_t submit_step; // Submit this step; 0: submit nothing.
} before_pin;

int64_t __wrap_evq_clock_mono_ms(void)
{
    return __real_evq_clock_mono_ms() + atomic_load(&ahead_ms);
}

/* Saves the step's weights as out/NAME, by a rename or in place. */
static void save(const struct scene *scene, const char *name, int64_t step)
{
    const float value = (float)step;
    const struct fixture_tensor one = {
        .name = "w", .dtype = EVQ_DTYPE_F32, .rank = 1, .shape = {1}, .data = &value};
    char from[128];
    char to[128];

    (void)snprintf(from, sizeof(from), "%s/out/next", scene->directory);
    (void)snprintf(to, sizeof(to), "%s/out/%s", scene->directory, name);
    fixture_safetensors(from, &one, 1);
    assert_int_equal(rename(from, to), 0);
}

enum evq_status __wrap_evq_pin_make(const struct evq_pin_request *request, struct evq_pin *ret_pin,
                                    struct evq_error *err)
{
    if (request->step == before_pin.at_step) {
        before_pin.at_step = 0;
        if (before_pin.save_step != 0) {
            save(before_pin.scene, before_pin.name, before_pin.save_step);
        }
        if (before_pin.submit_step != 0) {
            assert_int_equal(submit(before_pin.scene, before_pin.client, before_pin.name,
                                    before_pin.submit_step),
                             EVALQ_OK);
        }
    }
    return __real_evq_pin_make(request, ret_pin, err);
}

/* Asserts that the next job is the one of the step, with the step's weights. */
static void assert_next(struct scene *scene, int64_t step, int64_t weights)
{
    struct evq_claim *claim = fixture_claim(scene->fx);
    char path[256];
    char bytes[1024];
    float weight = 0;

    assert_int_equal(claim->job->step, step);
    assert_string_not_equal(claim->job->pin, "");
    (void)snprintf(path, sizeof(path), "%s/%s", scene->directory, claim->job->pin);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, sizeof(bytes), file);
    assert_int_equal(fclose(file), 0);
    assert_true(count > sizeof(weight));
    memcpy(&weight, bytes + count - sizeof(weight), sizeof(weight));
    assert_int_equal(weight, weights);
    evq_claim_free(claim);
}

static void assert_nothing_queued(struct scene *scene)
{
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 0);
    assert_int_equal(jobs_in(scene, EVQ_JOB_DELAYED), 0);
}

/*
 * Asserts that the step's job ended as skipped (overwritten), that its pin was removed, and that a
 * manual retry finds no weights for it.
 */
static void assert_overwritten(struct scene *scene, int64_t step)
{
    struct evq_error error = {.status = EVQ_OK};
    char id[EVQ_JOB_ID_BYTES_MAX];
    char *json = NULL;

    (void)snprintf(id, sizeof(id), "digits/%lld/regular/quick", (long long)step);
    assert_status_err(evq_queue_show(scene->fx->queue, id, &json, &error), EVQ_OK, &error);
    assert_non_null(strstr(json, "\"skipped\""));
    assert_non_null(strstr(json, "overwritten: "));
    free(json);
    char again[EVQ_JOB_ID_BYTES_MAX];
    assert_status_err(evq_queue_retry(scene->fx->queue, id, "", again, &error), EVQ_OK, &error);
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_int_equal(claim->job->step, step);
    // No checkpoint has this fingerprint.
    assert_int_equal(strspn(claim->job->fingerprint, "0"), 32);
    assert_string_equal(claim->job->pin, "");
    evq_claim_free(claim);
}

static void submitted(struct scene *scene, struct evalq_client *client, const char *name,
                      int64_t step)
{
    assert_int_equal(submit(scene, client, name, step), EVALQ_OK);
    assert_flushed(client);
}

static void act_before_pin(struct scene *scene, struct evalq_client *client, const char *name,
                           int64_t at_step, int64_t save_step, int64_t submit_step)
{
    before_pin.scene = scene;
    before_pin.client = client;
    before_pin.name = name;
    before_pin.save_step = save_step;
    before_pin.submit_step = submit_step;
    before_pin.at_step = at_step;
}

static void client_skips_a_step_that_was_saved_over_before_its_pin(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    save(scene, LAST, 1);
    act_before_pin(scene, client, LAST, 1, 2, 2);
    submitted(scene, client, LAST, 1);
    assert_flushed(client);
    assert_next(scene, 2, 2);
    assert_nothing_queued(scene);
    assert_overwritten(scene, 1);
    assert_int_equal(warnings_with(scene, "(step 1) is skipped as overwritten"), 1);
    evalq_client_close(client);
}

static void client_skips_a_step_whose_files_changed_before_its_pin(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    save(scene, LAST, 1);
    // The save writes the same bytes, so the fingerprint stays the same.
    act_before_pin(scene, client, LAST, 1, 1, 0);
    submitted(scene, client, LAST, 1);
    assert_nothing_queued(scene);
    assert_overwritten(scene, 1);
    save(scene, LAST, 2);
    submitted(scene, client, LAST, 2);
    assert_next(scene, 2, 2);
    evalq_client_close(client);
}

/* The second submit has no save of its own, so neither step is sure to have its weights. */
static void client_skips_a_step_submitted_over_before_its_pin(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    save(scene, LAST, 1);
    act_before_pin(scene, client, LAST, 1, 0, 2);
    submitted(scene, client, LAST, 1);
    assert_flushed(client);
    assert_nothing_queued(scene);
    assert_overwritten(scene, 1);
    assert_overwritten(scene, 2);
    // The client warns once.
    assert_int_equal(warnings_with(scene, "is skipped as overwritten"), 1);
    evalq_client_close(client);
}

/* The step is submitted before its background save has written anything. */
static void client_skips_a_step_that_was_submitted_before_its_save(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    save(scene, LAST, 1);
    submitted(scene, client, LAST, 1);
    submitted(scene, client, LAST, 2);
    save(scene, LAST, 2);
    assert_next(scene, 1, 1);
    assert_nothing_queued(scene);
    assert_overwritten(scene, 2);
    assert_int_equal(warnings_with(scene, "still holds the files of step 1"), 1);
    evalq_client_close(client);
}

static void client_evaluates_both_steps_when_pinned_in_time(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    for (int64_t step = 1; step <= 3; step++) {
        save(scene, LAST, step);
        submitted(scene, client, LAST, step);
    }
    for (int64_t step = 1; step <= 3; step++) {
        assert_next(scene, step, step);
    }
    assert_int_equal(warnings_with(scene, "as overwritten"), 0);
    evalq_client_close(client);
}

/* Adds the directory as a root. The client notices it within a second. */
static void root_add(const struct scene *scene, const char *directory)
{
    char text[256];

    (void)snprintf(text, sizeof(text), "roots:\n  test: %s\n  other: %s\n", scene->directory,
                   directory);
    fixture_file_write(scene->directory, "evalq.yaml", text);
}

/* Moves out/NAME to the path. */
static void move(const struct scene *scene, const char *name, const char *path)
{
    char from[128];

    (void)snprintf(from, sizeof(from), "%s/out/%s", scene->directory, name);
    assert_int_equal(rename(from, path), 0);
}

/*
 * The client could not check the submit in time, because its root was missing. The file was written
 * since, although no later step was submitted.
 */
static void client_skips_a_step_overwritten_before_its_check(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    const int64_t later_s = time(NULL) + 5;
    const struct timespec times[2] = {{.tv_sec = later_s}, {.tv_sec = later_s}};
    char elsewhere[64];
    char path[128];

    fixture_dir_make(elsewhere);
    (void)snprintf(path, sizeof(path), "%s/" LAST, elsewhere);
    const struct evalq_checkpoint checkpoint = {.path = path, .step = 1, .suites = "quick"};
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    save(scene, LAST, 2);
    move(scene, LAST, path);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    root_add(scene, elsewhere);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_SKIPPED) == 1);
    assert_overwritten(scene, 1);
    evalq_client_close(client);
    fixture_dir_remove(elsewhere);
}

/* The same case, but the trainer holds a copy with the step's own weights. */
static void client_evaluates_a_held_copy_that_is_checked_late(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char elsewhere[64];
    char path[128];
    char held[128];

    fixture_dir_make(elsewhere);
    (void)snprintf(path, sizeof(path), "%s/" LAST, elsewhere);
    (void)snprintf(held, sizeof(held), "%s/held.safetensors", elsewhere);
    struct evalq_checkpoint checkpoint = {.path = path, .held = held, .step = 1, .suites = "quick"};
    save(scene, LAST, 1);
    move(scene, LAST, path);
    assert_int_equal(link(path, held), 0);
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    save(scene, LAST, 2);
    move(scene, LAST, path);
    checkpoint.held = NULL;
    checkpoint.step = 2;
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    root_add(scene, elsewhere);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_QUEUED) == 2);
    assert_int_equal(warnings_with(scene, "as overwritten"), 0);
    evalq_client_close(client);
    fixture_dir_remove(elsewhere);
}

/* The file did not exist at submit. What a worker finds there later may be another step. */
static void client_skips_a_step_whose_file_was_not_there(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    assert_int_equal(submit(scene, client, LAST, 1), EVALQ_OK);
    assert_int_equal(evalq_client_flush(client, 200), EVALQ_TIMEOUT);
    atomic_store(&ahead_ms, 31000);
    FIXTURE_UNTIL(jobs_in(scene, EVQ_JOB_SKIPPED) == 1);
    // Threads that sleep by this clock would otherwise sleep for as long.
    atomic_store(&ahead_ms, 0);
    save(scene, LAST, 2);
    assert_overwritten(scene, 1);
    submitted(scene, client, LAST, 2);
    assert_next(scene, 2, 2);
    evalq_client_close(client);
}

/*
 * A path whose name contains the step may be saved after the submit, also in several parts. So may
 * a path without the step, if no other step is saved there.
 */
static void client_never_skips_steps_with_paths_of_their_own(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);

    assert_int_equal(submit(scene, client, "step-1.safetensors", 1), EVALQ_OK);
    assert_int_equal(evalq_client_flush(client, 200), EVALQ_TIMEOUT);
    save(scene, "step-1.safetensors", 1);
    assert_flushed(client);
    save(scene, "step-2.safetensors", 1);
    act_before_pin(scene, client, "step-2.safetensors", 2, 2, 0);
    submitted(scene, client, "step-2.safetensors", 2);
    save(scene, "a.safetensors", 3);
    save(scene, "b.safetensors", 4);
    assert_int_equal(submit(scene, client, "a.safetensors", 3), EVALQ_OK);
    assert_int_equal(submit(scene, client, "b.safetensors", 4), EVALQ_OK);
    // The same step is submitted again.
    assert_int_equal(submit(scene, client, "a.safetensors", 3), EVALQ_OK);
    assert_flushed(client);
    for (int64_t step = 1; step <= 4; step++) {
        assert_next(scene, step, step);
    }
    assert_int_equal(warnings_with(scene, "as overwritten"), 0);
    evalq_client_close(client);
}

/* A hard link that the trainer holds keeps the step's weights, even if the path is overwritten. */
static void client_evaluates_a_held_copy_after_an_overwrite(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char path[128];
    char held[128];

    save(scene, LAST, 1);
    (void)snprintf(path, sizeof(path), "%s/out/" LAST, scene->directory);
    (void)snprintf(held, sizeof(held), "%s/out/held.safetensors", scene->directory);
    assert_int_equal(link(path, held), 0);
    act_before_pin(scene, client, LAST, 1, 2, 2);
    const struct evalq_checkpoint checkpoint = {
        .path = path, .held = held, .step = 1, .suites = "quick"};
    assert_int_equal(evalq_client_submit(client, &checkpoint), EVALQ_OK);
    assert_flushed(client);
    assert_flushed(client);
    assert_next(scene, 1, 1);
    assert_next(scene, 2, 2);
    evalq_client_close(client);
}

static int overwrite_make(void **state)
{
    before_pin.at_step = 0;
    return scene_make(state);
}

#define OVERWRITE_TEST(name) cmocka_unit_test_setup_teardown(name, overwrite_make, scene_free)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVERWRITE_TEST(client_skips_a_step_that_was_saved_over_before_its_pin),
        OVERWRITE_TEST(client_skips_a_step_whose_files_changed_before_its_pin),
        OVERWRITE_TEST(client_skips_a_step_submitted_over_before_its_pin),
        OVERWRITE_TEST(client_skips_a_step_that_was_submitted_before_its_save),
        OVERWRITE_TEST(client_evaluates_both_steps_when_pinned_in_time),
        OVERWRITE_TEST(client_skips_a_step_overwritten_before_its_check),
        OVERWRITE_TEST(client_evaluates_a_held_copy_that_is_checked_late),
        OVERWRITE_TEST(client_skips_a_step_whose_file_was_not_there),
        OVERWRITE_TEST(client_never_skips_steps_with_paths_of_their_own),
        OVERWRITE_TEST(client_evaluates_a_held_copy_after_an_overwrite),
    };
    scene_clear_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
