/* What a sink holds in memory does not grow with the results of a run, except for the hash of each
 * id in JSONL; and it knows them all still. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "logger/sinks/sink.h"
#include "tests/fixture/check.h"
#include "tests/fixture/redis.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESULTS 40000 // Their own allocator does not tell what is held.
#else
#define RESULTS 100000
#endif
#define BATCH       10000
#define WARM        20000
#define GROWS_BYTES ((size_t)128 << 10) // In RESULTS - WARM; at 24 bytes each it is megabytes.
#define HASH_BYTES  22                  // At most, for each result and each end of a job.

static size_t held_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

/* The result of a step, and the end of its job. */
static void give(const struct evq_sink_ops *ops, void *sink, int64_t step)
{
    static const struct evq_metric metrics[] = {
        {.name = "accuracy", .value = 0.5, .higher_is_better = 1, .std_error = 0.01},
        {.name = "loss", .value = 0.25, .higher_is_better = 0, .std_error = 0.01}};
    char job[64];
    struct evq_error err;
    struct evq_result result = *evq_result_defaults();

    (void)snprintf(job, sizeof(job), "digits/%lld/regular/quick", (long long)step);
    result.job = job;
    result.run = "digits";
    result.step = step;
    result.suite = "quick";
    result.task = "t";
    result.finished_ms = 1700000000000 + step;
    result.metrics = metrics;
    result.metric_count = 2;
    assert_status_err(ops->write(sink, &result, &err), EVQ_OK, &err);
    result.task = "";
    result.metric_count = 0;
    assert_status_err(ops->write(sink, &result, &err), EVQ_OK, &err);
}

static void *opened(const struct evq_sink_ops *ops, const struct evq_sink_context *context)
{
    void *sink = NULL;
    struct evq_error err;

    assert_status_err(ops->open(context, &sink, &err), EVQ_OK, &err);
    return sink;
}

/* Steps from `from` to `to`, flushed in batches. */
static void give_all(const struct evq_sink_ops *ops, void *sink, int64_t from, int64_t to)
{
    struct evq_error err;

    for (int64_t step = from; step < to; step++) {
        give(ops, sink, step);
        if ((step + 1) % BATCH == 0) {
            assert_status_err(ops->flush(sink, &err), EVQ_OK, &err);
        }
    }
}

static int64_t bytes_below(const char *directory)
{
    char command[160];
    long long bytes = -1;

    (void)snprintf(command, sizeof(command),
                   "find %s -type f -printf '%%s\n' | awk '{n += $1} END {print n}'", directory);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%lld", &bytes), 1);
    (void)pclose(pipe);
    return bytes;
}

static void holds_little_and_knows_all(const struct evq_sink_ops *ops, size_t grows_bytes)
{
    const struct evq_sink_config config = {"flat", ops->kind, NULL, 0, false};
    char directory[64];
    size_t before = 0;

    fixture_dir_make(directory);
    const struct evq_sink_context context = {
        .sink = &config, .directory = directory, .must_take = true};
    void *sink = opened(ops, &context);
    give_all(ops, sink, 0, WARM);
    before = held_bytes();
    give_all(ops, sink, WARM, RESULTS);
    print_message("%s: %zu bytes at %d results, %zu at %d\n", ops->kind, before, WARM, held_bytes(),
                  RESULTS);
    assert_true(held_bytes() < before + grows_bytes);
    const int64_t bytes = bytes_below(directory);
    assert_true(bytes > (int64_t)RESULTS * 100);
    give_all(ops, sink, 0, RESULTS); // All again, in its life
    assert_int_equal(bytes_below(directory), bytes);
    assert_true(held_bytes() < before + grows_bytes);
    ops->close(sink);
    sink = opened(ops, &context); // and in the next.
    give_all(ops, sink, 0, RESULTS);
    assert_int_equal(bytes_below(directory), bytes);
    assert_true(held_bytes() < before + grows_bytes);
    ops->close(sink);
    fixture_dir_remove(directory);
}

static void sink_jsonl_holds_only_hashes_for_more_results(void **state)
{
    (void)state;
    holds_little_and_knows_all(&evq_sink_jsonl, GROWS_BYTES + (size_t)2 * RESULTS * HASH_BYTES);
}

static void sink_tensorboard_holds_no_more_for_more_results(void **state)
{
    (void)state;
    holds_little_and_knows_all(&evq_sink_tensorboard, GROWS_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sink_jsonl_holds_only_hashes_for_more_results),
        cmocka_unit_test(sink_tensorboard_holds_no_more_for_more_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
