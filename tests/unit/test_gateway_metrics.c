/*
 * What Prometheus is told: the text format to the byte, figures out of stats, and what results add
 * up to, bounded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "producer/gateway/metrics/exposition.h"
#include "producer/gateway/metrics/metrics.h"
#include "producer/gateway/metrics/metrics_registry.h"
#include "tests/fixture/check.h"

static const char stats_text[] =
    "{\"states\": {\"queued\": 3, \"delayed\": 1, \"running\": 2, \"done\": 40, \"dead\": 1, "
    "\"skipped\": 5, \"cancelled\": 0}, \"oldest_waiting_ms\": 2500, \"paused\": {\"queue\": "
    "true}, "
    "\"totals\": {\"submitted\": 52, \"published\": 40}, \"results\": {\"length\": 7}, "
    "\"classes\": [{\"suite\": \"a\\\"b\", \"needs\": \"gpus=1\", \"queued\": 3, \"running\": 2, "
    "\"why\": \"no worker\"}], "
    "\"workers\": [{\"id\": \"w1\", \"state\": \"alive\", \"heartbeat_age_ms\": 250, \"info\": "
    "{\"sick\": true, \"slot_count\": 2, \"slots\": [{\"state\": \"running\", \"readings\": "
    "[{\"gpu\": \"GPU-1\", \"busy_percent\": 50, \"memory_used_bytes\": 1024}]}, {\"state\": "
    "\"idle\"}]}}], "
    "\"sinks\": [{\"name\": \"jsonl\", \"lag\": 4, \"pending\": 1, \"error\": \"full\", "
    "\"seen_age_ms\": 1000}]}";

static const char *metrics_of(const char *stats, struct evq_buffer *out)
{
    struct evq_error err = {EVQ_OK, ""};

    evq_buffer_init(out, 0);
    struct evq_metrics_registry *registry = evq_metrics_registry_new();
    assert_status_err(evq_metrics_write("main", stats, 0.25, registry, out, &err), EVQ_OK, &err);
    evq_metrics_registry_free(registry);
    return evq_buffer_string(out);
}

static void holds(const char *text, const char *line)
{
    if (strstr(text, line) == NULL) {
        fail_msg("no line '%s' in\n%s", line, text);
    }
}

static void stats_become_samples(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "evalq_redis_up{queue=\"main\"} 1\n",
        "evalq_redis_stats_seconds{queue=\"main\"} 0.25\n",
        "evalq_jobs{queue=\"main\",state=\"queued\"} 3\n",
        "evalq_jobs_kept{queue=\"main\",state=\"skipped\"} 5\n",
        "evalq_oldest_waiting_seconds{queue=\"main\"} 2.5\n",
        "evalq_class_unserved{queue=\"main\",suite=\"a\\\"b\",needs=\"gpus=1\"} 3\n",
        "# TYPE evalq_jobs_submitted_total counter\n",
        "evalq_jobs_submitted_total{queue=\"main\"} 52\n",
        "evalq_queue_paused{queue=\"main\"} 1\n",
        "evalq_workers{queue=\"main\",state=\"alive\"} 1\n",
        "evalq_workers{queue=\"main\",state=\"dead\"} 0\n",
        "evalq_worker_slots_running{queue=\"main\",worker=\"w1\"} 1\n",
        "evalq_worker_sick{queue=\"main\",worker=\"w1\"} 1\n",
        "evalq_gpu_busy_ratio{queue=\"main\",worker=\"w1\",gpu=\"GPU-1\"} 0.5\n",
        "evalq_gpu_memory_used_bytes{queue=\"main\",worker=\"w1\",gpu=\"GPU-1\"} 1024\n",
        "evalq_sink_lag{queue=\"main\",sink=\"jsonl\"} 4\n",
        "evalq_sink_failing{queue=\"main\",sink=\"jsonl\"} 1\n",
    };
    struct evq_buffer out;
    const char *text = metrics_of(stats_text, &out);

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        holds(text, lines[i]);
    }
    assert_null(strstr(text, "temperature_celsius{")); // NVML did not tell.
    evq_buffer_free(&out);
}

static void redis_away_is_a_sample_too(void **state)
{
    (void)state;
    struct evq_buffer out;
    const char *text = metrics_of(NULL, &out);

    holds(text, "evalq_redis_up{queue=\"main\"} 0\n");
    assert_null(strstr(text, "evalq_jobs"));
    evq_buffer_free(&out);
}

static void stats_that_are_none_are_refused(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_buffer out;

    evq_buffer_init(&out, 0);
    assert_int_equal(evq_metrics_write("main", "[1]", 0, NULL, &out, &err), EVQ_E_INVALID);
    assert_int_equal(evq_metrics_write("main", "{\"states\"", 0, NULL, &out, &err), EVQ_E_INVALID);
    evq_buffer_free(&out);
}

static void labels_are_escaped_and_odd_values_written(void **state)
{
    (void)state;
    struct evq_buffer out;
    struct evq_exposition exposition = {.out = &out, .queue = "q"};
    const struct evq_label labels[EVQ_EXPOSITION_LABELS_MAX] = {{"name", "a\\b\"c\nd"}};

    evq_buffer_init(&out, 0);
    evq_exposition_family(&exposition, "f", "gauge", "Help.");
    evq_exposition_sample(&exposition, "", labels, (double)NAN);
    evq_exposition_sample(&exposition, "", NULL, (double)-INFINITY);
    evq_exposition_sample(&exposition, "_sum", NULL, 0.5);
    assert_string_equal(evq_buffer_string(&out), "# HELP f Help.\n# TYPE f gauge\n"
                                                 "f{queue=\"q\",name=\"a\\\\b\\\"c\\nd\"} NaN\n"
                                                 "f{queue=\"q\"} -Inf\nf_sum{queue=\"q\"} 0.5\n");
    evq_buffer_free(&out);
}

static struct evq_result task_of(const char *run, int64_t step, const struct evq_metric *metric)
{
    struct evq_result result = *evq_result_defaults();

    result.run = run;
    result.step = step;
    result.variant = "regular";
    result.suite = "heldout";
    result.task = "digits";
    result.metrics = metric;
    result.metric_count = 1;
    result.timing = (struct evq_timing){.queued_ms = 2000, .load_us = 200000, .compute_us = 90000};
    return result;
}

static void results_add_up(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "evalq_jobs_ended_total{queue=\"q\",suite=\"heldout\",state=\"done\"} 1\n",
        "evalq_jobs_ended_total{queue=\"q\",suite=\"heldout\",state=\"dead\"} 0\n",
        "evalq_wait_seconds_bucket{queue=\"q\",suite=\"heldout\",le=\"1\"} 0\n",
        "evalq_wait_seconds_bucket{queue=\"q\",suite=\"heldout\",le=\"5\"} 2\n",
        "evalq_wait_seconds_bucket{queue=\"q\",suite=\"heldout\",le=\"+Inf\"} 2\n",
        "evalq_wait_seconds_sum{queue=\"q\",suite=\"heldout\"} 4\n",
        "evalq_compute_seconds_count{queue=\"q\",suite=\"heldout\"} 2\n",
        "metric=\"loss\",better=\"lower\"} 0.5\n", // The higher step, though it came first.
        "metric=\"loss\",better=\"lower\"} 200\n",
        "variant=\"ema\",suite=\"heldout\",task=\"digits\",metric=\"loss\",better=\"lower\"} "
        "0.25\n",
    };
    struct evq_metrics_registry *registry = evq_metrics_registry_new();
    struct evq_metric loss = {
        .name = "loss", .value = 0.5, .higher_is_better = -1, .std_error = (double)NAN};
    struct evq_result result = task_of("a", 200, &loss);
    struct evq_buffer out;

    evq_metrics_registry_take(registry, &result, false);
    loss.value = 0.25; // Of before the gateway began: a value, and never counted.
    result.variant = "ema";
    evq_metrics_registry_take(registry, &result, true);
    result.variant = "regular";
    result.finished_ms = -1; // An earlier evaluation of the same step.
    evq_metrics_registry_take(registry, &result, true);
    loss.value = 0.75;
    result.step = 100;
    evq_metrics_registry_take(registry, &result, false);
    result.task = "";
    result.state = EVQ_JOB_DONE;
    evq_metrics_registry_take(registry, &result, false);
    evq_buffer_init(&out, 0);
    evq_metrics_registry_write(registry, "q", &out);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        holds(evq_buffer_string(&out), lines[i]);
    }
    evq_buffer_free(&out);
    evq_metrics_registry_free(registry);
}

/* To Prometheus the first value of a counter is no increase: what all died at once would be none.
 */
