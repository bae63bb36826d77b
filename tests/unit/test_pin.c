/*
 * Pins: reflink, else hard link, else copy, else none; budget, release, gc, and what lies in
 * directories.
 */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include <cmocka.h>

#include "producer/client/pins/pin.h"
#include "producer/client/pins/tree_copy.h"
#include "tests/fixture/check.h"
#include "tests/fixture/redis.h"

#define SCENE_PATH_BYTES (PATH_MAX + 128)
#define JOB              "digits/100/regular/quick"

struct scene {
    char root[64];
    const char *jobs[2];
};

static int scene_make(void **state)
{
    struct scene *scene = calloc(1, sizeof(*scene));
    char path[128];

    assert_non_null(scene);
    strcpy(scene->root, "/tmp/evalq-pin-XXXXXX");
    assert_non_null(mkdtemp(scene->root));
    snprintf(path, sizeof(path), "%s/out", scene->root);
    assert_int_equal(mkdir(path, 0755), 0);
    scene->jobs[0] = JOB;
    scene->jobs[1] = "digits/100/regular/full";
    *state = scene;
    return 0;
}

static int scene_free(void **state)
{
    struct scene *scene = *state;

    assert_status(evq_tree_remove(AT_FDCWD, scene->root, NULL), EVQ_OK);
    free(scene);
    return 0;
}

static void path_of(const struct scene *scene, const char *below, char out[SCENE_PATH_BYTES])
{
    snprintf(out, SCENE_PATH_BYTES, "%s/%s", scene->root, below);
}

static void file_write(const struct scene *scene, const char *below, const char *text)
{
    char path[SCENE_PATH_BYTES];

    path_of(scene, below, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_file(const struct scene *scene, const char *below, const char *text)
{
    char path[SCENE_PATH_BYTES];
    char got[256] = "";

    path_of(scene, below, path);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fail_msg("'%s' is not there", path);
    }
    size_t bytes = fread(got, 1, sizeof(got) - 1, file);
    got[bytes] = '\0';
    fclose(file);
    assert_string_equal(got, text);
}

static ino_t inode(const struct scene *scene, const char *below)
{
    struct stat info;
    char path[SCENE_PATH_BYTES];

    path_of(scene, below, path);
    assert_int_equal(stat(path, &info), 0);
    return info.st_ino;
}

static bool there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static struct evq_pin_request request_of(const struct scene *scene, const char *path)
{
    return (struct evq_pin_request){.root_path = scene->root,
                                    .path = path,
                                    .queue = "main",
                                    .run = "digits",
                                    .step = 100,
                                    .variant = "regular",
                                    .fingerprint = "00112233445566778899aabbccddeeff",
                                    .jobs = scene->jobs,
                                    .job_count = 1,
                                    .reflink = true,
                                    .hard_link = true,
                                    .copy_bytes_max = 1 << 20};
}

static struct evq_pin pin_make(const struct evq_pin_request *request)
{
    struct evq_error error = {.status = EVQ_OK};
    struct evq_pin pin;

    assert_status_err(evq_pin_make(request, &pin, &error), EVQ_OK, &error);
    return pin;
}

/* Entries of out/.evalq/pins, whole or half. */
static int pins_there(const struct scene *scene)
{
    char path[SCENE_PATH_BYTES];
    int count = 0;

    path_of(scene, "out/.evalq/pins", path);
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return 0;
    }
    struct dirent *entry = NULL;
    while ((entry = readdir(dir)) != NULL) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(dir);
    return count;
}

static void pin_links_when_each_step_has_its_own_file(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");
    char original[SCENE_PATH_BYTES];

    file_write(scene, "out/step-100.pt", "weights");
    struct evq_pin pin = pin_make(&request);
    // This file system may clone; either way nothing was copied.
    assert_true(pin.kind == EVQ_PIN_REFLINK || pin.kind == EVQ_PIN_HARD_LINK);
    assert_int_equal(pin.copied_bytes, 0);
    assert_false(pin.found);
    assert_holds(pin.path, "out/.evalq/pins/100-regular-");
    path_of(scene, "out/step-100.pt", original);
    assert_int_equal(unlink(original), 0);
    assert_file(scene, pin.path, "weights");
}

