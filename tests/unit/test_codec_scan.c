/* What is looked at before msgpack sees bytes from outside, and the notes between supervisor and
 * child. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "tests/fixture/check.h"

static void scan_refused(const uint8_t *data, size_t bytes, const char *because)
{
    struct evq_error err = {EVQ_OK, ""};
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1); // So that a sanitizer sees one byte too far.
    assert_non_null(exact);
    memcpy(exact, data, bytes);
    assert_status(evq_codec_scan(exact, bytes, 65536, &err), EVQ_E_CORRUPT);
    assert_holds(err.message, because);
    free(exact);
}

static void scan_accepts_every_type(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        size_t count;
    } cases[] = {
        {"\x00", 1},
        {"\x7f", 1},
        {"\xe0", 1},
        {"\xff", 1},
        {"\xc0", 1},
        {"\xc2", 1},
        {"\xc3", 1},
        {"\xa0", 1},
        {"\xa1z", 2},
        {"\x90", 1},
        {"\x80", 1},
        {"\xc4\x01z", 3},
        {"\xc5\x00\x01z", 4},
        {"\xc6\x00\x00\x00\x01z", 6},
        {"\xc7\x01\x05z", 4},
        {"\xc8\x00\x01\x05z", 5},
        {"\xc9\x00\x00\x00\x01\x05z", 7},
        {"\xca\x00\x00\x00\x00", 5},
        {"\xcb\x00\x00\x00\x00\x00\x00\x00\x00", 9},
        {"\xcc\xff", 2},
        {"\xcd\xff\xff", 3},
        {"\xce\xff\xff\xff\xff", 5},
        {"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9},
        {"\xd0\xff", 2},
        {"\xd1\xff\xff", 3},
        {"\xd2\xff\xff\xff\xff", 5},
        {"\xd3\xff\xff\xff\xff\xff\xff\xff\xff", 9},
        {"\xd4\x01z", 3},
        {"\xd5\x01zz", 4},
        {"\xd6\x01zzzz", 6},
        {"\xd7\x01zzzzzzzz", 10},
        {"\xd8\x01zzzzzzzzzzzzzzzz", 18},
        {"\xd9\x01z", 3},
        {"\xda\x00\x01z", 4},
        {"\xdb\x00\x00\x00\x01z", 6},
        {"\xdc\x00\x01\x01", 4},
        {"\xdd\x00\x00\x00\x01\x01", 6},
        {"\xde\x00\x01\x01\x01", 5},
        {"\xdf\x00\x00\x00\x01\x01\x01", 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_error err = {EVQ_OK, ""};
        const uint8_t *bytes = (const uint8_t *)cases[i].bytes;
        if (evq_codec_scan(bytes, cases[i].count, 65536, &err) != EVQ_OK) {
            fail_msg("case %zu: %s", i, err.message);
        }
        for (size_t shorter = 0; shorter < cases[i].count; shorter++) {
            assert_status(evq_codec_scan(bytes, shorter, 65536, NULL), EVQ_E_CORRUPT);
        }
    }
}

static void scan_bounds_depth_nodes_and_bytes(void **state)
{
    (void)state;
    static uint8_t data[8192];
    memset(data, 0x91, 8);
    data[8] = 0x01;
    assert_status(evq_codec_scan(data, 9, 65536, NULL), EVQ_OK);
    memset(data, 0x91, 9);
    data[9] = 0x01;
    scan_refused(data, 10, "nests deeper than 8");
    memset(data, 0x91, 8);
    data[8] = 0x90;
    scan_refused(data, 9, "nests deeper than 8");

    // The array itself is a node: 4,095 entries are the most.
    memset(data, 0x01, sizeof data);
    memcpy(data, "\xdc\x0f\xff", 3);
    assert_status(evq_codec_scan(data, 3 + 4095, 65536, NULL), EVQ_OK);
    memcpy(data, "\xdc\x10\x00", 3);
    scan_refused(data, 3 + 4096, "more than 4096");
    memcpy(data, "\xde\x08\x00", 3);
    scan_refused(data, 3 + 4096, "more than 4096");
    // Spread over several containers they count together.
    memcpy(data, "\x92\xdc\x08\x00", 4);
    memcpy(data + 4 + 2048, "\xdc\x08\x00", 3);
    scan_refused(data, 4 + 2048 + 3 + 2048, "more than 4096");
    // What is declared is judged where it is declared, and by what is left.
    scan_refused((const uint8_t *)"\xdd\xff\xff\xff\xff", 5, "declares 4294967295 bytes");
    scan_refused((const uint8_t *)"\xc6\xff\xff\xff\xff", 5, "declares 4294967295 bytes");
    memset(data, 0x01, sizeof data);
    data[0] = 0x99;
    assert_status(evq_codec_scan(data, 10, 10, NULL), EVQ_OK);
    assert_status(evq_codec_scan(data, 10, 9, NULL), EVQ_E_CORRUPT);
}

static void codec_note_round_trips(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_buffer bytes;
    struct evq_note *note = NULL;
    const struct evq_field fields[] = {
        {.key = "job", .type = EVQ_FIELD_TEXT, .text = "a/1/b/c \xff"},
        {.key = "done", .type = EVQ_FIELD_INT, .integer = INT64_MIN},
        {.key = "total", .type = EVQ_FIELD_INT, .integer = INT64_MAX},
        {.key = "loss", .type = EVQ_FIELD_DOUBLE, .real = 0.1},
        {.key = "record",
         .type = EVQ_FIELD_BYTES,
         .bytes = (const uint8_t *)"\0\1\2",
         .byte_count = 3},
        {.key = "none", .type = EVQ_FIELD_BYTES, .bytes = NULL, .byte_count = 0},
        {.key = "", .type = EVQ_FIELD_TEXT, .text = ""},
        {.key = "last", .type = EVQ_FIELD_INT, .integer = 1},
    };
    evq_buffer_init(&bytes, 0);
    assert_status_err(evq_codec_note_encode("task", fields, 8, &bytes, &err), EVQ_OK, &err);
    assert_status_err(evq_codec_note_decode(bytes.data, bytes.bytes, &note, &err), EVQ_OK, &err);
    assert_string_equal(note->type, "task");
    assert_int_equal(note->field_count, 8);
    assert_string_equal(evq_codec_note_field(note, "job")->text, "a/1/b/c \xff");
    assert_true(evq_codec_note_field(note, "done")->integer == INT64_MIN);
    assert_true(evq_codec_note_field(note, "total")->integer == INT64_MAX);
    assert_near(evq_codec_note_field(note, "loss")->real, 0.1, 0);
    assert_int_equal(evq_codec_note_field(note, "record")->byte_count, 3);
    assert_memory_equal(evq_codec_note_field(note, "record")->bytes, "\0\1\2", 3);
    assert_int_equal(evq_codec_note_field(note, "none")->byte_count, 0);
    assert_string_equal(evq_codec_note_field(note, "")->text, "");
    assert_null(evq_codec_note_field(note, "absent"));
    evq_codec_note_free(note);
    for (size_t cut = 0; cut < bytes.bytes; cut++) {
        note = NULL;
        assert_status(evq_codec_note_decode(bytes.data, cut, &note, NULL), EVQ_E_CORRUPT);
        assert_null(note);
    }
    evq_buffer_free(&bytes);
    evq_codec_note_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan_accepts_every_type),
        cmocka_unit_test(scan_bounds_depth_nodes_and_bytes),
        cmocka_unit_test(codec_note_round_trips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
