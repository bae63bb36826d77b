/* TensorBoard's record format against vectors computed by TensorBoard's own code, and against
 * damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "logger/tensorboard/tfevent.h"

static void hex_of(const struct evq_buffer *buffer, char *out, size_t out_bytes)
{
    assert_true(buffer->bytes * 2 < out_bytes);
    for (size_t i = 0; i < buffer->bytes; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", buffer->data[i]);
    }
}

static void tfevent_crc32c_gives_the_check_value(void **state)
{
    (void)state;
    assert_int_equal(evq_tfevent_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(evq_tfevent_crc32c("", 0), 0);
}

static void tfevent_records_equal_the_golden_vectors(void **state)
{
    (void)state;
    struct evq_buffer out;
    char hex[512];

    evq_buffer_init(&out, 0);
    evq_tfevent_version(&out, 1577836800.0);
    hex_of(&out, hex, sizeof(hex));
    assert_string_equal(
        hex, "1800000000000000a37f4b220900000040f882d7411a0d627261696e2e4576656e743a329ad1c294");

    evq_buffer_clear(&out);
    evq_tfevent_scalar(&out, 1577836801.25, 500, "eval/acc", 0.5f);
    hex_of(&out, hex, sizeof(hex));
    assert_string_equal(
        hex,
        "1f00000000000000514b44180900005040f882d74110f4032a110a0f0a086576616c2f616363150000003f"
        "4f0902d1");
    evq_buffer_free(&out);
}

static void tfevent_read_returns_what_was_written(void **state)
{
    (void)state;
    static const int64_t steps[] = {0, 1, 127, 128, 1000000, ((int64_t)1 << 40) - 1};
    struct evq_buffer out;
    struct evq_tfevent event;
    struct evq_error err;
    size_t length;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        evq_buffer_init(&out, 0);
        evq_tfevent_scalar(&out, 12.5, steps[i], "eval/a b", -1.25f);
        assert_int_equal(evq_tfevent_read(out.data, out.bytes, &event, &length, &err), EVQ_OK);
        assert_int_equal(length, out.bytes);
        assert_true(event.step == steps[i]);
        assert_string_equal(event.tag, "eval/a b");
        assert_true(event.value == -1.25f);
        assert_true(event.wall_seconds == 12.5);
        evq_buffer_free(&out);
    }
    char tag[EVQ_TFEVENT_TAG_BYTES_MAX] = "";
    for (size_t bytes = 1; bytes < sizeof(tag); bytes++) { // Lengths take two bytes from 128 on.
        tag[bytes - 1] = 't';
        evq_buffer_init(&out, 0);
        evq_tfevent_scalar(&out, 12.5, (int64_t)bytes, tag, 0.5f);
        assert_int_equal(evq_tfevent_read(out.data, out.bytes, &event, &length, &err), EVQ_OK);
        assert_int_equal(length, out.bytes);
        assert_string_equal(event.tag, tag);
        assert_true(event.step == (int64_t)bytes && event.value == 0.5f);
        evq_buffer_free(&out);
    }
}

static void tfevent_read_refuses_every_cut_and_every_flipped_bit(void **state)
{
    (void)state;
    struct evq_buffer out;
    struct evq_tfevent event;
    struct evq_error err;
    size_t length;
    size_t refused = 0;

    evq_buffer_init(&out, 0);
    evq_tfevent_scalar(&out, 12.5, 77, "eval/x", 3.0f);
    for (size_t cut = 0; cut < out.bytes; cut++) {
        assert_int_equal(evq_tfevent_read(out.data, cut, &event, &length, &err), EVQ_E_INCOMPLETE);
    }
    for (size_t bit = 0; bit < out.bytes * 8; bit++) {
        out.data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        enum evq_status status = evq_tfevent_read(out.data, out.bytes, &event, &length, &err);
        assert_int_equal(status, EVQ_E_CORRUPT);
        refused++;
        out.data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    assert_int_equal(refused, out.bytes * 8);
    evq_buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tfevent_crc32c_gives_the_check_value),
        cmocka_unit_test(tfevent_records_equal_the_golden_vectors),
        cmocka_unit_test(tfevent_read_returns_what_was_written),
        cmocka_unit_test(tfevent_read_refuses_every_cut_and_every_flipped_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
