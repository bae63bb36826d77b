#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/arena.h"
#include "shared/base/clock.h"
#include "tests/fixture/check.h"

static void arena_alloc_is_zeroed_aligned_and_apart(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    static unsigned char *parts[COUNT];
    static size_t sizes[COUNT];
    struct evq_arena *arena = evq_arena_new(0);
    uint64_t seed = 42;

    assert_non_null(arena);
    for (int i = 0; i < COUNT; i++) {
        sizes[i] = (size_t)evq_clock_jitter_ms(&seed, 200, 100);
        parts[i] = evq_arena_alloc(arena, sizes[i]);
        assert_non_null(parts[i]);
        assert_int_equal((uintptr_t)parts[i] % _Alignof(max_align_t), 0);
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(parts[i][j], 0);
        }
        memset(parts[i], i & 0xff, sizes[i]);
    }
    for (int i = 0; i < COUNT; i++) { // Nothing wrote over anything else.
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(parts[i][j], i & 0xff);
        }
    }
    evq_arena_free(arena);
    evq_arena_free(NULL);
}

static void arena_alloc_refuses_past_its_limit(void **state)
{
    (void)state;
    struct evq_arena *arena = evq_arena_new(4096);
    assert_non_null(arena);
    assert_non_null(evq_arena_alloc(arena, 4000));
    assert_null(evq_arena_alloc(arena, 4000));
    assert_null(evq_arena_alloc(arena, SIZE_MAX));
    assert_null(evq_arena_alloc(arena, SIZE_MAX - 8));
    assert_null(evq_arena_array(arena, SIZE_MAX / 2, 3));
    assert_null(evq_arena_strndup(arena, "x", SIZE_MAX));
    assert_non_null(evq_arena_alloc(arena, 0));
    assert_true(evq_arena_used(arena) <= 4096);
    evq_arena_free(arena);
}

static void arena_reset_gives_all_room_back(void **state)
{
    (void)state;
    struct evq_arena *arena = evq_arena_new(1 << 20);
    assert_non_null(arena);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 100; i++) {
            unsigned char *part = evq_arena_alloc(arena, 10000);
            assert_non_null(part);
            assert_int_equal(part[0], 0);
            memset(part, 0xff, 10000);
        }
        evq_arena_reset(arena);
        assert_int_equal(evq_arena_used(arena), 0);
    }
    evq_arena_free(arena);
}

static void arena_copies_text(void **state)
{
    (void)state;
    struct evq_arena *arena = evq_arena_new(0);
    assert_non_null(arena);
    assert_string_equal(evq_arena_strdup(arena, "hello"), "hello");
    assert_null(evq_arena_strdup(arena, NULL));
    assert_string_equal(evq_arena_strndup(arena, "hello", 2), "he");
    assert_string_equal(evq_arena_strndup(arena, NULL, 0), "");
    assert_string_equal(evq_arena_printf(arena, "%s/%d", "a", 12), "a/12");
    evq_arena_free(arena);
}

static void size_arithmetic_reports_overflow(void **state)
{
    (void)state;
    size_t out = 7;
    assert_true(evq_size_mul(6, 7, &out));
    assert_int_equal(out, 42);
    assert_false(evq_size_mul(SIZE_MAX, 2, &out));
    assert_int_equal(out, 42);
    assert_true(evq_size_add(SIZE_MAX - 1, 1, &out));
    assert_false(evq_size_add(SIZE_MAX, 1, &out));
    assert_true(out == SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_alloc_is_zeroed_aligned_and_apart),
        cmocka_unit_test(arena_alloc_refuses_past_its_limit),
        cmocka_unit_test(arena_reset_gives_all_room_back),
        cmocka_unit_test(arena_copies_text),
        cmocka_unit_test(size_arithmetic_reports_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