static void pin_copies_when_path_may_be_written_again(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/last.pt");

    file_write(scene, "out/last.pt", "first");
    request.reflink = false;
    request.hard_link = evq_pin_hard_link_safe(request.path, 100);
    assert_false(request.hard_link);
    struct evq_pin pin = pin_make(&request);
    assert_int_equal(pin.kind, EVQ_PIN_COPY);
    assert_int_equal(pin.copied_bytes, 5);
    assert_int_not_equal(inode(scene, pin.path), inode(scene, "out/last.pt"));
    file_write(scene, "out/last.pt", "later"); // In place.
    assert_file(scene, pin.path, "first");
}

static void pin_falls_back_to_link_when_it_cannot_clone(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");

    file_write(scene, "out/step-100.pt", "weights");
    request.reflink = false;
    struct evq_pin pin = pin_make(&request);
    assert_int_equal(pin.kind, EVQ_PIN_HARD_LINK);
    assert_int_equal(inode(scene, pin.path), inode(scene, "out/step-100.pt"));
}

/* Whoever is told need not try the next one: it is said of a file system alone that clones nothing.
 */
static void pin_tells_where_nothing_can_be_cloned(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");

    file_write(scene, "out/step-100.pt", "weights");
    struct evq_pin pin = pin_make(&request);
    assert_int_equal(pin.lacks_reflink, pin.kind != EVQ_PIN_REFLINK);
    file_write(scene, "out/step-200.pt", "weights of another step");
    request = request_of(scene, "out/step-200.pt");
    request.step = 200;
    request.reflink = false;
    pin = pin_make(&request);
    assert_int_equal(pin.kind, EVQ_PIN_HARD_LINK);
    assert_false(pin.lacks_reflink); // It was not tried.
}

static void pin_fails_whole_when_copy_is_over_budget(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/last");
    struct evq_error error = {.status = EVQ_OK};
    struct evq_pin pin;
    char path[SCENE_PATH_BYTES];

    path_of(scene, "out/last", path);
    assert_int_equal(mkdir(path, 0755), 0);
    file_write(scene, "out/last/a", "12345");
    file_write(scene, "out/last/b", "12345");
    request.reflink = false;
    request.hard_link = false;
    request.copy_bytes_max = 9;
    assert_status(evq_pin_make(&request, &pin, &error), EVQ_E_FULL);
    assert_holds(error.message, "pin_bytes_max");
    assert_int_equal(pins_there(scene), 0);
    request.copy_bytes_max = 10;
    pin = pin_make(&request);
    assert_int_equal(pin.copied_bytes, 10);
}

static bool stop_at_once(const void *context)
{
    (void)context;
    return true;
}

static void pin_leaves_nothing_when_stopped_or_gone(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/last.pt");
    struct evq_pin pin;

    assert_status(evq_pin_make(&request, &pin, NULL), EVQ_E_GONE);
    file_write(scene, "out/last.pt", "weights");
    request.reflink = false;
    request.hard_link = false;
    request.stopped = stop_at_once;
    assert_status(evq_pin_make(&request, &pin, NULL), EVQ_E_STOPPED);
    assert_int_equal(pins_there(scene), 0);
    request.path = ".";
    assert_status(evq_pin_make(&request, &pin, NULL), EVQ_E_UNSUPPORTED);
}

static void pin_holds_every_file_when_checkpoint_is_a_directory(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/checkpoint-100");
    char path[SCENE_PATH_BYTES];
    char below[SCENE_PATH_BYTES];

    path_of(scene, "out/checkpoint-100", path);
    assert_int_equal(mkdir(path, 0755), 0);
    path_of(scene, "out/checkpoint-100/shards", path);
    assert_int_equal(mkdir(path, 0755), 0);
    path_of(scene, "out/shared", path);
    assert_int_equal(mkdir(path, 0755), 0);
    file_write(scene, "out/shared/tokenizer.json", "words");
    file_write(scene, "out/checkpoint-100/config.json", "{}");
    file_write(scene, "out/checkpoint-100/shards/0.bin", "zero");
    file_write(scene, "out/checkpoint-100/shards/1.bin", "one");
    path_of(scene, "out/checkpoint-100/tokenizer.json", path);
    assert_int_equal(symlink("../shared/tokenizer.json", path), 0); // Within the root: followed.
    path_of(scene, "out/checkpoint-100/pipe", path);
    assert_int_equal(mkfifo(path, 0600), 0); // Must not hang.

    struct evq_pin pin = pin_make(&request);
    const char *names[] = {"config.json", "shards/0.bin", "shards/1.bin", "tokenizer.json"};
    const char *texts[] = {"{}", "zero", "one", "words"};
    for (int at = 0; at < 4; at++) {
        snprintf(below, sizeof(below), "%s/%s", pin.path, names[at]);
        assert_file(scene, below, texts[at]);
    }
    assert_status(evq_pin_release(pin.directory, NULL), EVQ_OK);
    assert_false(there(pin.directory));
    assert_file(scene, "out/checkpoint-100/shards/1.bin", "one"); // The original is untouched.
    assert_status(evq_pin_release(pin.directory, NULL), EVQ_OK);  // Again: no error.
}

