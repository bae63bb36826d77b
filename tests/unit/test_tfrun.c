/*
 * Event files of one run, read back as TensorBoard's fast loader reads them: a record whose step is
 * not above the last of its tag drops every stored point at or after that step
 * (tensorboard/data/server/reservoir.rs).
 */
#include <dirent.h>
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

#include "logger/tensorboard/tfevent.h"
#include "logger/tensorboard/tfrun.h"
#include "shared/base/clock.h"
#include "tests/fixture/limit.h"
#include "tests/fixture/random.h"

#define STEPS 200

static char directory[] = "/tmp/evalq-tfrun-XXXXXX";

struct shown { // What a loader ends up with for one tag.
    int64_t steps[4 * STEPS];
    float values[4 * STEPS];
    size_t count;
    size_t preempted;
};

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

static int by_name(const void *a, const void *b)
{
    return strcmp((const char *)a, (const char *)b);
}

static size_t files(char names[][NAME_MAX + 1])
{
    size_t count = 0;
    DIR *handle = opendir(directory);

    assert_non_null(handle);
    for (struct dirent *entry; (entry = readdir(handle)) != NULL;) {
        if (strstr(entry->d_name, "tfevents") != NULL) {
            (void)snprintf(names[count++], NAME_MAX + 1, "%s", entry->d_name);
        }
    }
    (void)closedir(handle);
    qsort(names, count, NAME_MAX + 1, by_name);
    return count;
}

static void shown_take(struct shown *shown, const struct evq_tfevent *event)
{
    while (shown->count > 0 && shown->steps[shown->count - 1] >= event->step) {
        shown->count--;
        shown->preempted++;
    }
    shown->steps[shown->count] = event->step;
    shown->values[shown->count] = event->value;
    shown->count++;
}

/* Reads all files as a cold fast loader does; a bad record ends its file. */
static void load(struct shown *shown, const char *tag)
{
    static char names[512][NAME_MAX + 1];
    static uint8_t data[1 << 22];
    struct evq_tfevent event;
    struct evq_error err;
    char path[PATH_MAX + NAME_MAX];
    size_t count = files(names);

    memset(shown, 0, sizeof(*shown));
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
        int fd = open(path, O_RDONLY);
        assert_true(fd >= 0);
        ssize_t bytes = read(fd, data, sizeof(data));
        assert_true(bytes >= 0 && bytes < (ssize_t)sizeof(data));
        (void)close(fd);
        size_t length;
        for (size_t at = 0;
             evq_tfevent_read(data + at, (size_t)bytes - at, &event, &length, &err) == EVQ_OK;
             at += length) {
            if (strcmp(event.tag, tag) == 0) {
                shown_take(shown, &event);
            }
        }
    }
}

static struct evq_tfrun *opened(void)
{
    struct evq_tfrun *run = NULL;
    struct evq_error err;

    assert_int_equal(evq_tfrun_open(directory, &run, &err), EVQ_OK);
    return run;
}

static void put(struct evq_tfrun *run, int64_t step)
{
    struct evq_error err;
    struct evq_point point = {step, 1000.0 + (double)step, (float)step * 0.5f};

    assert_int_equal(evq_tfrun_put(run, "eval/acc", &point, &err), EVQ_OK);
    assert_int_equal(evq_tfrun_flush(run, &err), EVQ_OK);
}

static void assert_complete(const struct shown *shown)
{
    assert_int_equal(shown->count, STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        assert_true(shown->steps[i] == (int64_t)i);
        assert_true(shown->values[i] == (float)i * 0.5f);
    }
}

static void tfrun_shows_every_point_when_steps_come_in_any_order_with_kills_between(void **state)
{
    (void)state;
    int64_t order[STEPS];
    struct shown shown;
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
    struct evq_tfrun *run = opened();
    for (size_t i = 0; i < STEPS; i++) {
        put(run, order[i]);
        if (i % 7 == 3) { // A kill: nothing is compacted, the flushed points are delivered again.
            evq_tfrun_close(run);
            run = opened();
            put(run, order[i]);
            kills++;
        }
    }
    evq_tfrun_close(run);
    load(&shown, "eval/acc");
    assert_true(kills > 20);
    assert_true(shown.preempted > 0); // The order really was not ascending.
    assert_complete(&shown);
}

