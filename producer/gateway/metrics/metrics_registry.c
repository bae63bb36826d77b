#include "producer/gateway/metrics/metrics_registry.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/metrics/exposition.h"

#define STATES  EVQ_JOB_STATE_COUNT
#define BUCKETS 12

/* Upper bounds in seconds; everything beyond the last is in +Inf. */
static const double bounds[BUCKETS] = {0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400};

enum part { PART_WAIT, PART_LOAD, PART_COMPUTE, PART_COUNT };

static const struct {
    const char *family, *help;
} parts[PART_COUNT] = {
    [PART_WAIT] = {"evalq_wait_seconds", "From the submit of a job to its claim, at each result."},
    [PART_LOAD] = {"evalq_load_seconds", "Reading the weights of a checkpoint."},
    [PART_COMPUTE] = {"evalq_compute_seconds", "Evaluating a task."},
};

struct histogram {
    uint64_t buckets[BUCKETS + 1];
    double sum;
};

struct suite {
    char name[EVQ_JOB_NAME_BYTES_MAX + 1];
    uint64_t ends[STATES];
    struct histogram parts[PART_COUNT];
};

struct series {
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    char variant[EVQ_JOB_NAME_BYTES_MAX + 1];
    char suite[EVQ_JOB_NAME_BYTES_MAX + 1];
    char task[EVQ_JOB_NAME_BYTES_MAX + 1];
    char metric[132];
    int32_t higher_is_better;
    int64_t step;
    int64_t finished_ms;
    double value;
    uint64_t taken; // When it had its last value, counted in values.
};

struct evq_metrics_registry {
    pthread_mutex_t lock;
    struct suite suites[EVQ_METRICS_REGISTRY_SUITES_MAX];
    size_t suite_count;
    struct series *series; // EVQ_METRICS_REGISTRY_SERIES_MAX.
    size_t series_count;
    uint64_t values;
};

struct evq_metrics_registry *evq_metrics_registry_new(void)
{
    struct evq_metrics_registry *registry = calloc(1, sizeof(*registry));

    if (registry == NULL || pthread_mutex_init(&registry->lock, NULL) != 0) {
        free(registry);
        return NULL;
    }
    registry->series = calloc(EVQ_METRICS_REGISTRY_SERIES_MAX, sizeof(*registry->series));
    if (registry->series == NULL) {
        evq_metrics_registry_free(registry);
        return NULL;
    }
    return registry;
}

void evq_metrics_registry_free(struct evq_metrics_registry *registry)
{
    if (registry != NULL) {
        (void)pthread_mutex_destroy(&registry->lock);
        free(registry->series);
        free(registry);
    }
}

/* NULL: there are too many. */
static struct suite *suite_of(struct evq_metrics_registry *registry, const char *name)
{
    for (size_t i = 0; i < registry->suite_count; i++) {
        if (strcmp(registry->suites[i].name, name) == 0) {
            return &registry->suites[i];
        }
    }
    if (registry->suite_count == EVQ_METRICS_REGISTRY_SUITES_MAX) {
        return NULL;
    }
    struct suite *suite = &registry->suites[registry->suite_count++];
    (void)snprintf(suite->name, sizeof(suite->name), "%s", name);
    return suite;
}

static void histogram_add(struct histogram *histogram, double seconds)
{
    size_t i = 0;

    while (i < BUCKETS && seconds > bounds[i]) {
        i++;
    }
    histogram->buckets[i]++;
    histogram->sum += seconds;
}

static bool is_series(const struct series *series, const struct evq_result *result,
                      const char *metric)
{
    return strcmp(series->metric, metric) == 0 && strcmp(series->task, result->task) == 0 &&
           strcmp(series->run, result->run) == 0 && strcmp(series->suite, result->suite) == 0 &&
           strcmp(series->variant, result->variant) == 0;
}

/* Returns the series of the metric, or a new one. If all are taken, the new one replaces the series
 * that has had no value for longest; may_replace false: returns NULL instead. */
static struct series *series_of(struct evq_metrics_registry *registry,
                                const struct evq_result *result, const char *metric,
                                bool may_replace)
{
    struct series *oldest = registry->series;

    for (size_t i = 0; i < registry->series_count; i++) {
        struct series *series = &registry->series[i];
        if (is_series(series, result, metric)) {
            return series;
        }
        oldest = series->taken < oldest->taken ? series : oldest;
    }
    if (registry->series_count < EVQ_METRICS_REGISTRY_SERIES_MAX) {
        oldest = &registry->series[registry->series_count++];
    } else if (!may_replace) {
        return NULL;
    }
    *oldest = (struct series){.step = -1};
    (void)snprintf(oldest->run, sizeof(oldest->run), "%s", result->run);
    (void)snprintf(oldest->variant, sizeof(oldest->variant), "%s", result->variant);
    (void)snprintf(oldest->suite, sizeof(oldest->suite), "%s", result->suite);
    (void)snprintf(oldest->task, sizeof(oldest->task), "%s", result->task);
    (void)snprintf(oldest->metric, sizeof(oldest->metric), "%s", metric);
    return oldest;
}

