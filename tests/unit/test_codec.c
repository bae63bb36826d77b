/* Jobs and results on the wire: golden bytes, defaults, unknown fields. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "tests/fixture/check.h"

static struct evq_job *small_job(void)
{
    struct evq_job *job = evq_job_new();
    assert_non_null(job);
    job->run = "r";
    job->step = 300;
    job->suite = "s";
    job->root = "c";
    job->path = "p";
    return job;
}

/* The wire format is a promise to other builds and to other languages. */
static void codec_job_encode_gives_the_golden_bytes(void **state)
{
    (void)state;
    static const char golden[] =
        "\x8b\xa7version\x01\xa3run\xa1r\xa4step\xcd\x01\x2c\xa5"
        "epoch\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xa5suite\xa1s\xa4root\xa1"
        "c\xa4path\xa1p\xa5needs\x82\xa4gpus\x01\xa6labels\x91\xa1x\xa6policy\xa6latest"
        "\xa4keep\xc3\xa6params\x81\xa1k\xa1v";
    const char *const labels[] = {"x"};
    const struct evq_pair params[] = {{"k", "v"}};
    struct evq_buffer bytes;
    struct evq_error err;
    struct evq_job *job = small_job();
    job->epoch = 1.5;
    job->policy = EVQ_POLICY_LATEST;
    job->keep = true;
    job->needs_given = true;
    job->needs = (struct evq_needs){1, 0, labels, 1};
    job->params = params;
    job->param_count = 1;
    evq_buffer_init(&bytes, 0);
    assert_status_err(evq_codec_job_encode(job, &bytes, &err), EVQ_OK, &err);
    assert_int_equal(bytes.bytes, sizeof golden - 1);
    assert_memory_equal(bytes.data, golden, bytes.bytes);
    evq_buffer_free(&bytes);
    evq_job_free(job);
}

static void codec_result_encode_gives_the_golden_bytes(void **state)
{
    (void)state;
    static const char golden[] =
        "\x86\xa7version\x01\xa3job\xa7r/1/v/s\xa4task\xa1t\xa5state\xa4"
        "dead\xa7metrics\x91\x83\xa4name\xa3"
        "acc\xa5value\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00\xb0higher_is_better\x01\xa4sums"
        "\x92\x82\xa4name\xa1n\xa5"
        "count\x00\x82\xa4name\xa1x\xa5value\xcb\x00\x00\x00\x00\x00\x00\x00\x00";
    const struct evq_metric metrics[] = {{"acc", 0.5, 1, NAN}};
    const struct evq_sum sums[] = {{"n", true, 0, 0}, {"x", false, 0, 0}};
    struct evq_buffer bytes;
    struct evq_error err;
    struct evq_result *result = evq_result_new();
    assert_non_null(result);
    result->job = "r/1/v/s";
    result->task = "t";
    result->state = EVQ_JOB_DEAD;
    result->metrics = metrics;
    result->metric_count = 1;
    result->sums = sums;
    result->sum_count = 2;
    evq_buffer_init(&bytes, 0);
    assert_status_err(evq_codec_result_encode(result, &bytes, &err), EVQ_OK, &err);
    assert_int_equal(bytes.bytes, sizeof golden - 1);
    assert_memory_equal(bytes.data, golden, bytes.bytes);
    evq_buffer_free(&bytes);
    evq_result_free(result);
}

/* The smallest message, with more pairs: "\xa3key" value. */
#define MESSAGE(count, pairs)                                                                      \
    (const uint8_t *)(count "\xa3run\xa1r\xa5suite\xa1s\xa4root\xa1"                               \
                            "c\xa4path\xa1p" pairs),                                               \
        sizeof(count "\xa3run\xa1r\xa5suite\xa1s\xa4root\xa1"                                      \
                     "c\xa4path\xa1p" pairs) -                                                     \
            1

static void codec_job_decode_sets_defaults_for_absent_and_nil(void **state)
{
    (void)state;
    struct evq_error err;
    struct evq_job *job = NULL;
    assert_status_err(evq_codec_job_decode(MESSAGE("\x84", ""), &job, &err), EVQ_OK, &err);
    assert_string_equal(job->variant, "regular");
    assert_int_equal(job->priority, 2);
    assert_true(isnan(job->epoch));
    assert_false(job->needs_given);
    evq_job_free(job);
    job = NULL;
    assert_status_err(
        evq_codec_job_decode(MESSAGE("\x86", "\xa7variant\xc0\xa5needs\xc0"), &job, &err), EVQ_OK,
        &err);
    assert_string_equal(job->variant, "regular");
    assert_false(job->needs_given);
    evq_job_free(job);
    job = NULL; // Lua writes an empty table as an empty array; numbers that are whole come as
                // integers.
    assert_status_err(evq_codec_job_decode(MESSAGE("\x87", "\xa6params\x90\xa5needs\x90\xa5"
                                                           "epoch\x03"),
                                           &job, &err),
                      EVQ_OK, &err);
    assert_int_equal(job->param_count, 0);
    assert_true(job->needs_given);
    assert_near(job->epoch, 3, 0);
    evq_job_free(job);
}