static void tfrun_compact_leaves_one_ascending_file(void **state)
{
    (void)state;
    static char names[512][NAME_MAX + 1];
    struct shown shown;
    struct evq_error err;
    struct evq_tfrun *run = opened();

    for (int64_t i = STEPS - 1; i >= 0; i--) {
        put(run, i);
    }
    evq_tfrun_close(run);
    run = opened();
    assert_int_equal(evq_tfrun_compact(run, &err), EVQ_OK);
    assert_int_equal(files(names), 1);
    load(&shown, "eval/acc");
    assert_complete(&shown);
    assert_int_equal(shown.preempted, 0);
    put(run, 0); // The same point again writes nothing.
    assert_int_equal(files(names), 1);
    evq_tfrun_close(run);
}

static void tfrun_survives_a_torn_tail_at_every_byte(void **state)
{
    (void)state;
    static char names[512][NAME_MAX + 1];
    char path[PATH_MAX + NAME_MAX];
    struct shown shown;
    struct stat info;
    struct evq_tfrun *run = opened();

    put(run, 0);
    put(run, 1);
    evq_tfrun_close(run);
    assert_int_equal(files(names), 1);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, names[0]);
    assert_int_equal(stat(path, &info), 0);
    for (off_t bytes = info.st_size - 1; bytes >= 0; bytes--) {
        assert_int_equal(truncate(path, bytes), 0);
        run = opened();
        put(run, 0); // Redelivered: neither was acknowledged.
        put(run, 1);
        evq_tfrun_close(run);
        load(&shown, "eval/acc");
        assert_int_equal(shown.count, 2);
        assert_true(shown.steps[0] == 0 && shown.steps[1] == 1);
        size_t count = files(names);
        for (size_t i = 1; i < count; i++) { // Back to the one torn file.
            char other[PATH_MAX + NAME_MAX];
            (void)snprintf(other, sizeof(other), "%s/%s", directory, names[i]);
            assert_int_equal(unlink(other), 0);
        }
    }
}

/* A disk was full in the midst of a record: what comes again goes to another file, for nobody reads
 * on behind the torn one. */
static void tfrun_writes_nothing_behind_a_torn_record(void **state)
{
    (void)state;
    static char names[512][NAME_MAX + 1];
    char path[PATH_MAX + NAME_MAX];
    struct evq_point point = {1, 1001.0, 0.5f};
    struct shown shown;
    struct evq_error err;
    struct stat info;
    struct evq_tfrun *run = opened();

    put(run, 0);
    assert_int_equal(files(names), 1);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, names[0]);
    assert_int_equal(stat(path, &info), 0);
    fixture_limit_files((uint64_t)info.st_size + 10);
    assert_int_equal(evq_tfrun_put(run, "eval/acc", &point, &err), EVQ_OK);
    assert_int_equal(evq_tfrun_flush(run, &err), EVQ_E_IO);
    fixture_limit_files(UINT64_MAX);
    put(run, 1);
    load(&shown, "eval/acc");
    assert_int_equal(shown.count, 2);
    evq_tfrun_close(run);
}

/* Damage at its beginning makes the rest of a file worthless, however large it is; not the run. */
static void tfrun_opens_where_a_large_file_is_damaged(void **state)
{
    (void)state;
    static char names[512][NAME_MAX + 1];
    char path[PATH_MAX + NAME_MAX];
    struct evq_tfrun *run = opened();

    put(run, 0);
    evq_tfrun_close(run);
    assert_int_equal(files(names), 1);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, names[0]);
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "damage", 6, 0), 6);
    (void)close(fd);
    assert_int_equal(truncate(path, 3 * (off_t)EVQ_TFEVENT_RECORD_BYTES_MAX), 0); // Takes no room.
    run = opened();
    put(run, 0);
    evq_tfrun_close(run);
}

