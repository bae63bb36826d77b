/* Numbers by step and name, and as CSV and back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "logger/sinks/csv_table.h"
#include "shared/base/clock.h"
#include "tests/fixture/check.h"
#include "tests/fixture/random.h"

static bool put(struct evq_csv_table *table, int64_t step, const char *name, double value)
{
    struct evq_error err;
    bool changed = false;

    assert_status_err(evq_csv_table_put(table, step, name, value, &changed, &err), EVQ_OK, &err);
    return changed;
}

static void assert_csv(const struct evq_csv_table *table, const char *want)
{
    struct evq_buffer text;

    evq_buffer_init(&text, 0);
    evq_csv_table_csv(table, &text);
    assert_string_equal(evq_buffer_string(&text), want);
    evq_buffer_free(&text);
}

static void csv_table_sorts_by_step_and_leaves_gaps_empty(void **state)
{
    struct evq_csv_table table = {0};

    (void)state;
    assert_true(put(&table, 20, "eval/a/acc", 0.5));
    assert_true(put(&table, 10, "eval/a/acc", 0.25));
    assert_true(put(&table, 30, "eval/b/loss,none", 1e300));
    assert_true(put(&table, 20, "eval/b/loss,none", NAN));
    assert_false(put(&table, 20, "eval/a/acc", 0.5));   // It is there.
    assert_true(put(&table, 10, "eval/a/acc", -0.125)); // In its place.
    assert_csv(&table, "step,eval/a/acc,\"eval/b/loss,none\"\r\n10,-0.125,\r\n20,0.5,nan\r\n"
                       "30,,1.0000000000000001e+300\r\n");
    evq_csv_table_free(&table);
}

static void csv_table_reads_back_what_it_wrote(void **state)
{
    static const char *const names[] = {"plain",       "with,comma", "with \"quotes\"",
                                        "line\nbreak", "\"",         ""};
    struct evq_csv_table table = {0};
    struct evq_csv_table back = {0};
    struct evq_buffer first;
    struct evq_buffer second;
    struct evq_error err;
    uint64_t random = fixture_seed();

    (void)state;
    for (int i = 0; i < 400; i++) {
        const int64_t at = evq_clock_jitter_ms(&random, 1000000, 90);
        const double value = at % 7 == 0 ? (at % 2 ? NAN : -INFINITY) : (double)at / 3.0;
        (void)put(&table, at % 50, names[at % 6], value);
    }
    evq_buffer_init(&first, 0);
    evq_buffer_init(&second, 0);
    evq_csv_table_csv(&table, &first);
    assert_status_err(evq_csv_table_read(&back, (const char *)first.data, first.bytes, &err),
                      EVQ_OK, &err);
    evq_csv_table_csv(&back, &second);
    assert_int_equal(first.bytes, second.bytes);
    assert_memory_equal(first.data, second.data, first.bytes);
    evq_buffer_free(&first);
    evq_buffer_free(&second);
    evq_csv_table_free(&table);
    evq_csv_table_free(&back);
}

static void csv_table_refuses_what_is_no_table(void **state)
{
    static const char *const bad[] = {"",
                                      "step",
                                      "steps\r\n",
                                      "step,a,a\r\n",
                                      "step,\"a\r\n",
                                      "step,\"a\"b\r\n",
                                      "step,a\r\n1,2",
                                      "step,a\r\nx,2\r\n",
                                      "step,a\r\n1,2,3\r\n",
                                      "step,a\r\n1,2x\r\n",
                                      "step,a\r\n99999999999999999999,1\r\n",
                                      "step,a\r1,2\r\n"};
    struct evq_error err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct evq_csv_table table = {0};
        assert_status(evq_csv_table_read(&table, bad[i], strlen(bad[i]), &err), EVQ_E_CORRUPT);
        assert_holds(err.message, "line ");
        assert_int_equal(table.column_count + table.row_count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_table_sorts_by_step_and_leaves_gaps_empty),
        cmocka_unit_test(csv_table_reads_back_what_it_wrote),
        cmocka_unit_test(csv_table_refuses_what_is_no_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
