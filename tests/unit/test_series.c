/* Points of a run's tags: sorted, one a step, whatever the order they come in and wherever they
 * lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "logger/tensorboard/point_buffer.h"
#include "tests/fixture/check.h"
#include "tests/fixture/random.h"
#include "tests/fixture/redis.h"

#define STEPS 20000
#define TAGS  3

static const char *const tags[TAGS] = {"eval/t/accuracy", "eval/t/loss", "eval/t/zeta"};

struct expected { // By tag and step; wall 0: no point.
    double wall[TAGS][STEPS];
    float value[TAGS][STEPS];
    int64_t written[TAGS];
};

/* Every point, in order; and those above `written` are reached by slices from slice_above() on. */
static void assert_as(struct evq_point_buffer_set *set, const struct expected *expected)
{
    const struct evq_point *points = NULL;
    struct evq_error err;

    for (size_t t = 0; t < TAGS; t++) {
        const struct evq_point_buffer *series = &set->series[t];
        int64_t step = 0;
        size_t count = 1;
        size_t seen = 0;
        assert_string_equal(series->tag, tags[t]);
        assert_true(series->written == expected->written[t]);
        const size_t from = evq_point_buffer_slice_above(series, series->written);
        for (size_t slice = 0; count > 0; slice++) {
            assert_status_err(evq_point_buffer_slice(set, series, slice, &points, &count, &err),
                              EVQ_OK, &err);
            for (size_t i = 0; i < count; i++, step++, seen++) {
                for (; step < STEPS && expected->wall[t][step] == 0; step++) {
                }
                assert_true(step < STEPS && points[i].step == step);
                assert_true(points[i].wall_seconds == expected->wall[t][step]);
                assert_true(points[i].value == expected->value[t][step]);
                assert_true(slice >= from || step <= series->written);
            }
        }
        assert_int_equal(seen, series->count);
        for (; step < STEPS; step++) {
            assert_true(expected->wall[t][step] == 0);
        }
    }
}

/* One point, by put or by load, into the set and into what is expected. */
static void give(struct evq_point_buffer_set *set, struct expected *expected, size_t t,
                 int64_t step, double wall, bool load)
{
    enum evq_point_buffer_change change = EVQ_SERIES_SAME;
    struct evq_error err;
    const struct evq_point point = {step, wall, (float)wall / 2};
    const double before = expected->wall[t][step];
    const bool taken = load || wall > before;
    bool last = true;

    for (int64_t later = step; later < STEPS && last; later++) {
        last = expected->wall[t][later] == 0;
    }
    assert_status_err(load ? evq_point_buffer_load(set, tags[t], &point, &change, &err)
                           : evq_point_buffer_put(set, tags[t], &point, &change, &err),
                      EVQ_OK, &err);
    assert_int_equal(change, !taken ? EVQ_SERIES_SAME
                             : last ? EVQ_SERIES_LAST
                                    : EVQ_SERIES_EARLIER);
    if (taken) {
        expected->wall[t][step] = wall;
        expected->value[t][step] = (float)wall / 2;
    }
    if (load) {
        expected->written[t] = step;
    } else if (taken && step <= expected->written[t]) {
        expected->written[t] = step - 1;
    }
}

static void series_are_sorted_whatever_the_order(void **state)
{
    (void)state;
    char directory[64];
    uint64_t random = fixture_seed();
    struct expected *expected = calloc(1, sizeof(*expected));

    assert_non_null(expected);
    fixture_dir_make(directory);
    struct evq_point_buffer_set set = {.directory = directory};
    for (size_t t = 0; t < TAGS; t++) {
        expected->written[t] = INT64_MIN;
        give(&set, expected, t, STEPS / 2, 5, false);
    }
    for (int round = 0; round < 12; round++) {
        const int64_t ascending = (int64_t)(fixture_random(&random) % STEPS);
        const bool load = round % 3 == 2;
        for (int i = 0; i < 1500; i++) {
            const bool stray = round % 2 == 0 || fixture_random(&random) % 50 == 0;
            const int64_t step =
                stray ? (int64_t)(fixture_random(&random) % STEPS) : (ascending + i) % STEPS;
            give(&set, expected, fixture_random(&random) % TAGS, step,
                 1 + (double)(fixture_random(&random) % 4), load);
        }
        assert_as(&set, expected);
        for (size_t t = 0; t < TAGS; t++) {
            set.series[t].written = evq_point_buffer_last(&set.series[t]);
            expected->written[t] = set.series[t].written;
        }
    }
    assert_true(set.series[0].part_count > 20); // They lie on disk,
    assert_true(set.series[0].tail_room <= EVQ_SERIES_PART_POINTS);
    assert_true(set.series[0].part_count <= 1 + set.series[0].count * 2 / EVQ_SERIES_PART_POINTS);
    evq_point_buffer_free(&set);
    assert_int_equal(set.count, 0);
    fixture_dir_remove(directory);
    free(expected);
}

static void series_says_when_there_is_no_file_to_be_had(void **state)
{
    (void)state;
    struct evq_point_buffer_set set = {.directory = "/tmp/evalq-no-such-directory"};
    enum evq_point_buffer_change change;
    struct evq_error err = {0};
    enum evq_status status = EVQ_OK;
    int64_t step = 0;

    for (; step < STEPS && status == EVQ_OK; step++) {
        const struct evq_point point = {step, 1, 1};
        status = evq_point_buffer_put(&set, tags[0], &point, &change, &err);
    }
    assert_int_equal(step, EVQ_SERIES_PART_POINTS + 1);
    assert_int_equal(status, EVQ_E_IO);
    assert_holds(err.message, "/tmp/evalq-no-such-directory");
    evq_point_buffer_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(series_are_sorted_whatever_the_order),
        cmocka_unit_test(series_says_when_there_is_no_file_to_be_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
