/* Records made at random: what is written is read again, whatever is cut off or changed is refused
 * or read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "tests/fixture/check.h"
#include "tests/fixture/random.h"

static uint64_t random_state;

static uint64_t random_below(uint64_t limit)
{
    return fixture_random(&random_state) % limit;
}

static void random_seed(uint64_t seed)
{
    print_message("seed %ju\n", (uintmax_t)seed);
    random_state = seed;
}

static const char *random_name(struct evq_arena *arena, size_t bytes_max)
{
    static const char letters[] = "abcXYZ019_-";
    size_t bytes = 1 + random_below(bytes_max);
    char *text = evq_arena_alloc(arena, bytes + 1);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++) {
        text[i] = letters[random_below(sizeof letters - 1)];
    }
    return text;
}

static const char *random_text(struct evq_arena *arena, size_t pieces_max)
{
    static const char *const pieces[] = {"a",  " ",  "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                         "\n", "\"", "7"};
    size_t pieces_count = random_below(pieces_max + 1);
    char *text = evq_arena_alloc(arena, pieces_count * 4 + 1);
    assert_non_null(text);
    for (size_t i = 0; i < pieces_count; i++) {
        strcat(text, pieces[random_below(8)]);
    }
    return text;
}

static double random_double(void)
{
    const double special[] = {0.0, -0.0, NAN, INFINITY, -INFINITY, 5e-324, 1e308, 1.0 / 3};
    uint64_t pick = random_below(16);
    return pick < 8 ? special[pick] : ((double)random_below(1000000) - 500000) / 777.0;
}

static int64_t random_count(void)
{
    return (int64_t)(random_below(UINT64_C(1) << 40) >> random_below(40));
}

static size_t random_pairs(struct evq_arena *arena, const struct evq_pair **ret)
{
    size_t count = random_below(2) != 0 ? random_below(20) : 0;
    struct evq_pair *pairs = evq_arena_array(arena, count, sizeof *pairs);
    assert_non_null(pairs);
    for (size_t i = 0; i < count; i++) {
        pairs[i].key = evq_arena_printf(arena, "%zu.%s", i, random_text(arena, 5));
        pairs[i].value = random_text(arena, 30);
    }
    *ret = pairs;
    return count;
}

static struct evq_job *random_job(void)
{
    struct evq_job *job = evq_job_new();
    assert_non_null(job);
    struct evq_arena *arena = job->arena;
    job->run = random_name(arena, 64);
    job->session_ms = random_count();
    job->step = random_count();
    job->epoch = isinf(random_double()) ? 0.5 : (double)random_count() / 3;
    job->variant = random_below(2) != 0 ? "regular" : random_name(arena, 32);
    job->suite = random_name(arena, 32);
    job->root = random_name(arena, 32);
    job->path = evq_arena_printf(arena, "%s/x%s", random_name(arena, 20), random_name(arena, 200));
    job->pin = random_below(2) != 0 ? "" : random_name(arena, 40);
    job->format = random_below(2) != 0 ? "" : "torch";
    job->fingerprint = random_below(2) != 0 ? "" : "0123456789abcdef0123456789abcdef";
    job->manifest = random_text(arena, 300);
    job->host = random_name(arena, 20);
    job->created_ms = random_count();
    job->needs_given = random_below(2) != 0;
    if (job->needs_given) {
        const char **labels = evq_arena_array(arena, 3, sizeof *labels);
        job->needs.gpus = (int32_t)random_below(9);
        job->needs.gpu_memory_bytes = random_count();
        job->needs.label_count = random_below(4);
        for (size_t i = 0; i < job->needs.label_count; i++) {
            labels[i] = random_name(arena, 32);
        }
        job->needs.labels = labels;
    }
    job->priority = (int32_t)random_below(4);
    job->policy = (enum evq_job_policy)random_below(3);
    job->keep = random_below(2) != 0;
    job->param_count = random_pairs(arena, &job->params);
    job->tracker_count = random_pairs(arena, &job->trackers);
    job->tag_count = random_pairs(arena, &job->tags);
    job->snapshot_given = random_below(2) != 0;
    if (job->snapshot_given) {
        job->snapshot.boot = random_name(arena, 36);
        job->snapshot.place = random_below(2) != 0 ? "" : "[fe80::1%eth0]:40000";
        job->snapshot.token = random_below(2) != 0 ? "" : "fedcba9876543210fedcba9876543210";
        job->snapshot.bytes = random_count();
        job->snapshot.checksum = "0123456789abcdef0123456789abcdef";
    }
    return job;
}

static struct evq_result *random_result(void)
{
    struct evq_result *result = evq_result_new();
    assert_non_null(result);
    struct evq_arena *arena = result->arena;
    struct evq_metric *metrics = evq_arena_array(arena, 20, sizeof *metrics);
    struct evq_sum *sums = evq_arena_array(arena, 20, sizeof *sums);
    assert_true(metrics != NULL && sums != NULL);
    result->job = random_name(arena, 100);
    result->task = random_below(4) == 0 ? "" : random_name(arena, 32);
    result->run = random_name(arena, 64);
    result->step = random_count();
    result->epoch = random_double();
    result->suite = random_name(arena, 32);
    result->state = (enum evq_job_state)random_below(EVQ_JOB_STATE_COUNT);
    result->reason = random_text(arena, 50);
    result->metric_prefix = random_text(arena, 3);
    result->metric_count = random_below(20);
    for (size_t i = 0; i < result->metric_count; i++) {
        metrics[i] = (struct evq_metric){evq_arena_printf(arena, "m%zu", i), random_double(),
                                         (int32_t)random_below(3) - 1, random_double()};
    }
    result->metrics = metrics;
    result->n = random_count() - 1;
    result->sum_count = random_below(20);
    for (size_t i = 0; i < result->sum_count; i++) {
        bool is_count = random_below(2) != 0;
        sums[i] = (struct evq_sum){random_name(arena, 9), is_count, is_count ? 0 : random_double(),
                                   is_count ? random_count() - (INT64_C(1) << 38) : 0};
    }
    result->sums = sums;
    result->timing = (struct evq_timing){random_count(), random_count(), 0, random_count(), 7, -1};
    result->weights_digest = "0123456789abcdef0123456789abcdef";
    result->backend = random_text(arena, 3);
    result->device = random_text(arena, 9);
    result->compute = random_text(arena, 9);
    result->note = random_text(arena, 40);
    result->worker = random_name(arena, 30);
    result->attempt = (int32_t)random_below(100);
    result->retries = (int32_t)random_below(3);
    result->finished_ms = random_count();
    result->checkpoint = random_text(arena, 90);
    result->tracker_count = random_pairs(arena, &result->trackers);
    return result;
}

/* Bits, but for any NaN being as good as another. */
static void assert_same_double(double a, double b)
{
    if (isnan(a) && isnan(b)) {
        return;
    }
    assert_memory_equal(&a, &b, sizeof a);
}

