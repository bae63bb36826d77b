/*
 * The event file of one run: at every moment, also after a kill, the directory holds one file with
 * ascending steps and each flushed point once. So every reader of TensorBoard shows the same curve.
 */
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "logger/tensorboard/event_file.h"
#include "logger/tensorboard/event_reader.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "tests/fixture/limit.h"
#include "tests/fixture/random.h"

#define TAG         "eval/acc"
#define STEPS       200
#define SHOWN_MAX   40000
#define DEADLINE_MS 20000

static char directory[] = "/tmp/evalq-event-file-XXXXXX";

struct shown { // The points that a reader finds, in file order.
    int64_t steps[SHOWN_MAX];
    float values[SHOWN_MAX];
    size_t count;
    char path[PATH_MAX];
    off_t bytes;
};
static struct shown shown;

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static int setup(void **state)
{
    (void)state;
    (void)strcpy(directory + sizeof(directory) - 7, "XXXXXX");
    return mkdtemp(directory) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return nftw(directory, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Reads the one event file of the directory. Its steps must ascend. */
static void load(void)
{
    struct evq_event_reader reader;
    struct evq_error err;
    struct stat info;
    char **names = NULL;
    size_t count = 0;
    bool found = true;

    shown.count = 0;
    assert_int_equal(evq_event_names(directory, &names, &count, &err), EVQ_OK);
    assert_int_equal(count, 1);
    (void)snprintf(shown.path, sizeof(shown.path), "%s/%s", directory, names[0]);
    evq_event_names_free(names, count);
    int fd = open(shown.path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    shown.bytes = info.st_size;
    evq_event_reader_init(&reader, fd);
    while (found) {
        assert_int_equal(evq_event_reader_next(&reader, &found, &err), EVQ_OK);
        if (found && reader.event.tag[0] != '\0') {
            assert_string_equal(reader.event.tag, TAG);
            assert_true(shown.count < SHOWN_MAX);
            assert_true(shown.count == 0 || reader.event.step > shown.steps[shown.count - 1]);
            shown.steps[shown.count] = reader.event.step;
            shown.values[shown.count] = reader.event.value;
            shown.count++;
        }
    }
    assert_true(reader.offset == info.st_size); // No torn record, which no reader passes.
    evq_event_reader_free(&reader);
    evq_file_close(&fd);
}

static struct evq_event_file *opened(void)
{
    struct evq_event_file *file = NULL;
    struct evq_error err;

    assert_int_equal(evq_event_file_open(directory, &file, &err), EVQ_OK);
    return file;
}

static enum evq_status add(struct evq_event_file *file, int64_t step, double wall_seconds,
                           float value)
{
    struct evq_error err;
    const struct evq_point point = {step, wall_seconds, value};

    return evq_event_file_put(file, TAG, &point, &err);
}

static enum evq_status flushed(struct evq_event_file *file)
{
    struct evq_error err;

    return evq_event_file_flush(file, &err);
}

static void put(struct evq_event_file *file, int64_t step)
{
    assert_int_equal(add(file, step, 1000.0 + (double)step, (float)step * 0.5f), EVQ_OK);
    assert_int_equal(flushed(file), EVQ_OK);
}

static void assert_complete(void)
{
    load();
    assert_int_equal(shown.count, STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        assert_true(shown.steps[i] == (int64_t)i);
        assert_true(shown.values[i] == (float)i * 0.5f);
    }
}

static void event_file_is_sorted_at_every_moment_whatever_order_with_kills_between(void **state)
{
    (void)state;
    int64_t order[STEPS];
    size_t kills = 0;
    uint64_t random = fixture_seed();

    for (int64_t i = 0; i < STEPS; i++) {
        order[i] = i;
    }
    for (size_t i = STEPS - 1; i > 0; i--) {
        size_t other = (size_t)(evq_clock_jitter_ms(&random, 1000000, 90)) % (i + 1);
        int64_t moved = order[i];
        order[i] = order[other];
        order[other] = moved;
    }
    struct evq_event_file *file = opened();
    for (size_t i = 0; i < STEPS; i++) {
        put(file, order[i]);
        load(); // It asserts that the steps ascend.
        assert_int_equal(shown.count, i + 1);
        if (i % 7 == 3) { // A kill: nothing more is written, and the last point comes again.
            evq_event_file_close(file);
            file = opened();
            put(file, order[i]);
            kills++;
        }
    }
    evq_event_file_close(file);
    assert_true(kills > 20);
    assert_complete();
}

static void event_file_writes_nothing_for_a_repeated_point(void **state)
{
    (void)state;
    char path[PATH_MAX];
    struct evq_event_file *file = opened();

    for (int64_t step = 0; step < STEPS; step++) {
        put(file, step);
    }
    load();
    (void)snprintf(path, sizeof(path), "%s", shown.path);
    for (int64_t step = 0; step < STEPS; step += 7) {
        put(file, step);
    }
    evq_event_file_close(file);
    assert_complete();
    assert_string_equal(shown.path, path); // A rewrite would have changed the name.
}

static void event_file_survives_a_torn_tail_at_every_byte(void **state)
{
    (void)state;
    char torn[PATH_MAX];
    struct evq_event_file *file = opened();

    put(file, 0);
    put(file, 1);
    evq_event_file_close(file);
    load();
    for (off_t bytes = shown.bytes - 1; bytes >= 0; bytes--) {
        assert_int_equal(truncate(shown.path, bytes), 0);
        (void)snprintf(torn, sizeof(torn), "%s", shown.path);
        file = opened();
        put(file, 0); // Both come again: neither was acknowledged.
        put(file, 1);
        evq_event_file_close(file);
        load();
        assert_int_equal(shown.count, 2);
        assert_string_not_equal(shown.path, torn); // A TensorBoard that looks on reads it anew.
    }
}

/* The disk becomes full in the middle of a record. */
static void event_file_writes_nothing_behind_a_torn_record(void **state)
{
    (void)state;
    struct evq_event_file *file = opened();

    put(file, 0);
    load();
    fixture_limit_files((uint64_t)shown.bytes + 10);
    assert_int_equal(add(file, 1, 1001.0, 0.5f), EVQ_OK);
    assert_int_equal(flushed(file), EVQ_E_IO);
    fixture_limit_files(UINT64_MAX);
    evq_event_file_close(file);
    file = opened();
    put(file, 1);
    evq_event_file_close(file);
    load();
    assert_int_equal(shown.count, 2);
}

/* The disk becomes full during a rewrite: the old file stays as it was. */
static void event_file_stays_whole_when_a_rewrite_fails(void **state)
{
    (void)state;
    struct evq_event_file *file = opened();

    for (int64_t step = 1; step < STEPS; step++) {
        put(file, step);
    }
    load();
    fixture_limit_files((uint64_t)shown.bytes / 2);
    assert_int_equal(add(file, 0, 1000.0, 0.0f), EVQ_OK);
    assert_int_equal(flushed(file), EVQ_E_IO);
    fixture_limit_files(UINT64_MAX);
    evq_event_file_close(file);
    load();
    assert_int_equal(shown.count, STEPS - 1);
    file = opened();
    put(file, 0);
    evq_event_file_close(file);
    assert_complete();
}

/* Damage at its beginning makes the rest of a large file worthless, but not the run. */
static void event_file_opens_where_a_large_file_is_damaged(void **state)
{
    (void)state;
    struct evq_event_file *file = opened();

    put(file, 0);
    evq_event_file_close(file);
    load();
    const int fd = open(shown.path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "damage", 6, 0), 6);
    (void)close(fd);
    assert_int_equal(truncate(shown.path, 3 * (off_t)EVQ_TFEVENT_RECORD_BYTES_MAX), 0);
    file = opened();
    put(file, 0);
    evq_event_file_close(file);
    load();
    assert_int_equal(shown.count, 1);
}

/* 30,000 late points at once cost one rewrite, and the next late point waits for a while. */
static void event_file_rewrites_once_for_a_burst_of_late_points(void **state)
{
    (void)state;
    enum { MANY = 30000, RECORD_BYTES_MAX = 64 };
    char path[PATH_MAX];
    struct evq_event_file *file = opened();

    put(file, MANY);
    assert_false(evq_event_file_defers(file, TAG, 1)); // There was no rewrite yet.
    for (int64_t step = MANY - 1; step > 1; step--) {
        assert_int_equal(add(file, step, 1000.0, 0.5f), EVQ_OK);
        assert_false(evq_event_file_defers(file, TAG, 1)); // It joins the others.
    }
    load();
    assert_int_equal(shown.count, 1);
    assert_int_equal(flushed(file), EVQ_OK);
    assert_true(evq_event_file_defers(file, TAG, 1));         // Asked at once: it ends soon.
    assert_false(evq_event_file_defers(file, TAG, MANY + 1)); // A point in order never waits.
    assert_false(evq_event_file_defers(file, "eval/other", 1));
    load();
    assert_int_equal(shown.count, MANY - 1);
    assert_true(shown.bytes < MANY * RECORD_BYTES_MAX);
    (void)snprintf(path, sizeof(path), "%s", shown.path);
    const int64_t deadline_ms = evq_clock_mono_ms() + DEADLINE_MS;
    while (evq_event_file_defers(file, TAG, 1) && evq_clock_left_ms(deadline_ms) > 0) {
    }
    assert_false(evq_event_file_defers(file, TAG, 1));
    put(file, 1);
    evq_event_file_close(file);
    load();
    assert_int_equal(shown.count, MANY);
    assert_string_not_equal(shown.path, path); // TensorBoard reads it anew under another name.
}

/* More late points than memory holds are merged in parts. */
static void event_file_bounds_the_late_points_in_memory(void **state)
{
    (void)state;
    enum { MANY = 70000 };
    struct evq_event_file *file = opened();

    put(file, 10);
    for (int64_t i = 0; i < MANY; i++) {
        assert_int_equal(add(file, i % 10, 1000.0, 0.5f), EVQ_OK);
    }
    load();
    assert_int_equal(shown.count, 11); // Written before any flush.
    evq_event_file_close(file);
}

static void event_file_replaces_a_step_only_by_a_newer_result(void **state)
{
    (void)state;
    struct evq_event_file *file = opened();

    put(file, 5);
    put(file, 6);
    assert_int_equal(add(file, 5, 1500.0, 7.0f), EVQ_OK);
    assert_int_equal(add(file, 5, 2000.0, 9.0f), EVQ_OK);
    assert_int_equal(add(file, 5, 1700.0, 8.0f), EVQ_OK);
    assert_int_equal(flushed(file), EVQ_OK);
    assert_int_equal(add(file, 5, 1900.0, 1.0f), EVQ_OK);
    assert_int_equal(flushed(file), EVQ_OK);
    evq_event_file_close(file);
    load();
    assert_int_equal(shown.count, 2);
    assert_true(shown.values[0] == 9.0f);
    assert_true(shown.values[1] == 3.0f);
}

static void event_file_flush_fails_when_its_directory_is_gone(void **state)
{
    (void)state;
    struct evq_event_file *file = opened();

    assert_int_equal(rmdir(directory), 0);
    assert_int_equal(add(file, 1, 1001.0, 0.5f), EVQ_OK);
    assert_int_equal(flushed(file), EVQ_E_IO);
    evq_event_file_close(file);
    assert_int_equal(mkdir(directory, 0755), 0);
    file = opened();
    put(file, 1);
    load();
    assert_int_equal(unlink(shown.path), 0);
    assert_int_equal(add(file, 2, 1002.0, 1.0f), EVQ_OK);
    assert_int_equal(flushed(file), EVQ_E_GONE); // Nobody would find what was written.
    evq_event_file_close(file);
}

static void foreign_file(const char *name, const int64_t *steps, size_t count)
{
    struct evq_buffer out;
    char path[PATH_MAX];
    struct evq_error err;

    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    evq_buffer_init(&out, 0);
    evq_tfevent_version(&out, 1.0);
    for (size_t i = 0; i < count; i++) {
        evq_tfevent_scalar(&out, 1000.0 + (double)steps[i], steps[i], TAG, (float)steps[i] * 0.5f);
    }
    assert_int_equal(evq_file_replace(path, out.data, out.bytes, 0644, &err), EVQ_OK);
    evq_buffer_free(&out);
}

/* Nobody but evalq may write its event files: guessing which points count would change a curve. */
static void event_file_refuses_files_of_others(void **state)
{
    (void)state;
    static const int64_t unsorted[] = {1, 3, 2, 3};
    static const int64_t steps[] = {0, 1, 2, 3, 4};
    struct evq_event_file *file = NULL;
    struct evq_error err;

    foreign_file("events.out.tfevents.1000000000.h.1.0.evalq", unsorted, 4);
    assert_int_equal(evq_event_file_open(directory, &file, &err), EVQ_E_CORRUPT);
    assert_non_null(strstr(err.message, "step 2 of a tag comes after step 3"));
    foreign_file("events.out.tfevents.1000000000.h.1.0.evalq", steps, 5);
    foreign_file(".evalq-compact.tmp", unsorted, 4); // A rewrite that a kill ended is of no use.
    foreign_file("events.out.tfevents.1000000000.h.1.0", unsorted, 4); // The training's own.
    file = opened();
    for (int64_t step = 5; step < STEPS; step++) {
        put(file, step);
    }
    evq_event_file_close(file);
    assert_complete();
    foreign_file("events.out.tfevents.3000000000.h.1.0.evalq", steps, 5);
    file = NULL;
    assert_int_equal(evq_event_file_open(directory, &file, &err), EVQ_E_CORRUPT);
    assert_non_null(strstr(err.message, "has 2 event files of evalq, expected one"));
    assert_null(file);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(event_file_is_sorted_at_every_moment_whatever_order_with_kills_between),
        TEST(event_file_writes_nothing_for_a_repeated_point),
        TEST(event_file_survives_a_torn_tail_at_every_byte),
        TEST(event_file_writes_nothing_behind_a_torn_record),
        TEST(event_file_stays_whole_when_a_rewrite_fails),
        TEST(event_file_opens_where_a_large_file_is_damaged),
        TEST(event_file_rewrites_once_for_a_burst_of_late_points),
        TEST(event_file_bounds_the_late_points_in_memory),
        TEST(event_file_replaces_a_step_only_by_a_newer_result),
        TEST(event_file_flush_fails_when_its_directory_is_gone),
        TEST(event_file_refuses_files_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
