#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "shared/base/clock.h"
#include "tests/fixture/check.h"

static void clock_jitter_stays_within_its_percent(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int64_t low = INT64_MAX;
    int64_t high = 0;
    for (int i = 0; i < 10000; i++) {
        int64_t wait = evq_clock_jitter_ms(&seed, 1000, 25);
        assert_true(wait >= 750 && wait <= 1250);
        low = wait < low ? wait : low;
        high = wait > high ? wait : high;
    }
    assert_true(low < 800 && high > 1200); // It does jitter.
    assert_int_equal(evq_clock_jitter_ms(&seed, 0, 25), 1);
    assert_int_equal(evq_clock_jitter_ms(&seed, -5, 25), 1);
    assert_true(evq_clock_jitter_ms(&seed, INT64_MAX, 100) >= 1);
    uint64_t zero = 0;
    assert_true(evq_clock_jitter_ms(&zero, 100, 50) >= 50);
    assert_true(zero != 0);
}

static void clock_backoff_doubles_to_its_maximum(void **state)
{
    (void)state;
    uint64_t seed = 3;
    const int64_t want[] = {100, 200, 400, 800, 1000, 1000};
    for (uint32_t i = 0; i < 6; i++) {
        int64_t wait = evq_clock_backoff_ms(&seed, i, 100, 1000);
        assert_true(wait >= want[i] * 3 / 4 && wait <= want[i] * 5 / 4);
    }
    assert_true(evq_clock_backoff_ms(&seed, UINT32_MAX, 1, 5000) <= 6250);
    assert_true(evq_clock_backoff_ms(&seed, UINT32_MAX, 1, INT64_MAX) > 0);
}

static void clock_left_is_clamped(void **state)
{
    (void)state;
    int64_t now = evq_clock_mono_ms();
    assert_int_equal(evq_clock_left_ms(now - 1), 0);
    assert_int_equal(evq_clock_left_ms(INT64_MIN), 0);
    assert_int_equal(evq_clock_left_ms(INT64_MAX), INT32_MAX);
    int left = evq_clock_left_ms(now + 60000);
    assert_true(left > 30000 && left <= 60000);
}

static void clock_iso_writes_utc(void **state)
{
    (void)state;
    char out[EVQ_CLOCK_ISO_BYTES];
    evq_clock_iso(0, out);
    assert_string_equal(out, "1970-01-01T00:00:00.000Z");
    evq_clock_iso(INT64_C(1795221300123), out);
    assert_string_equal(out, "2026-11-21T00:35:00.123Z");
    evq_clock_iso(-1, out);
    assert_string_equal(out, "1970-01-01T00:00:00.000Z");
    evq_clock_iso(INT64_MAX, out);
    assert_string_equal(out, "9999-12-31T23:59:59.999Z");
}

static void clock_random_does_not_repeat(void **state)
{
    (void)state;
    uint64_t first = evq_clock_random();
    assert_true(first != 0 && evq_clock_random() != first);
    assert_true(evq_clock_mono_us() / 1000 >= evq_clock_mono_ms() - 1000);
    assert_true(evq_clock_unix_ms() > INT64_C(1500000000000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clock_jitter_stays_within_its_percent),
        cmocka_unit_test(clock_backoff_doubles_to_its_maximum),
        cmocka_unit_test(clock_left_is_clamped),
        cmocka_unit_test(clock_iso_writes_utc),
        cmocka_unit_test(clock_random_does_not_repeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