static void assert_same_pairs(const struct evq_pair *a, size_t a_count, const struct evq_pair *b,
                              size_t b_count)
{
    assert_int_equal(a_count, b_count);
    for (size_t i = 0; i < a_count; i++) {
        assert_string_equal(a[i].key, b[i].key);
        assert_string_equal(a[i].value, b[i].value);
    }
}

static void assert_same_job(const struct evq_job *a, const struct evq_job *b)
{
    assert_string_equal(a->run, b->run);
    assert_true(a->session_ms == b->session_ms && a->step == b->step &&
                a->created_ms == b->created_ms);
    assert_same_double(a->epoch, b->epoch);
    assert_string_equal(a->variant, b->variant);
    assert_string_equal(a->suite, b->suite);
    assert_string_equal(a->root, b->root);
    assert_string_equal(a->path, b->path);
    assert_string_equal(a->pin, b->pin);
    assert_string_equal(a->format, b->format);
    assert_string_equal(a->fingerprint, b->fingerprint);
    assert_string_equal(a->manifest, b->manifest);
    assert_string_equal(a->host, b->host);
    assert_int_equal(a->needs_given, b->needs_given);
    assert_int_equal(a->needs.gpus, b->needs.gpus);
    assert_true(a->needs.gpu_memory_bytes == b->needs.gpu_memory_bytes);
    assert_int_equal(a->needs.label_count, b->needs.label_count);
    for (size_t i = 0; i < a->needs.label_count; i++) {
        assert_string_equal(a->needs.labels[i], b->needs.labels[i]);
    }
    assert_int_equal(a->priority, b->priority);
    assert_int_equal(a->policy, b->policy);
    assert_int_equal(a->keep, b->keep);
    assert_same_pairs(a->params, a->param_count, b->params, b->param_count);
    assert_same_pairs(a->trackers, a->tracker_count, b->trackers, b->tracker_count);
    assert_same_pairs(a->tags, a->tag_count, b->tags, b->tag_count);
    assert_int_equal(a->snapshot_given, b->snapshot_given);
    assert_string_equal(a->snapshot.boot, b->snapshot.boot);
    assert_string_equal(a->snapshot.place, b->snapshot.place);
    assert_string_equal(a->snapshot.token, b->snapshot.token);
    assert_true(a->snapshot.bytes == b->snapshot.bytes);
    assert_string_equal(a->snapshot.checksum, b->snapshot.checksum);
}

