/* The ids of a run's results: the set is exact while it grows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "logger/sinks/id_set.h"
#include "tests/fixture/check.h"
#include "tests/fixture/memory.h"

static enum evq_status add(struct evq_id_set *set, int number, struct evq_error *err)
{
    char id[32];

    (void)snprintf(id, sizeof(id), "run/%d/regular/s#t", number);
    return evq_id_set_add(set, id, strlen(id), err);
}

static bool has(const struct evq_id_set *set, int number)
{
    char id[32];

    (void)snprintf(id, sizeof(id), "run/%d/regular/s#t", number);
    return evq_id_set_has(set, id, strlen(id));
}

static void id_set_knows_exactly_what_was_added_when_it_grows(void **state)
{
    struct evq_id_set set = {0};
    struct evq_error err;

    (void)state;
    assert_false(has(&set, 0));
    for (int i = 0; i < 200000; i += 2) {
        assert_status_err(add(&set, i, &err), EVQ_OK, &err);
        if (i % 4 == 0) {
            assert_status_err(add(&set, i / 4 * 2, &err), EVQ_OK, &err); // It is there already.
        }
    }
    for (int i = 0; i < 200000; i++) {
        assert_int_equal(has(&set, i), i % 2 == 0);
    }
    assert_int_equal(set.count, 100000);
    evq_id_set_clear(&set);
    assert_false(has(&set, 0));
}

static void id_set_is_as_it_was_when_there_is_no_memory(void **state)
{
    struct evq_id_set set = {0};
    struct evq_error err = {0};
    int added = 0;

    (void)state;
    while (set.slot_count < 1024) {
        assert_status_err(add(&set, added++, &err), EVQ_OK, &err);
    }
    fixture_memory_refuse(1, 2048 * sizeof(uint64_t));
    while (add(&set, added, &err) == EVQ_OK) {
        added++;
    }
    assert_int_equal(fixture_memory_give(), 1);
    assert_int_equal(err.status, EVQ_E_NOMEM);
    assert_false(has(&set, added));
    assert_status_err(add(&set, added, &err), EVQ_OK, &err);
    for (int i = 0; i < added + 2; i++) {
        assert_int_equal(has(&set, i), i <= added);
    }
    evq_id_set_clear(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(id_set_knows_exactly_what_was_added_when_it_grows),
        cmocka_unit_test(id_set_is_as_it_was_when_there_is_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