/* A newer build's fields pass through an older one unchanged, whatever they hold. */
static void codec_job_keeps_unknown_fields_byte_for_byte(void **state)
{
    (void)state;
    static const char extra[] = "\xa3new\x82\xa1"
                                "a\xcd\x00\x01\xa1"
                                "b\x91\xc4\x02\xff\x00\xa5later\xd4\x05z";
    struct evq_error err;
    struct evq_job *job = NULL;
    struct evq_job *back = NULL;
    struct evq_buffer bytes;
    assert_status_err(evq_codec_job_decode(MESSAGE("\x87", "\xa3new\x82\xa1"
                                                           "a\xcd\x00\x01\xa1"
                                                           "b\x91\xc4\x02\xff\x00"
                                                           "\xa4step\x05\xa5later\xd4\x05z"),
                                           &job, &err),
                      EVQ_OK, &err);
    assert_int_equal(job->step, 5);
    assert_int_equal(job->extra_count, 2);
    assert_int_equal(job->extra_bytes, sizeof extra - 1);
    assert_memory_equal(job->extra, extra, sizeof extra - 1);
    evq_buffer_init(&bytes, 0);
    assert_status_err(evq_codec_job_encode(job, &bytes, &err), EVQ_OK, &err);
    assert_status_err(evq_codec_job_decode(bytes.data, bytes.bytes, &back, &err), EVQ_OK, &err);
    assert_int_equal(back->extra_count, 2);
    assert_int_equal(back->extra_bytes, job->extra_bytes);
    assert_memory_equal(back->extra, job->extra, job->extra_bytes);
    evq_buffer_free(&bytes);
    evq_job_free(job);
    evq_job_free(back);
}

/* A key that begins as a field's name does and goes on behind a NUL is not that field. */
static void codec_job_key_with_a_nul_is_unknown(void **state)
{
    (void)state;
    struct evq_job *job = small_job();
    struct evq_buffer small;
    struct evq_error err;

    evq_buffer_init(&small, 0);
    assert_status_err(evq_codec_job_encode(job, &small, &err), EVQ_OK, &err);
    evq_job_free(job);
    assert_in_range(small.data[0], 0x81, 0x8e); // A map with room for one more in its first byte.
    for (uint8_t length = 5; length < 200; length++) {
        const uint8_t key[200] = "step";
        const uint8_t head[] = {(uint8_t)(small.data[0] + 1)};
        struct evq_buffer bytes;
        evq_buffer_init(&bytes, 0);
        evq_buffer_append(&bytes, head, 1);
        evq_buffer_append(&bytes, small.data + 1, small.bytes - 1);
        evq_buffer_append(&bytes, (const uint8_t[]){0xd9, length}, 2);
        evq_buffer_append(&bytes, key, length);
        evq_buffer_append(&bytes, "\x07", 1);
        assert_status_err(evq_codec_job_decode(bytes.data, bytes.bytes, &job, &err), EVQ_OK, &err);
        assert_int_equal(job->step, 300);
        assert_int_equal(job->extra_count, 1);
        evq_job_free(job);
        evq_buffer_free(&bytes);
    }
    evq_buffer_free(&small);
}

static void codec_encode_refuses_and_leaves_the_buffer(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_buffer bytes;
    struct evq_job *job = small_job();
    char *big = malloc(70000);
    assert_non_null(big);
    memset(big, 'a', 69999);
    big[69999] = '\0';
    evq_buffer_init(&bytes, 0);
    evq_buffer_text(&bytes, "before");
    job->manifest = big;
    assert_status(evq_codec_job_encode(job, &bytes, &err), EVQ_E_LIMIT);
    assert_holds(err.message, "allowed 65536");
    assert_string_equal(evq_buffer_string(&bytes), "before");
    job->manifest = "";
    job->run = "";
    assert_status(evq_codec_job_encode(job, &bytes, &err), EVQ_E_INVALID);
    assert_holds(err.message, "run is missing");
    assert_string_equal(evq_buffer_string(&bytes), "before");
    struct evq_result *result = evq_result_new();
    result->job = "j";
    result->reason = "\xff";
    assert_status(evq_codec_result_encode(result, &bytes, &err), EVQ_E_INVALID);
    assert_holds(err.message, "reason is not UTF-8");
    assert_string_equal(evq_buffer_string(&bytes), "before");
    evq_result_free(result);
    evq_job_free(job);
    evq_buffer_free(&bytes);
    free(big);
}

static void codec_typical_message_is_small(void **state)
{
    (void)state;
    struct evq_buffer bytes;
    struct evq_job *job = small_job();
    job->run = "llama-3-8b-sft-2f9c11aa";
    job->session_ms = INT64_C(1795221300123);
    job->created_ms = INT64_C(1795221390123);
    job->step = 12500;
    job->epoch = 1.25;
    job->suite = "quick";
    job->root = "checkpoints";
    job->path = "llama-3-8b-sft/checkpoint-12500";
    job->fingerprint = "0123456789abcdef0123456789abcdef";
    job->host = "node-17";
    evq_buffer_init(&bytes, 0);
    assert_status(evq_codec_job_encode(job, &bytes, NULL), EVQ_OK);
    assert_true(bytes.bytes < 300);
    evq_buffer_free(&bytes);
    evq_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codec_job_encode_gives_the_golden_bytes),
        cmocka_unit_test(codec_result_encode_gives_the_golden_bytes),
        cmocka_unit_test(codec_job_decode_sets_defaults_for_absent_and_nil),
        cmocka_unit_test(codec_job_keeps_unknown_fields_byte_for_byte),
        cmocka_unit_test(codec_job_key_with_a_nul_is_unknown),
        cmocka_unit_test(codec_encode_refuses_and_leaves_the_buffer),
        cmocka_unit_test(codec_typical_message_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