static void assert_same_result(const struct evq_result *a, const struct evq_result *b)
{
    assert_string_equal(a->job, b->job);
    assert_string_equal(a->task, b->task);
    assert_string_equal(a->run, b->run);
    assert_true(a->step == b->step && a->n == b->n && a->finished_ms == b->finished_ms);
    assert_same_double(a->epoch, b->epoch);
    assert_string_equal(a->suite, b->suite);
    assert_int_equal(a->state, b->state);
    assert_string_equal(a->reason, b->reason);
    assert_string_equal(a->metric_prefix, b->metric_prefix);
    assert_int_equal(a->metric_count, b->metric_count);
    for (size_t i = 0; i < a->metric_count; i++) {
        assert_string_equal(a->metrics[i].name, b->metrics[i].name);
        assert_same_double(a->metrics[i].value, b->metrics[i].value);
        assert_same_double(a->metrics[i].std_error, b->metrics[i].std_error);
        assert_int_equal(a->metrics[i].higher_is_better, b->metrics[i].higher_is_better);
    }
    assert_int_equal(a->sum_count, b->sum_count);
    for (size_t i = 0; i < a->sum_count; i++) {
        assert_string_equal(a->sums[i].name, b->sums[i].name);
        assert_int_equal(a->sums[i].is_count, b->sums[i].is_count);
        assert_same_double(a->sums[i].value, b->sums[i].value);
        assert_true(a->sums[i].count == b->sums[i].count);
    }
    assert_memory_equal(&a->timing, &b->timing, sizeof a->timing);
    assert_string_equal(a->weights_digest, b->weights_digest);
    assert_string_equal(a->backend, b->backend);
    assert_string_equal(a->device, b->device);
    assert_string_equal(a->compute, b->compute);
    assert_string_equal(a->note, b->note);
    assert_string_equal(a->worker, b->worker);
    assert_int_equal(a->attempt, b->attempt);
    assert_int_equal(a->retries, b->retries);
    assert_string_equal(a->checkpoint, b->checkpoint);
    assert_same_pairs(a->trackers, a->tracker_count, b->trackers, b->tracker_count);
}

static void codec_job_round_trips_random_records(void **state)
{
    (void)state;
    random_seed(20261121);
    for (int i = 0; i < 500; i++) {
        struct evq_error err = {EVQ_OK, ""};
        struct evq_buffer bytes;
        struct evq_buffer again;
        struct evq_job *job = random_job();
        struct evq_job *back = NULL;
        evq_buffer_init(&bytes, 0);
        evq_buffer_init(&again, 0);
        assert_status_err(evq_codec_job_encode(job, &bytes, &err), EVQ_OK, &err);
        assert_status_err(evq_codec_job_decode(bytes.data, bytes.bytes, &back, &err), EVQ_OK, &err);
        assert_same_job(job, back);
        assert_int_equal(back->extra_count, 0);
        assert_status_err(evq_codec_job_encode(back, &again, &err), EVQ_OK, &err);
        assert_int_equal(bytes.bytes, again.bytes);
        assert_memory_equal(bytes.data, again.data, again.bytes);
        evq_job_free(job);
        evq_job_free(back);
        evq_buffer_free(&bytes);
        evq_buffer_free(&again);
    }
}