static void tfrun_completes_what_a_kill_cut_off_after_a_late_point(void **state)
{
    (void)state;
    static char names[512][NAME_MAX + 1];
    char path[PATH_MAX + NAME_MAX];
    struct shown shown;
    struct stat before;
    struct stat after;
    struct evq_tfrun *run = opened();

    for (int64_t i = 1; i < STEPS; i++) {
        put(run, i);
    }
    assert_int_equal(files(names), 1);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, names[0]);
    assert_int_equal(stat(path, &before), 0);
    put(run, 0); // All of them once more.
    evq_tfrun_close(run);
    assert_int_equal(stat(path, &after), 0);
    for (off_t bytes = after.st_size - 1; bytes > before.st_size; bytes -= 61) {
        assert_int_equal(truncate(path, bytes), 0);
        run = opened();
        put(run, 0); // Redelivered; it may be there already, and those after it not.
        evq_tfrun_close(run);
        load(&shown, "eval/acc");
        assert_complete(&shown);
        size_t count = files(names);
        for (size_t i = 1; i < count; i++) { // Back to the one that was cut off.
            char other[PATH_MAX + NAME_MAX];
            (void)snprintf(other, sizeof(other), "%s/%s", directory, names[i]);
            assert_int_equal(unlink(other), 0);
        }
    }
}

/* Each with all that come after it would be gigabytes. */
static void tfrun_writes_many_late_points_once(void **state)
{
    (void)state;
    enum { MANY = 30000, RECORD_BYTES_MAX = 128 };
    static char names[512][NAME_MAX + 1];
    char path[PATH_MAX + NAME_MAX];
    struct stat info;
    struct evq_error err;
    struct evq_tfrun *run = opened();

    for (int64_t step = MANY; step > 0; step--) {
        const struct evq_point point = {step, 1000.0, 0.5f};
        assert_int_equal(evq_tfrun_put(run, "eval/acc", &point, &err), EVQ_OK);
    }
    assert_int_equal(evq_tfrun_flush(run, &err), EVQ_OK);
    assert_int_equal(evq_tfrun_series(run)->series[0].count, MANY);
    assert_int_equal(files(names), 1);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, names[0]);
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size > MANY && info.st_size < MANY * RECORD_BYTES_MAX);
    evq_tfrun_close(run);
}

static void tfrun_replaces_a_step_only_by_a_newer_result(void **state)
{
    (void)state;
    struct shown shown;
    struct evq_error err;
    struct evq_tfrun *run = opened();
    struct evq_point newer = {5, 2000.0, 9.0f};
    struct evq_point older = {5, 1500.0, 7.0f};

    put(run, 5);
    put(run, 6);
    assert_int_equal(evq_tfrun_put(run, "eval/acc", &newer, &err), EVQ_OK);
    assert_int_equal(evq_tfrun_put(run, "eval/acc", &older, &err), EVQ_OK);
    assert_int_equal(evq_tfrun_flush(run, &err), EVQ_OK);
    evq_tfrun_close(run);
    load(&shown, "eval/acc");
    assert_int_equal(shown.count, 2);
    assert_true(shown.values[0] == 9.0f);
    assert_true(shown.values[1] == 3.0f);
}

static void tfrun_flush_fails_when_its_directory_is_gone_and_recovers(void **state)
{
    (void)state;
    struct shown shown;
    struct evq_error err;
    struct evq_tfrun *run = opened();
    struct evq_point point = {1, 1001.0, 0.5f};

    assert_int_equal(rmdir(directory), 0);
    assert_int_equal(evq_tfrun_put(run, "eval/acc", &point, &err), EVQ_OK);
    assert_int_equal(evq_tfrun_flush(run, &err), EVQ_E_IO);
    assert_int_equal(mkdir(directory, 0755), 0);
    put(run, 1);
    evq_tfrun_close(run);
    load(&shown, "eval/acc");
    assert_int_equal(shown.count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            tfrun_shows_every_point_when_steps_come_in_any_order_with_kills_between, setup,
            teardown),
        cmocka_unit_test_setup_teardown(tfrun_compact_leaves_one_ascending_file, setup, teardown),
        cmocka_unit_test_setup_teardown(tfrun_survives_a_torn_tail_at_every_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(tfrun_writes_nothing_behind_a_torn_record, setup, teardown),
        cmocka_unit_test_setup_teardown(tfrun_opens_where_a_large_file_is_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(tfrun_completes_what_a_kill_cut_off_after_a_late_point,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(tfrun_writes_many_late_points_once, setup, teardown),
        cmocka_unit_test_setup_teardown(tfrun_replaces_a_step_only_by_a_newer_result, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(tfrun_flush_fails_when_its_directory_is_gone_and_recovers,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
