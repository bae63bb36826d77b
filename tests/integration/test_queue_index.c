/*
 * Tests the index of a run: rows are removed together with their jobs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>

#include "tests/fixture/queue.h"

static int64_t gc(struct fixture *fx)
{
    int64_t removed = -1;
    assert_status(evq_queue_gc(fx->queue, &removed, NULL), EVQ_OK);
    return removed;
}

static void count_result(void *context, const struct evq_result *result)
{
    (void)result;
    (*(int *)context)++;
}

/* A reader's cursor stays valid while earlier rows are trimmed. */
static void retention_trims_the_index_of_the_run(void **state)
{
    enum { JOBS = 60, KEPT = 10, LEFTOVERS = 500 };
    struct fixture *fx = *state;
    char id[EVQ_JOB_ID_BYTES_MAX];
    int64_t cursor = 0;
    int seen = 0;

    evq_reply_free(
        fixture_call(fx->raw, "HSET", fixture_key(fx, "meta"), "retain_count", "10", NULL));
    for (int step = 0; step < JOBS; step++) {
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", step);
        fixture_finish(fx, id, 0.5);
    }
    while (gc(fx) > 0) {
    }
    assert_status(evq_queue_run_results(fx->queue, "r", &cursor, count_result, &seen, NULL),
                  EVQ_OK);
    const int64_t rows = fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "index:r"), NULL);
    assert_int_equal(rows, seen);
    assert_true(seen >= KEPT && seen <= 2 * KEPT); // There is a row for each task and each end.
    assert_true(cursor > JOBS);                    // Rows keep their numbers.
    seen = 0;
    fixture_finish(fx, "r/60/regular/quick", 0.5);
    while (gc(fx) > 0) {
    }
    assert_status(evq_queue_run_results(fx->queue, "r", &cursor, count_result, &seen, NULL),
                  EVQ_OK);
    assert_true(seen == 1 || seen == 2);
    for (int i = 0; i < LEFTOVERS; i++) {
        (void)snprintf(id, sizeof id, "1 r/%d/regular/gone#", i);
        evq_reply_free(fixture_call(fx->raw, "LPUSH", fixture_key(fx, "index:r"), id, NULL));
    }
    while (gc(fx) > 0) {
    }
    assert_int_equal(fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "index:r"), NULL), rows);
    fixture_audit(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(retention_trims_the_index_of_the_run, fixture_setup,
                                        fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
