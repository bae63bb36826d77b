/* Jobs and results on the wire: golden bytes, defaults, unknown fields, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/clock.h"
#include "shared/codec.h"
#include "tests/fixture/check.h"

#define BYTES(text) (const uint8_t *)(text), sizeof(text) - 1

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

static void job_refused(const uint8_t *data, size_t bytes, enum evq_status want,
                        const char *because)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_job *job = NULL;
    assert_status_err(evq_codec_job_decode(data, bytes, &job, &err), want, &err);
    assert_null(job);
    assert_int_equal(err.status, want);
    assert_holds(err.message, because);
}

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

static void codec_job_decode_names_what_is_wrong(void **state)
{
    (void)state;
    job_refused(BYTES("\xdd\xff\xff\xff\xff"), EVQ_E_CORRUPT, "message: msgpack object at byte 0");
    job_refused(BYTES("\x90"), EVQ_E_CORRUPT, "message is array, expected map");
    job_refused(BYTES("\x80"), EVQ_E_CORRUPT, "message: run is missing");
    job_refused(MESSAGE("\x84", "\x00"), EVQ_E_CORRUPT, "1 bytes after");
    job_refused(MESSAGE("\x85", "\xa7version\x02"), EVQ_E_VERSION, "version 2");
    job_refused(MESSAGE("\x86", "\xa4step\xa1x\xa7version\x02"), EVQ_E_VERSION, "version 2");
    job_refused(MESSAGE("\x85", "\xa7version\x00"), EVQ_E_CORRUPT, "version");
    job_refused(MESSAGE("\x85", "\xa7version\xa1"
                                "1"),
                EVQ_E_CORRUPT, "version");
    job_refused(MESSAGE("\x85", "\xa3run\xa1q"), EVQ_E_CORRUPT, "key 'run' comes twice");
    job_refused(MESSAGE("\x86", "\xa3new\x01\xa3new\x02"), EVQ_E_CORRUPT, "key 'new' comes twice");
    job_refused(MESSAGE("\x85", "\x01\x01"), EVQ_E_CORRUPT, "key is not text");
    job_refused(MESSAGE("\x85", "\xa4step\xa1x"), EVQ_E_CORRUPT,
                "'step': expected integer, got text");
    job_refused(MESSAGE("\x85", "\xa4step\xca\x3f\x80\x00\x00"), EVQ_E_CORRUPT,
                "'step': expected integer, got float");
    job_refused(MESSAGE("\x85", "\xa4step\xff"), EVQ_E_CORRUPT, "'step': out of range");
    job_refused(MESSAGE("\x85", "\xa4step\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), EVQ_E_CORRUPT,
                "'step': out of range");
    job_refused(MESSAGE("\x85", "\xa5"
                                "epoch\xa1"
                                "1"),
                EVQ_E_CORRUPT, "'epoch': expected number, got text");
    job_refused(MESSAGE("\x85", "\xa5"
                                "epoch\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00"),
                EVQ_E_CORRUPT, "epoch is infinite");
    job_refused(MESSAGE("\x85", "\xa7variant\x01"), EVQ_E_CORRUPT,
                "'variant': expected text, got integer");
    job_refused(MESSAGE("\x85", "\xa7variant\xc4\x01x"), EVQ_E_CORRUPT,
                "'variant': expected text, got bytes");
    job_refused(MESSAGE("\x85", "\xa6"
                                "format\xa1\xff"),
                EVQ_E_CORRUPT, "'format': not UTF-8");
    job_refused(MESSAGE("\x85", "\xa6"
                                "format\xa1\x00"),
                EVQ_E_CORRUPT, "'format': not UTF-8, or holds NUL");
    job_refused(MESSAGE("\x85", "\xa4keep\x01"), EVQ_E_CORRUPT,
                "'keep': expected bool, got integer");
    job_refused(MESSAGE("\x85", "\xa8priority\x04"), EVQ_E_CORRUPT,
                "'priority': out of range 0 to 3");
    job_refused(MESSAGE("\x85", "\xa6policy\xa4some"), EVQ_E_CORRUPT,
                "'policy': unknown word 'some'");
    job_refused(MESSAGE("\x85", "\xa6policy\x01"), EVQ_E_CORRUPT, "'policy': expected text");
    job_refused(MESSAGE("\x85", "\xa6params\x91\x01"), EVQ_E_CORRUPT,
                "'params': expected map, got array");
    job_refused(MESSAGE("\x85", "\xa6params\x81\xa1k\x01"), EVQ_E_CORRUPT,
                "'params.k': expected text, got integer");
    job_refused(MESSAGE("\x85", "\xa6params\x81\x01\xa1v"), EVQ_E_CORRUPT,
                "map 'params': key is not text");
    job_refused(MESSAGE("\x85", "\xa6params\x82\xa1k\xa1v\xa1k\xa1v"), EVQ_E_CORRUPT,
                "map 'params': key 'k' comes twice");
    job_refused(MESSAGE("\x85", "\xa5needs\x01"), EVQ_E_CORRUPT,
                "'needs': expected map, got integer");
    job_refused(MESSAGE("\x85", "\xa5needs\x81\xa4gpus\xa1x"), EVQ_E_CORRUPT,
                "'needs.gpus': expected integer");
    job_refused(MESSAGE("\x85", "\xa5needs\x82\xa4gpus\x01\xa4gpus\x01"), EVQ_E_CORRUPT,
                "map 'needs': key 'gpus' comes twice");
    job_refused(MESSAGE("\x85", "\xa5needs\x81\xa6labels\xa1x"), EVQ_E_CORRUPT,
                "'needs.labels': expected array, got text");
    job_refused(MESSAGE("\x85", "\xa5needs\x81\xa6labels\x92\xa1x\x01"), EVQ_E_CORRUPT,
                "'needs.labels[1]': expected text");
    job_refused(MESSAGE("\x85", "\xa3pin\xa4../x"), EVQ_E_CORRUPT,
                "message: pin '../x' leaves its root");
    job_refused(MESSAGE("\x85", "\xab"
                                "fingerprint\xa1x"),
                EVQ_E_CORRUPT, "message: fingerprint");
}

static void codec_result_decode_names_what_is_wrong(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        size_t count;
        const char *because;
    } cases[] = {
#define CASE(text, because) {text, sizeof(text) - 1, because}
        CASE("\x80", "result: job is missing"),
        CASE("\x82\xa3job\xa1j\xa7metrics\x80", "'metrics': expected array, got map"),
        CASE("\x82\xa3job\xa1j\xa7metrics\x91\x01", "'metrics[0]': expected map, got integer"),
        CASE("\x82\xa3job\xa1j\xa7metrics\x91\x80", "metrics[0].name has 0 bytes"),
        CASE("\x82\xa3job\xa1j\xa7metrics\x92\x81\xa4name\xa1"
             "a\x82\xa4name\xa1"
             "b\xa5value\xa1x",
             "'metrics[1].value': expected number, got text"),
        CASE("\x82\xa3job\xa1j\xa7metrics\x92\x81\xa4name\xa1"
             "a\x81\xa4name\xa1"
             "a",
             "metrics has 'a' twice"),
        CASE("\x82\xa3job\xa1j\xa7metrics\x91\x82\xa4name\xa1"
             "a\xb0higher_is_better\x02",
             "'metrics[0].higher_is_better': out of range -1 to 1"),
        CASE("\x82\xa3job\xa1j\xa4sums\x91\x82\xa4name\xa1"
             "a\xa5"
             "count\xc3",
             "'sums[0].count': expected integer, got bool"),
        CASE("\x82\xa3job\xa1j\xa5state\xa3odd", "'state': unknown word 'odd'"),
        CASE("\x82\xa3job\xa1j\xa6timing\x81\xa5"
             "bytes\xa1x",
             "'timing.bytes': expected integer"),
        CASE("\x82\xa3job\xa1j\xa1n\xfe", "'n': out of range"),
        CASE("\x82\xa3job\xa1j\xa4task\xa3"
             "a b",
             "result: task"),
#undef CASE
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_error err = {EVQ_OK, ""};
        struct evq_result *result = NULL;
        assert_status_err(
            evq_codec_result_decode((const uint8_t *)cases[i].bytes, cases[i].count, &result, &err),
            EVQ_E_CORRUPT, &err);
        assert_holds(err.message, cases[i].because);
        assert_null(result);
    }
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
        cmocka_unit_test(codec_job_decode_names_what_is_wrong),
        cmocka_unit_test(codec_result_decode_names_what_is_wrong),
        cmocka_unit_test(codec_job_keeps_unknown_fields_byte_for_byte),
        cmocka_unit_test(codec_encode_refuses_and_leaves_the_buffer),
        cmocka_unit_test(codec_typical_message_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