/* Late results of earlier steps are not the newest. */
static bool is_newer(const struct evq_result *result, const struct series *series)
{
    return result->step > series->step ||
           (result->step == series->step && result->finished_ms >= series->finished_ms);
}

static void take_metrics(struct evq_metrics_registry *registry, const struct evq_result *result,
                         bool before)
{
    for (size_t i = 0; i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        struct series *series = series_of(registry, result, metric->name, !before);
        if (series == NULL) {
            continue;
        }
        series->taken = ++registry->values;
        if (is_newer(result, series)) {
            series->step = result->step;
            series->finished_ms = result->finished_ms;
            series->value = metric->value;
            series->higher_is_better = evq_metric_direction(metric);
        }
    }
}

void evq_metrics_registry_add_suite(struct evq_metrics_registry *registry, const char *name)
{
    (void)pthread_mutex_lock(&registry->lock);
    (void)suite_of(registry, name); // There may be too many.
    (void)pthread_mutex_unlock(&registry->lock);
}

void evq_metrics_registry_take(struct evq_metrics_registry *registry,
                               const struct evq_result *result, bool before)
{
    (void)pthread_mutex_lock(&registry->lock);
    struct suite *suite = before ? NULL : suite_of(registry, result->suite);
    if (result->task[0] != '\0') {
        take_metrics(registry, result, before);
        if (suite != NULL) {
            histogram_add(&suite->parts[PART_WAIT], (double)result->timing.queued_ms / 1e3);
            histogram_add(&suite->parts[PART_LOAD], (double)result->timing.load_us / 1e6);
            histogram_add(&suite->parts[PART_COMPUTE], (double)result->timing.compute_us / 1e6);
        }
    } else if (suite != NULL) {
        suite->ends[result->state]++;
    }
    (void)pthread_mutex_unlock(&registry->lock);
}

static void ends_write(const struct evq_metrics_registry *registry,
                       struct evq_exposition *exposition)
{
    evq_exposition_family(exposition, "evalq_jobs_ended_total", "counter",
                          "Jobs that ended while this gateway followed them.");
    for (size_t i = 0; i < registry->suite_count; i++) {
        for (int state = 0; state < STATES; state++) {
            const struct evq_label labels[EVQ_EXPOSITION_LABELS_MAX] = {
                {"suite", registry->suites[i].name}, {"state", evq_job_state_name(state)}};
            if (state >= EVQ_JOB_DONE) {
                evq_exposition_sample(exposition, "", labels,
                                      (double)registry->suites[i].ends[state]);
            }
        }
    }
}

static void histogram_write(const struct histogram *histogram, const char *suite,
                            const struct evq_exposition *exposition)
{
    struct evq_label labels[EVQ_EXPOSITION_LABELS_MAX] = {{"suite", suite}, {"le", "+Inf"}};
    char bound[32];
    uint64_t below = 0;

    for (size_t i = 0; i < BUCKETS; i++) {
        below += histogram->buckets[i];
        (void)snprintf(bound, sizeof(bound), "%g", bounds[i]);
        labels[1].value = bound;
        evq_exposition_sample(exposition, "_bucket", labels, (double)below);
    }
    below += histogram->buckets[BUCKETS];
    labels[1].value = "+Inf";
    evq_exposition_sample(exposition, "_bucket", labels, (double)below);
    labels[1].name = NULL;
    evq_exposition_sample(exposition, "_sum", labels, histogram->sum);
    evq_exposition_sample(exposition, "_count", labels, (double)below);
}

static void series_write(const struct evq_metrics_registry *registry,
                         struct evq_exposition *exposition, bool steps)
{
    for (size_t i = 0; i < registry->series_count; i++) {
        const struct series *series = &registry->series[i];
        const struct evq_label labels[EVQ_EXPOSITION_LABELS_MAX] = {
            {"run", series->run},
            {"variant", series->variant},
            {"suite", series->suite},
            {"task", series->task},
            {"metric", series->metric},
            {"better", series->higher_is_better > 0    ? "higher"
                       : series->higher_is_better == 0 ? "lower"
                                                       : ""}};
        evq_exposition_sample(exposition, "", labels, steps ? (double)series->step : series->value);
    }
}

void evq_metrics_registry_write(struct evq_metrics_registry *registry, const char *queue,
                                struct evq_buffer *out)
{
    struct evq_exposition exposition = {.out = out, .queue = queue};

    (void)pthread_mutex_lock(&registry->lock);
    ends_write(registry, &exposition);
    for (int part = 0; part < PART_COUNT; part++) {
        evq_exposition_family(&exposition, parts[part].family, "histogram", parts[part].help);
        for (size_t i = 0; i < registry->suite_count; i++) {
            histogram_write(&registry->suites[i].parts[part], registry->suites[i].name,
                            &exposition);
        }
    }
    evq_exposition_family(&exposition, "evalq_metric", "gauge",
                          "The metric at the highest step of its series.");
    series_write(registry, &exposition, false);
    evq_exposition_family(&exposition, "evalq_metric_step", "gauge", "The step of evalq_metric.");
    series_write(registry, &exposition, true);
    (void)pthread_mutex_unlock(&registry->lock);
}
