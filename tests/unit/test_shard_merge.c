#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "shared/base/buffer.h"
#include "tests/fixture/check.h"
#include "worker/supervisor/lease.h"
#include "worker/supervisor/shard_merge.h"

#define PARTS_MAX 4

static const struct evq_task_config tasks[] = {{.name = "digits", .type = "classification"},
                                               {.name = "more", .type = "classification"}};
static const struct evq_suite suite = {.name = "quick", .tasks = tasks, .task_count = 2};

struct parts {
    struct evq_lease leases[PARTS_MAX]; // Each collects the part of one shard.
    const uint8_t *data[PARTS_MAX];
    size_t bytes[PARTS_MAX];
    size_t count;
};

static void part_add(struct parts *parts, size_t shard, const char *task, int64_t n,
                     int64_t correct, double loss, const char *weights)
{
    const struct evq_sum sums[] = {{.name = "n", .is_count = true, .count = n},
                                   {.name = "correct", .is_count = true, .count = correct},
                                   {.name = "correct_top_k", .is_count = true, .count = 0},
                                   {.name = "nan_samples", .is_count = true, .count = 0},
                                   {.name = "loss", .value = loss}};
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    result->job = "run/1/regular/quick@0";
    result->run = "run";
    result->step = 1;
    result->variant = "regular";
    result->suite = "quick";
    result->task = task;
    result->state = EVQ_JOB_DONE;
    result->sums = sums;
    result->sum_count = 5;
    result->weights_digest = weights;
    result->data_digest = "";
    result->compute = shard == 1 && strcmp(task, "more") == 0 ? "bf16" : "fp32";
    result->timing.load_us = 100 + (int64_t)shard;
    result->timing.compute_us = 10;
    if (shard >= parts->count) {
        evq_buffer_init(&parts->leases[shard].part, 65536);
        parts->count = shard + 1;
    }
    evq_lease_part_add(&parts->leases[shard], result);
    assert_false(parts->leases[shard].part_failed);
    parts->data[shard] = parts->leases[shard].part.data;
    parts->bytes[shard] = parts->leases[shard].part.bytes;
    evq_result_free(result);
}

static void parts_free(struct parts *parts)
{
    for (size_t i = 0; i < parts->count; i++) {
        evq_buffer_free(&parts->leases[i].part);
    }
}

static double metric_of(const struct evq_result *result, const char *name)
{
    for (size_t i = 0; i < result->metric_count; i++) {
        if (strcmp(result->metrics[i].name, name) == 0) {
            return result->metrics[i].value;
        }
    }
    fail_msg("no metric '%s'", name);
    return 0;
}

static void merge_adds_the_sums_and_forms_the_metrics_once(void **state)
{
    struct parts parts = {0};
    struct evq_results results = {0};
    struct evq_error err;

    (void)state;
    part_add(&parts, 0, "digits", 10, 9, 4.0, "aa");
    part_add(&parts, 0, "more", 1, 0, 1.0, "aa");
    part_add(&parts, 1, "more", 1, 1, 2.0, "aa"); // Another order within the part.
    part_add(&parts, 1, "digits", 30, 11, 6.0, "aa");
    part_add(&parts, 2, "digits", 0, 0, 0.0, "aa"); // More shards than samples.
    part_add(&parts, 2, "more", 0, 0, 0.0, "aa");
    assert_status_err(evq_shard_merge_parts(&suite, parts.data, parts.bytes, 3, &results, &err),
                      EVQ_OK, &err);
    assert_int_equal(results.count, 2);
    assert_string_equal(results.items[0]->task, "digits");
    assert_int_equal(results.items[0]->n, 40);
    assert_near(metric_of(results.items[0], "accuracy"), 0.5, 1e-15);
    assert_near(metric_of(results.items[0], "cross_entropy"), 0.25, 1e-15);
    assert_near(metric_of(results.items[1], "accuracy"), 0.5, 1e-15);
    assert_string_equal(results.items[0]->weights_digest, "aa");
    assert_string_equal(results.items[0]->compute, "fp32");
    assert_string_equal(results.items[1]->compute, "mixed");
    assert_int_equal(results.items[0]->timing.load_us, 102);
    assert_int_equal(results.items[0]->timing.compute_us, 30);
    evq_results_free(&results);
    parts_free(&parts);
}

static void merge_refuses_parts_of_other_weights(void **state)
{
    struct parts parts = {0};
    struct evq_results results = {0};
    struct evq_error err;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        part_add(&parts, i, "digits", 10, 9, 4.0, i == 0 ? "aa" : "bb");
        part_add(&parts, i, "more", 10, 9, 4.0, "aa");
    }
    assert_status(evq_shard_merge_parts(&suite, parts.data, parts.bytes, 2, &results, &err),
                  EVQ_E_CHANGED);
    parts_free(&parts);
}

static void merge_refuses_malformed_parts(void **state)
{
    struct parts parts = {0};
    struct evq_results results = {0};
    struct evq_error err;

    (void)state;
    part_add(&parts, 0, "digits", 10, 9, 4.0, "aa");
    assert_status(evq_shard_merge_parts(&suite, parts.data, parts.bytes, 1, &results, &err),
                  EVQ_E_CORRUPT);
    assert_holds(err.message, "no task 'more'");
    part_add(&parts, 0, "more", 10, 9, 4.0, "aa");
    const size_t whole = parts.bytes[0];
    for (size_t bytes = 0; bytes < whole;
         bytes++) { // Cut anywhere: refused, never read past the end.
        parts.bytes[0] = bytes;
        assert_status(evq_shard_merge_parts(&suite, parts.data, parts.bytes, 1, &results, &err),
                      EVQ_E_CORRUPT);
    }
    parts_free(&parts);
}

static void merge_refuses_counts_that_overflow(void **state)
{
    struct parts parts = {0};
    struct evq_results results = {0};
    struct evq_error err;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        part_add(&parts, i, "digits", INT64_MAX / 2 + 1, 9, 4.0, "aa");
        part_add(&parts, i, "more", 1, 1, 1.0, "aa");
    }
    assert_status(evq_shard_merge_parts(&suite, parts.data, parts.bytes, 2, &results, &err),
                  EVQ_E_CORRUPT);
    assert_holds(err.message, "overflows");
    parts_free(&parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merge_adds_the_sums_and_forms_the_metrics_once),
        cmocka_unit_test(merge_refuses_parts_of_other_weights),
        cmocka_unit_test(merge_refuses_malformed_parts),
        cmocka_unit_test(merge_refuses_counts_that_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