static void pin_refuses_link_that_leaves_the_root(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/checkpoint-100");
    struct evq_pin pin;
    char path[SCENE_PATH_BYTES];

    path_of(scene, "out/checkpoint-100", path);
    assert_int_equal(mkdir(path, 0755), 0);
    file_write(scene, "out/checkpoint-100/config.json", "{}");
    path_of(scene, "out/checkpoint-100/secret", path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_not_equal(evq_pin_make(&request, &pin, NULL), EVQ_OK);
    assert_int_equal(pins_there(scene), 0);
}

static void pin_is_found_again_when_checkpoint_is_the_same(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");

    file_write(scene, "out/step-100.pt", "weights");
    struct evq_pin first = pin_make(&request);
    struct evq_pin second = pin_make(&request);
    assert_true(second.found);
    assert_string_equal(first.directory, second.directory);
    assert_int_equal(pins_there(scene), 1);
    request.fingerprint = "ffffffffffffffffffffffffffffffff";
    struct evq_pin other = pin_make(&request);
    assert_false(other.found);
    assert_string_not_equal(first.directory, other.directory);
}

/* The queue's word on each job. */
struct states {
    enum evq_pin_job quick;
    enum evq_pin_job full;
    int asked;
    const struct evq_pin_request *wanted; // While the queue is asked, another process wants it.
    const char *epoch;
};

static enum evq_pin_job state_of(void *context, const char *queue, const char *job,
                                 const char *epoch)
{
    struct states *states = context;

    states->asked++;
    assert_string_equal(queue, "main");
    if (states->epoch != NULL) {
        assert_string_equal(epoch, states->epoch);
    }
    if (states->wanted != NULL) {
        assert_true(pin_make(states->wanted).found);
    }
    return strstr(job, "quick") != NULL ? states->quick : states->full;
}

static bool released(const struct evq_pin *pin, struct states *states, int64_t unsent_ms)
{
    bool gone = false;

    assert_status(
        evq_pin_release_if_ended(pin->directory, state_of, states, unsent_ms, &gone, NULL), EVQ_OK);
    assert_int_equal(gone, !there(pin->directory));
    return gone;
}

static void pin_is_released_when_all_its_jobs_ended(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");
    struct states states = {.quick = EVQ_PIN_JOB_ENDED, .full = EVQ_PIN_JOB_ENDED};

    file_write(scene, "out/step-100.pt", "weights");
    request.job_count = 2;
    struct evq_pin pin = pin_make(&request);
    assert_false(released(&pin, &states, -1)); // Not sent yet.
    assert_int_equal(states.asked, 0);
    assert_status(evq_pin_note_sent(pin.directory, JOB, JOB "~2", "e1", NULL), EVQ_OK);
    assert_false(released(&pin, &states, -1)); // The other is not.
    assert_status(evq_pin_note_sent(pin.directory, request.jobs[1], request.jobs[1], "e1", NULL),
                  EVQ_OK);
    states.full = EVQ_PIN_JOB_UNKNOWN;
    assert_false(released(&pin, &states, -1)); // Redis is away: nobody knows.
    states.full = EVQ_PIN_JOB_OPEN;
    assert_false(released(&pin, &states, -1));
    states.full = EVQ_PIN_JOB_ENDED;
    assert_true(released(&pin, &states, -1));
    assert_true(released(&pin, &states, -1)); // Gone is released.
}

static void pin_is_released_when_its_job_was_refused_or_never_sent(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");
    struct states states = {.quick = EVQ_PIN_JOB_OPEN, .full = EVQ_PIN_JOB_OPEN};

    file_write(scene, "out/step-100.pt", "weights");
    struct evq_pin pin = pin_make(&request);
    assert_status(evq_pin_note_refused(pin.directory, JOB, NULL), EVQ_OK);
    assert_true(released(&pin, &states, -1));
    pin = pin_make(&request);
    assert_false(released(&pin, &states, 3600000));
    int64_t end = fixture_now_ms() + fixture_patience_ms();
    while (!released(&pin, &states, 1)) { // A millisecond after it was made.
        fixture_tick(end, "the pin grows old", __FILE__, __LINE__);
    }
}

/* The job ended, its pin is about to go, and the same checkpoint is submitted again. */
static void pin_stays_when_it_is_wanted_again_after_its_job_ended(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");
    struct states states = {.quick = EVQ_PIN_JOB_ENDED};

    file_write(scene, "out/step-100.pt", "weights");
    struct evq_pin pin = pin_make(&request);
    assert_status(evq_pin_note_sent(pin.directory, JOB, JOB, "e1", NULL), EVQ_OK);
    assert_true(pin_make(&request).found);
    assert_false(released(&pin, &states, -1)); // What was sent before says nothing of this one.
    assert_int_equal(states.asked, 0);
    assert_status(evq_pin_note_sent(pin.directory, JOB, JOB "~2", "e1", NULL), EVQ_OK);
    states.epoch = "e1";
    states.wanted = &request; // Another process, between the question and the removal.
    assert_false(released(&pin, &states, -1));
    states.wanted = NULL;
    assert_status(evq_pin_note_sent(pin.directory, JOB, JOB "~3", "e1", NULL), EVQ_OK);
    assert_true(released(&pin, &states, -1));
}

static void pin_stays_when_its_job_was_lost(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");
    struct states states = {.quick = EVQ_PIN_JOB_LOST};
    struct evq_buffer message;

    file_write(scene, "out/step-100.pt", "weights");
    struct evq_pin pin = pin_make(&request);
    assert_status(evq_pin_message_keep(pin.directory, JOB, "record", 6, NULL), EVQ_OK);
    assert_status(evq_pin_note_sent(pin.directory, JOB, JOB, "e1", NULL), EVQ_OK);
    assert_false(released(&pin, &states, -1));
    assert_false(released(&pin, &states, 3600000));
    evq_buffer_init(&message, 0);
    assert_status(evq_pin_message_read(pin.directory, JOB "~2", &message, NULL), EVQ_E_NOT_FOUND);
    assert_status(evq_pin_message_read(pin.directory, JOB, &message, NULL), EVQ_OK);
    assert_string_equal(evq_buffer_string(&message), "record");
    evq_buffer_free(&message);
    int64_t end = fixture_now_ms() + fixture_patience_ms();
    while (!released(&pin, &states, 1)) {
        fixture_tick(end, "the pin grows old", __FILE__, __LINE__);
    }
}

static void pin_refuses_to_be_made_out_of_the_root(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");
    struct evq_error error;
    struct evq_pin pin;
    char link[SCENE_PATH_BYTES];
    char elsewhere[64];

    fixture_dir_make(elsewhere);
    file_write(scene, "out/step-100.pt", "weights");
    path_of(scene, "out/.evalq", link);
    assert_int_equal(symlink(elsewhere, link), 0);
    assert_status(evq_pin_make(&request, &pin, &error), EVQ_E_UNSUPPORTED);
    assert_holds(error.message, "leads out of the root");
    fixture_dir_remove(elsewhere);
}

/* The trainer deleted the checkpoint; what was held beside it is pinned in its name. */
static void pin_takes_another_source_in_the_checkpoints_name(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");

    file_write(scene, "out/elsewhere.pt", "weights");
    request.source = "out/elsewhere.pt";
    struct evq_pin pin = pin_make(&request);
    assert_holds(pin.path, "/step-100.pt");
    assert_file(scene, pin.path, "weights");
}

static void pin_gc_takes_what_ended_and_half_made(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");
    struct states states = {.quick = EVQ_PIN_JOB_ENDED, .full = EVQ_PIN_JOB_OPEN};
    char output[SCENE_PATH_BYTES];
    char half[SCENE_PATH_BYTES];
    int64_t gone = 0;
    int64_t left = 0;

    path_of(scene, "out", output);
    assert_status(evq_pin_gc(output, NULL, state_of, &states, -1, &gone, &left, NULL), EVQ_OK);
    file_write(scene, "out/step-100.pt", "weights");
    struct evq_pin ended = pin_make(&request);
    request.fingerprint = "ffffffffffffffffffffffffffffffff";
    request.jobs = &scene->jobs[1];
    struct evq_pin open = pin_make(&request);
    assert_status(evq_pin_note_sent(ended.directory, JOB, JOB, "", NULL), EVQ_OK);
    assert_status(evq_pin_note_sent(open.directory, request.jobs[0], request.jobs[0], "", NULL),
                  EVQ_OK);
    path_of(scene, "out/.evalq/pins/.half-1", half);
    assert_int_equal(mkdir(half, 0755), 0);
    assert_status(evq_pin_gc(output, "other", state_of, &states, -1, &gone, &left, NULL), EVQ_OK);
    assert_int_equal(gone + left, 0); // Another queue's.
    assert_true(there(half));         // Perhaps being made now.
    const struct utimbuf old = {1, 1};
    assert_int_equal(utime(half, &old), 0);
    assert_status(evq_pin_gc(output, "main", state_of, &states, -1, &gone, &left, NULL), EVQ_OK);
    assert_int_equal(gone, 1);
    assert_int_equal(left, 1);
    assert_false(there(half));
    assert_false(there(ended.directory));
    assert_true(there(open.directory));
    states.full = EVQ_PIN_JOB_ENDED;
    assert_status(evq_pin_gc(output, NULL, state_of, &states, -1, &gone, &left, NULL), EVQ_OK);
    path_of(scene, "out/.evalq", half);
    assert_false(there(half)); // Empty: gone, too.
}

static void pin_survives_torn_record_line(void **state)
{
    struct scene *scene = *state;
    struct evq_pin_request request = request_of(scene, "out/step-100.pt");
    struct states states = {.quick = EVQ_PIN_JOB_ENDED, .full = EVQ_PIN_JOB_ENDED};
    char path[SCENE_PATH_BYTES];

    file_write(scene, "out/step-100.pt", "weights");
    struct evq_pin pin = pin_make(&request);
    snprintf(path, sizeof(path), "%s/.pin", pin.directory);
    FILE *file = fopen(path, "a");
    assert_true(fputs("sent " JOB " " JOB, file) >= 0); // No newline: the writer died.
    assert_int_equal(fclose(file), 0);
    assert_false(released(&pin, &states, -1));
}

static void pin_links_only_where_the_path_holds_the_step(void **state)
{
    (void)state;
    assert_true(evq_pin_hard_link_safe("out/checkpoint-100", 100));
    assert_true(evq_pin_hard_link_safe("out/step-000100.safetensors", 100));
    assert_true(evq_pin_hard_link_safe("out/epoch=1-step=100.ckpt", 100));
    assert_true(evq_pin_hard_link_safe("out/global_step100/model.pt", 100));
    assert_true(evq_pin_hard_link_safe("100", 100));
    assert_true(evq_pin_hard_link_safe("out/step0.pt", 0));
    assert_false(evq_pin_hard_link_safe("out/last.pt", 100));
    assert_false(evq_pin_hard_link_safe("out/model.safetensors", 0));
    assert_false(evq_pin_hard_link_safe("out/checkpoint-1000", 100));
    assert_false(evq_pin_hard_link_safe("out/checkpoint-2100", 100));
    assert_false(evq_pin_hard_link_safe("run-100/out/last.pt", 100));
    assert_false(evq_pin_hard_link_safe("", 100));
}

int main(void)
{
#define PIN_TEST(name) cmocka_unit_test_setup_teardown(name, scene_make, scene_free)
    const struct CMUnitTest tests[] = {
        PIN_TEST(pin_links_when_each_step_has_its_own_file),
        PIN_TEST(pin_copies_when_path_may_be_written_again),
        PIN_TEST(pin_falls_back_to_link_when_it_cannot_clone),
        PIN_TEST(pin_tells_where_nothing_can_be_cloned),
        PIN_TEST(pin_fails_whole_when_copy_is_over_budget),
        PIN_TEST(pin_leaves_nothing_when_stopped_or_gone),
        PIN_TEST(pin_holds_every_file_when_checkpoint_is_a_directory),
        PIN_TEST(pin_refuses_link_that_leaves_the_root),
        PIN_TEST(pin_is_found_again_when_checkpoint_is_the_same),
        PIN_TEST(pin_is_released_when_all_its_jobs_ended),
        PIN_TEST(pin_is_released_when_its_job_was_refused_or_never_sent),
        PIN_TEST(pin_stays_when_it_is_wanted_again_after_its_job_ended),
        PIN_TEST(pin_stays_when_its_job_was_lost),
        PIN_TEST(pin_refuses_to_be_made_out_of_the_root),
        PIN_TEST(pin_takes_another_source_in_the_checkpoints_name),
        PIN_TEST(pin_gc_takes_what_ended_and_half_made),
        PIN_TEST(pin_survives_torn_record_line),
        cmocka_unit_test(pin_links_only_where_the_path_holds_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
