#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "shared/base/utf8.h"
#include "tests/fixture/check.h"

static void buffer_appends_and_consumes(void **state)
{
    (void)state;
    struct evq_buffer buffer;
    evq_buffer_init(&buffer, 0);
    assert_string_equal(evq_buffer_string(&buffer), "");
    for (int i = 0; i < 1000; i++) {
        evq_buffer_printf(&buffer, "%d,", i);
    }
    evq_buffer_append(&buffer, NULL, 0);
    assert_int_equal(buffer.bytes, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(strncmp(evq_buffer_string(&buffer), "0,1,2,", 6), 0);
    evq_buffer_consume(&buffer, 4);
    assert_int_equal(strncmp(evq_buffer_string(&buffer), "2,3,", 4), 0);
    evq_buffer_consume(&buffer, 1 << 20);
    assert_string_equal(evq_buffer_string(&buffer), "");
    evq_buffer_free(&buffer);
    assert_null(buffer.data);
}

static void buffer_prints_what_fits_and_what_does_not(void **state)
{
    (void)state;
    static const int64_t numbers[] = {0, -1, 9, 10, INT64_MAX, INT64_MIN};
    struct evq_buffer buffer;
    char wanted[32];

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        evq_buffer_init(&buffer, 0);
        evq_buffer_integer(&buffer, numbers[i]);
        (void)snprintf(wanted, sizeof wanted, "%lld", (long long)numbers[i]);
        assert_string_equal(evq_buffer_string(&buffer), wanted);
        evq_buffer_free(&buffer);
    }
    for (int width = 0; width < 1200; width++) { // Before, at and past the end of the memory.
        evq_buffer_init(&buffer, 0);
        evq_buffer_text(&buffer, "begin ");
        evq_buffer_printf(&buffer, "%*d", width, 7);
        assert_int_equal(buffer.bytes, 6 + (width > 1 ? width : 1));
        assert_int_equal(strlen((const char *)buffer.data), buffer.bytes);
        assert_int_equal(buffer.data[buffer.bytes - 1], '7');
        evq_buffer_free(&buffer);
    }
    evq_buffer_init(&buffer, 8);
    evq_buffer_text(&buffer, "1234");
    evq_buffer_printf(&buffer, "%s", "56789");
    assert_true(buffer.failed);
    assert_string_equal((const char *)buffer.data, "1234"); // Nothing of what was too long.
    evq_buffer_free(&buffer);
}

/* A writer checks once, at the end: nothing may be appended after a failure. */
static void buffer_fails_past_its_limit_and_stays_failed(void **state)
{
    (void)state;
    struct evq_buffer buffer;
    evq_buffer_init(&buffer, 8);
    evq_buffer_text(&buffer, "12345678");
    assert_false(buffer.failed);
    assert_string_equal(evq_buffer_string(&buffer), "12345678");
    evq_buffer_text(&buffer, "9");
    assert_true(buffer.failed);
    assert_null(evq_buffer_string(&buffer));
    evq_buffer_text(&buffer, "");
    assert_int_equal(buffer.bytes, 8);
    evq_buffer_clear(&buffer);
    assert_false(buffer.failed);
    evq_buffer_printf(&buffer, "%s", "abcdefghi");
    assert_true(buffer.failed);
    evq_buffer_clear(&buffer);
    evq_buffer_append(&buffer, "x", SIZE_MAX);
    assert_true(buffer.failed);
    evq_buffer_free(&buffer);
}