static void codec_result_round_trips_random_records(void **state)
{
    (void)state;
    random_seed(20261122);
    for (int i = 0; i < 500; i++) {
        struct evq_error err = {EVQ_OK, ""};
        struct evq_buffer bytes;
        struct evq_result *result = random_result();
        struct evq_result *back = NULL;
        evq_buffer_init(&bytes, 0);
        assert_status_err(evq_codec_result_encode(result, &bytes, &err), EVQ_OK, &err);
        assert_status_err(evq_codec_result_decode(bytes.data, bytes.bytes, &back, &err), EVQ_OK,
                          &err);
        assert_same_result(result, back);
        evq_result_free(result);
        evq_result_free(back);
        evq_buffer_free(&bytes);
    }
}

/* Every prefix of a valid record is refused, and read no further than it goes. */
static void codec_decode_refuses_every_truncation(void **state)
{
    (void)state;
    random_seed(5);
    for (int round = 0; round < 20; round++) {
        struct evq_buffer job_bytes;
        struct evq_buffer result_bytes;
        struct evq_job *job = random_job();
        struct evq_result *result = random_result();
        evq_buffer_init(&job_bytes, 0);
        evq_buffer_init(&result_bytes, 0);
        assert_status(evq_codec_job_encode(job, &job_bytes, NULL), EVQ_OK);
        assert_status(evq_codec_result_encode(result, &result_bytes, NULL), EVQ_OK);
        for (size_t cut = 0; cut < job_bytes.bytes; cut++) {
            struct evq_job *back = NULL;
            uint8_t *exact = malloc(cut > 0 ? cut : 1);
            memcpy(exact, job_bytes.data, cut);
            assert_status(evq_codec_job_decode(exact, cut, &back, NULL), EVQ_E_CORRUPT);
            assert_null(back);
            free(exact);
        }
        for (size_t cut = 0; cut < result_bytes.bytes; cut++) {
            struct evq_result *back = NULL;
            uint8_t *exact = malloc(cut > 0 ? cut : 1);
            memcpy(exact, result_bytes.data, cut);
            assert_status(evq_codec_result_decode(exact, cut, &back, NULL), EVQ_E_CORRUPT);
            assert_null(back);
            free(exact);
        }
        evq_buffer_free(&job_bytes);
        evq_buffer_free(&result_bytes);
        evq_job_free(job);
        evq_result_free(result);
    }
}

/* One byte changed: refused or read as something else, never a crash; what is read can be written
 * again. */
static void codec_decode_survives_changed_bytes(void **state)
{
    (void)state;
    random_seed(6);
    for (int round = 0; round < 20; round++) {
        struct evq_buffer bytes;
        struct evq_job *job = random_job();
        evq_buffer_init(&bytes, 0);
        assert_status(evq_codec_job_encode(job, &bytes, NULL), EVQ_OK);
        for (size_t at = 0; at < bytes.bytes; at++) {
            struct evq_job *back = NULL;
            uint8_t kept = bytes.data[at];
            bytes.data[at] = (uint8_t)random_below(256);
            enum evq_status status = evq_codec_job_decode(bytes.data, bytes.bytes, &back, NULL);
            if (status == EVQ_OK) {
                struct evq_buffer again;
                evq_buffer_init(&again, 0);
                assert_status(evq_codec_job_encode(back, &again, NULL), EVQ_OK);
                evq_buffer_free(&again);
                evq_job_free(back);
            } else {
                assert_true(status == EVQ_E_CORRUPT || status == EVQ_E_VERSION);
            }
            bytes.data[at] = kept;
        }
        evq_buffer_free(&bytes);
        evq_job_free(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codec_job_round_trips_random_records),
        cmocka_unit_test(codec_result_round_trips_random_records),
        cmocka_unit_test(codec_decode_refuses_every_truncation),
        cmocka_unit_test(codec_decode_survives_changed_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
