#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "logger/idset.h"

static void idset_knows_exactly_what_was_added_when_it_grows(void **state)
{
    (void)state;
    char id[32];
    struct evq_idset *set = evq_idset_new();
    struct evq_idset *other = evq_idset_new();

    assert_non_null(set);
    assert_non_null(other);
    for (int i = 0; i < 100000; i += 2) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/s#t", i);
        evq_idset_add(i % 4 == 0 ? set : other, id, strlen(id));
    }
    evq_idset_merge(set, other);
    assert_int_equal(set->count, 50000);
    for (int i = 0; i < 100000; i++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/s#t", i);
        assert_int_equal(evq_idset_has(set, id, strlen(id)), i % 2 == 0);
    }
    evq_idset_clear(set);
    assert_false(evq_idset_has(set, "run/0/regular/s#t", 17));
    assert_false(set->failed);
    evq_idset_free(set);
    evq_idset_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idset_knows_exactly_what_was_added_when_it_grows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
