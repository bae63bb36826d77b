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

/* ---- the pre-scan ---- */

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

static void scan_refuses_lengths_beyond_the_bytes(void **state)
{
    (void)state;
    scan_refused(BYTES(""), "ends");
    scan_refused(BYTES("\xdd\xff\xff\xff\xff"), "declares 4294967295");
    scan_refused(BYTES("\xdf\xff\xff\xff\xff"), "declares 8589934590");
    scan_refused(BYTES("\xdb\xff\xff\xff\xff"), "declares");
    scan_refused(BYTES("\xc6\xff\xff\xff\xff"), "declares");
    scan_refused(BYTES("\xc9\xff\xff\xff\xff"), "declares 4294967296");
    scan_refused(BYTES("\xdc\xff\xff"), "declares 65535");
    scan_refused(BYTES("\xde\x00\x02\x01\x01"), "declares 4");
    scan_refused(BYTES("\xda\x00\x02z"), "declares 2");
    scan_refused(BYTES("\xd9\x02z"), "declares 2");
    scan_refused(BYTES("\xa2z"), "declares 2");
    scan_refused(BYTES("\x92\x01"), "declares 2");
    scan_refused(BYTES("\x81\x01"), "declares 2");
    scan_refused(BYTES("\xcb\x00\x00"), "declares 8");
    scan_refused(BYTES("\xd8\x00"), "declares 17");
    scan_refused(BYTES("\xc7\x00"), "declares 1");
    scan_refused(BYTES("\xdd\xff\xff"), "within the length");
    scan_refused(BYTES("\xd9"), "within the length");
    scan_refused(BYTES("\xc1"), "0xc1");
    scan_refused(BYTES("\x91\xc1"), "0xc1");
    scan_refused(BYTES("\x01\x01"), "1 bytes after");
    scan_refused(BYTES("\x91\x91"), "declares 1");
    scan_refused(BYTES("\x92\x91\x01"), "ends at byte 3");
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
    assert_status(evq_codec_scan(data, 10, 9, NULL), EVQ_E_CORRUPT);
}

/* ---- records ---- */

static uint64_t random_state;

static uint64_t random_below(uint64_t limit)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (random_state * UINT64_C(0x2545f4914f6cdd1d) >> 11) % limit;
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
        pairs[i].key = evq_arena_printf(arena, "%zu%s", i, random_text(arena, 5));
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
    result->note = random_text(arena, 40);
    result->worker = random_name(arena, 30);
    result->attempt = (int32_t)random_below(100);
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
    assert_string_equal(a->note, b->note);
    assert_string_equal(a->worker, b->worker);
    assert_int_equal(a->attempt, b->attempt);
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

/* ---- notes ---- */

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
    };
    evq_buffer_init(&bytes, 0);
    assert_status_err(evq_codec_note_encode("task", fields, 6, &bytes, &err), EVQ_OK, &err);
    assert_status_err(evq_codec_note_decode(bytes.data, bytes.bytes, &note, &err), EVQ_OK, &err);
    assert_string_equal(note->type, "task");
    assert_int_equal(note->field_count, 6);
    assert_string_equal(evq_codec_note_field(note, "job")->text, "a/1/b/c \xff");
    assert_true(evq_codec_note_field(note, "done")->integer == INT64_MIN);
    assert_true(evq_codec_note_field(note, "total")->integer == INT64_MAX);
    assert_near(evq_codec_note_field(note, "loss")->real, 0.1, 0);
    assert_int_equal(evq_codec_note_field(note, "record")->byte_count, 3);
    assert_memory_equal(evq_codec_note_field(note, "record")->bytes, "\0\1\2", 3);
    assert_int_equal(evq_codec_note_field(note, "none")->byte_count, 0);
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

static void codec_note_decode_refuses_bad_bytes(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        size_t count;
        const char *because;
    } cases[] = {
#define CASE(text, because) {text, sizeof(text) - 1, because}
        CASE("\x80", "note has no type"),
        CASE("\x90", "note is array"),
        CASE("\x81\xa4type\x01", "expected text"),
        CASE("\x81\xa4type\xa1\x00", "without NUL"),
        CASE("\x82\xa4type\xa1t\xa4type\xa1t", "comes twice"),
        CASE("\x82\xa4type\xa1t\xa1k\x90", "field 'k'"),
        CASE("\x82\xa4type\xa1t\xa1k\xc0", "field 'k'"),
        CASE("\x82\xa4type\xa1t\xa1k\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "out of range"),
        CASE("\xdf\xff\xff\xff\xff", "note: msgpack"),
#undef CASE
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_error err = {EVQ_OK, ""};
        struct evq_note *note = NULL;
        assert_status_err(
            evq_codec_note_decode((const uint8_t *)cases[i].bytes, cases[i].count, &note, &err),
            EVQ_E_CORRUPT, &err);
        assert_holds(err.message, cases[i].because);
        assert_null(note);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan_refuses_lengths_beyond_the_bytes),
        cmocka_unit_test(scan_accepts_every_type),
        cmocka_unit_test(scan_bounds_depth_nodes_and_bytes),
        cmocka_unit_test(codec_job_round_trips_random_records),
        cmocka_unit_test(codec_result_round_trips_random_records),
        cmocka_unit_test(codec_job_encode_gives_the_golden_bytes),
        cmocka_unit_test(codec_result_encode_gives_the_golden_bytes),
        cmocka_unit_test(codec_decode_refuses_every_truncation),
        cmocka_unit_test(codec_decode_survives_changed_bytes),
        cmocka_unit_test(codec_job_decode_sets_defaults_for_absent_and_nil),
        cmocka_unit_test(codec_job_decode_names_what_is_wrong),
        cmocka_unit_test(codec_result_decode_names_what_is_wrong),
        cmocka_unit_test(codec_job_keeps_unknown_fields_byte_for_byte),
        cmocka_unit_test(codec_encode_refuses_and_leaves_the_buffer),
        cmocka_unit_test(codec_typical_message_is_small),
        cmocka_unit_test(codec_note_round_trips),
        cmocka_unit_test(codec_note_decode_refuses_bad_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