static void buffer_utf8_follows_the_standard(void **state)
{
    (void)state;
    const struct {
        const char *text;
        size_t want;
    } cases[] = {
        {"a", 1},
        {"\xc3\xbc", 2},
        {"\xe2\x82\xac", 3},
        {"\xf0\x9f\x98\x80", 4},
        {"\x80", 0},
        {"\xc0\x80", 0},
        {"\xc1\xbf", 0},
        {"\xe0\x80\x80", 0},
        {"\xe0\x9f\xbf", 0},
        {"\xed\xa0\x80", 0},
        {"\xed\x9f\xbf", 3},
        {"\xf0\x80\x80\x80", 0},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\xf4\x90\x80\x80", 0},
        {"\xf5\x80\x80\x80", 0},
        {"\xff", 0},
        {"\xe2\x82", 0},
        {"\xe2\x28\xa1", 0},
        {"\xf0\x9f\x98", 0},
        {"\xf0\x9f\x98(", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t got = evq_utf8_sequence(cases[i].text, strlen(cases[i].text));
        if (got != cases[i].want) {
            fail_msg("case %zu: %zu, expected %zu", i, got, cases[i].want);
        }
    }
    assert_int_equal(evq_utf8_sequence("", 0), 0);
}

static void json_round_trip(const char *bytes, size_t count, const char *want)
{
    struct evq_buffer buffer;
    json_error_t error;
    evq_buffer_init(&buffer, 0);
    evq_buffer_json(&buffer, bytes, count);
    json_t *json =
        json_loadb((char *)buffer.data, buffer.bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    assert_non_null(json);
    assert_string_equal(json_string_value(json), want);
    json_decref(json);
    evq_buffer_free(&buffer);
}

/* Read back by a JSON reader that is not ours. */
static void buffer_json_is_valid_json_for_any_bytes(void **state)
{
    (void)state;
    uint64_t seed = 7;
    json_round_trip("", 0, "");
    json_round_trip(NULL, 0, "");
    json_round_trip("a\"b\\c\n\t\r\x01\x7f", 10, "a\"b\\c\n\t\r\x01\x7f");
    json_round_trip("\xff-\xc3\xbc", 4, "\xef\xbf\xbd-\xc3\xbc");
    for (int byte = 1; byte < 0x80; byte++) { // Eight bytes are looked at at a time.
        for (size_t at = 0; at < 19; at++) {
            char text[] = "abc ~!#[]^0123456789";
            text[at] = (char)byte;
            json_round_trip(text, strlen(text), text);
        }
    }
    for (int i = 0; i < 2000; i++) {
        char text[64];
        size_t count = (size_t)evq_clock_jitter_ms(&seed, 32, 100) % sizeof text;
        struct evq_buffer buffer;
        json_error_t error;
        for (size_t j = 0; j < count; j++) {
            text[j] = (char)evq_clock_jitter_ms(&seed, 128, 100);
        }
        evq_buffer_init(&buffer, 0);
        evq_buffer_json(&buffer, text, count);
        json_t *json =
            json_loadb((char *)buffer.data, buffer.bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        if (json == NULL) {
            fail_msg("seed 7, text %d: %s", i, error.text);
        }
        json_decref(json);
        evq_buffer_free(&buffer);
    }
}

static void buffer_json_double_reads_back_exactly(void **state)
{
    (void)state;
    const double values[] = {0.0,
                             -0.0,
                             1.0 / 3,
                             0.1,
                             1e300,
                             5e-324,
                             -1.7976931348623157e308,
                             42.0,
                             1e-310,
                             M_PI,
                             -2.5,
                             1e17,
                             123456789012345678.0};
    struct evq_buffer buffer;
    evq_buffer_init(&buffer, 0);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        evq_buffer_clear(&buffer);
        evq_buffer_json_double(&buffer, values[i]);
        double back = strtod(evq_buffer_string(&buffer), NULL);
        assert_memory_equal(&back, &values[i], sizeof back);
    }
    evq_buffer_clear(&buffer);
    evq_buffer_json_double(&buffer, NAN);
    evq_buffer_json_double(&buffer, INFINITY);
    evq_buffer_json_double(&buffer, -INFINITY);
    assert_string_equal(evq_buffer_string(&buffer), "\"NaN\"\"Infinity\"\"-Infinity\"");
    evq_buffer_free(&buffer);
}

/* Random doubles of every size, and those around powers of ten, where the number of digits changes.
 */
static void buffer_json_double_reads_back_random_values(void **state)
{
    uint64_t seed = 7;
    struct evq_buffer buffer;

    (void)state;
    evq_buffer_init(&buffer, 0);
    for (int i = 0; i < 400000; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        double value = ldexp(1.0 + (double)(seed >> 12) / 4503599627370496.0, i % 260 - 130);
        if (i % 5 == 0) {
            value = pow(10, i % 56 - 38);
            value = nextafter(value, (seed & 1) != 0 ? 0.0 : INFINITY);
        } else if (i % 5 == 1) {
            value = (double)(float)value;
        }
        value = (seed & 2) != 0 ? -value : value;
        evq_buffer_clear(&buffer);
        evq_buffer_json_double(&buffer, value);
        const char *text = evq_buffer_string(&buffer);
        char *end = NULL;
        if (strtod(text, &end) != value || *end != '\0' || strlen(text) > 24) {
            fail_msg("seed 7, number %d: %.17g was written as %s", i, value, text);
        }
    }
    evq_buffer_free(&buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_appends_and_consumes),
        cmocka_unit_test(buffer_prints_what_fits_and_what_does_not),
        cmocka_unit_test(buffer_fails_past_its_limit_and_stays_failed),
        cmocka_unit_test(buffer_utf8_follows_the_standard),
        cmocka_unit_test(buffer_json_is_valid_json_for_any_bytes),
        cmocka_unit_test(buffer_json_double_reads_back_exactly),
        cmocka_unit_test(buffer_json_double_reads_back_random_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