static void suites_are_counted_from_zero(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_metrics_registry *registry = evq_metrics_registry_new();
    struct evq_buffer out;

    evq_buffer_init(&out, 0);
    assert_status_err(evq_metrics_write("q", stats_text, 0, registry, &out, &err), EVQ_OK, &err);
    evq_metrics_registry_write(registry, "q", &out);
    holds(evq_buffer_string(&out),
          "evalq_jobs_ended_total{queue=\"q\",suite=\"a\\\"b\",state=\"dead\"} 0\n");
    evq_buffer_free(&out);
    evq_metrics_registry_free(registry);
}

/* More series than there is room for: those longest without a value make room. */
static void series_are_bounded(void **state)
{
    (void)state;
    struct evq_metrics_registry *registry = evq_metrics_registry_new();
    const struct evq_metric loss = {.name = "loss", .value = 1, .std_error = (double)NAN};
    struct evq_buffer out;
    size_t count = 0;
    char run[32];

    for (int i = 0; i < EVQ_METRICS_REGISTRY_SERIES_MAX + 10; i++) {
        (void)snprintf(run, sizeof(run), "run%d", i);
        const struct evq_result result = task_of(run, 1, &loss);
        evq_metrics_registry_take(registry, &result, false);
    }
    const struct evq_result earlier = task_of("earlier", 1, &loss);
    evq_metrics_registry_take(registry, &earlier, true); // It replaces none.
    evq_buffer_init(&out, 0);
    evq_metrics_registry_write(registry, "q", &out);
    const char *text = evq_buffer_string(&out);
    for (const char *at = text; (at = strstr(at, "evalq_metric{")) != NULL; at++) {
        count++;
    }
    assert_int_equal(count, EVQ_METRICS_REGISTRY_SERIES_MAX);
    assert_null(strstr(text, "run=\"run9\""));
    assert_null(strstr(text, "run=\"earlier\""));
    holds(text, "run=\"run10\"");
    holds(text, run);
    evq_buffer_free(&out);
    evq_metrics_registry_free(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stats_become_samples),
        cmocka_unit_test(redis_away_is_a_sample_too),
        cmocka_unit_test(stats_that_are_none_are_refused),
        cmocka_unit_test(labels_are_escaped_and_odd_values_written),
        cmocka_unit_test(results_add_up),
        cmocka_unit_test(suites_are_counted_from_zero),
        cmocka_unit_test(series_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
