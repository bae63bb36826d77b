/* GET /v1/runs/{run}/significance: the mean of a score at each step of a run with its interval, and
 * which steps differ significantly from the best one. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "producer/gateway/samples/samples_request.h"
#include "producer/gateway/samples/significance_cache.h"
#include "shared/base/clock.h"
#include "shared/statistics/holm.h"
#include "shared/statistics/mean.h"

#define STEPS_MAX       400 // The newest ones.
#define WORK_MS_DEFAULT 1000
#define WORK_MS_MAX     5000
#define NONE            SIZE_MAX
#define VERSION_BYTES   512
#define KEY_BYTES       (2 * VERSION_BYTES + 160) // Two files and the name of a score.

struct step {
    int64_t step;
    struct evq_sample_file file;
    char version[VERSION_BYTES]; // Names the file and its content.
    bool has_mean;               // Or its error.
    bool has_difference;
    struct evq_significance_numbers mean;
    struct evq_significance_numbers difference; // To the best step.
    double corrected;
};

struct curve {
    struct evq_significance_cache *cache;
    const char *metric;
    struct step *steps; // In rising order.
    size_t count;
    size_t best; // NONE: no step has a mean.
    struct evq_samples_set *best_set;
    int64_t deadline_ms;
    bool has_worked;
    bool complete;
};

/* Whether there is time to read another file. The first one is always read, so that repeated
 * requests come to an end. */
static bool may_work(struct curve *curve)
{
    const bool may = !curve->has_worked || evq_clock_left_ms(curve->deadline_ms) > 0;

    curve->has_worked = true;
    curve->complete = curve->complete && may;
    return may;
}

static void mean_key(const struct step *step, const char *metric, char out[KEY_BYTES])
{
    (void)snprintf(out, KEY_BYTES, "%s\n%s", step->version, metric);
}

static void difference_key(const struct curve *curve, const struct step *step, char out[KEY_BYTES])
{
    (void)snprintf(out, KEY_BYTES, "%s\n%s\n%s", curve->steps[curve->best].version, step->version,
                   curve->metric);
}

/* Whether the same file gives the same error the next time. */
static bool stays(enum evq_status status)
{
    return status != EVQ_E_IO && status != EVQ_E_NOMEM;
}

/* Reads the samples of a step without texts. */
static enum evq_status read_set(const struct step *step, struct evq_samples_set **ret,
                                struct evq_error *err)
{
    return evq_pairing_read(&step->file, false, &evq_samples_request_limits, ret, err);
}

static enum evq_status measure_score(struct evq_samples_set *set, const char *score,
                                     struct evq_significance_numbers *ret, struct evq_error *err)
{
    struct evq_pairing self;
    struct evq_pairing_items arrays = {.baseline = NULL};
    struct evq_mean mean = {.mean = 0.0};
    enum evq_status status = evq_pairing_make(set, set, &self, err);

    if (status == EVQ_OK) {
        status = evq_pairing_score(&self, score, &score, err);
    }
    if (status == EVQ_OK) {
        status = evq_pairing_items(&self, score, &arrays, err);
    }
    if (status == EVQ_OK) {
        status =
            evq_mean_interval(arrays.candidate, arrays.items.count, arrays.weights, arrays.clusters,
                              arrays.items.cluster_count, EVQ_PAIRING_CONFIDENCE, &mean, err);
    }
    *ret = (struct evq_significance_numbers){.items = (int64_t)set->count,
                                             .value = mean.mean,
                                             .standard_error = mean.standard_error,
                                             .low = mean.low,
                                             .high = mean.high};
    evq_pairing_items_free(&arrays);
    evq_pairing_close(&self);
    return status;
}

/* Reads the samples of a step. Remembers the means of all scores, because the page asks for the
 * others next. */
static void measure(struct curve *curve, struct step *step)
{
    struct evq_samples_set *set = NULL;
    struct evq_error err = {EVQ_OK, ""};
    char key[KEY_BYTES];
    enum evq_status status = read_set(step, &set, &err);

    for (size_t i = 0; status == EVQ_OK && i < set->name_count; i++) {
        struct evq_significance_numbers numbers;
        mean_key(step, set->names[i], key);
        if (strcmp(set->names[i], curve->metric) != 0 &&
            measure_score(set, set->names[i], &numbers, NULL) == EVQ_OK) {
            evq_significance_cache_put(curve->cache, key, &numbers);
        }
    }
    if (status == EVQ_OK) {
        status = measure_score(set, curve->metric, &step->mean, &err);
    }
    if (status != EVQ_OK) {
        step->mean = (struct evq_significance_numbers){.items = 0};
        (void)snprintf(step->mean.error, sizeof step->mean.error, "%s", err.message);
    }
    if (stays(status)) {
        mean_key(step, curve->metric, key);
        evq_significance_cache_put(curve->cache, key, &step->mean);
    }
    step->has_mean = true;
    evq_samples_set_free(set);
}

static enum evq_status compare_sets(const struct curve *curve, struct evq_samples_set *set,
                                    struct evq_significance_numbers *ret, struct evq_error *err)
{
    struct evq_pairing pairing;
    struct evq_paired paired = {.count = 0};
    const char *score = curve->metric;
    enum evq_status status = evq_pairing_make(curve->best_set, set, &pairing, err);

    if (status == EVQ_OK) {
        status = evq_pairing_score(&pairing, score, &score, err);
    }
    if (status == EVQ_OK) {
        status = evq_pairing_compare(&pairing, score, EVQ_PAIRED_AUTO, &paired, err);
    }
    *ret = (struct evq_significance_numbers){.items = (int64_t)paired.count,
                                             .value = paired.difference,
                                             .standard_error = paired.standard_error,
                                             .low = paired.low,
                                             .high = paired.high,
                                             .p = paired.p};
    evq_pairing_close(&pairing);
    return status;
}

static void compare(struct curve *curve, struct step *step)
{
    struct evq_samples_set *set = NULL;
    struct evq_error err = {EVQ_OK, ""};
    char key[KEY_BYTES];
    enum evq_status status = EVQ_OK;

    if (curve->best_set == NULL) {
        status = read_set(&curve->steps[curve->best], &curve->best_set, &err);
    }
    if (status == EVQ_OK) {
        status = read_set(step, &set, &err);
    }
    if (status == EVQ_OK) {
        status = compare_sets(curve, set, &step->difference, &err);
    }
    if (status != EVQ_OK) {
        step->difference = (struct evq_significance_numbers){.items = 0};
        (void)snprintf(step->difference.error, sizeof step->difference.error, "%s", err.message);
    }
    if (stays(status)) {
        difference_key(curve, step, key);
        evq_significance_cache_put(curve->cache, key, &step->difference);
    }
    step->has_difference = true;
    evq_samples_set_free(set);
}

/* Finds the samples files of the steps. */
static enum evq_status list_steps(struct curve *curve, const struct evq_sample_choice *choice,
                                  const char *run, struct evq_error *err)
{
    struct evq_sample_place place;
    int64_t steps[STEPS_MAX];
    const size_t count = evq_samples_find_steps(choice->directory, run, steps, STEPS_MAX);
    enum evq_status status = EVQ_OK;

    (void)snprintf(place.run, sizeof place.run, "%s", run);
    for (size_t i = 0; status == EVQ_OK && i < count; i++) {
        struct step *step = &curve->steps[curve->count];
        struct stat info;
        place.step = steps[i];
        *step = (struct step){.step = place.step, .corrected = (double)NAN};
        status = evq_samples_find_one(choice, &place, &step->file, err);
        if (status == EVQ_OK && stat(step->file.path, &info) == 0) {
            (void)snprintf(step->version, sizeof step->version, "%s %s %ju %ju %jd %jd.%09ld",
                           step->file.job, step->file.task, (uintmax_t)info.st_dev,
                           (uintmax_t)info.st_ino, (intmax_t)info.st_size,
                           (intmax_t)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
            curve->count++;
        }
        status = status == EVQ_E_NOT_FOUND ? EVQ_OK : status; // Another task has samples here.
    }
    if (status == EVQ_OK && curve->count == 0) {
        status = evq_error_set(err, EVQ_E_NOT_FOUND,
                               "run '%s' has no samples of this task in '%s': a suite keeps them "
                               "with samples: true",
                               run, choice->directory);
    }
    return status;
}

/* Takes or computes the means, and finds the best of them. */
static enum evq_status find_best(struct curve *curve, struct evq_error *err)
{
    const bool higher = evq_pairing_higher(curve->metric);
    char key[KEY_BYTES];
    const struct step *refused = NULL;

    for (size_t i = 0; i < curve->count; i++) {
        struct step *step = &curve->steps[i];
        mean_key(step, curve->metric, key);
        step->has_mean = evq_significance_cache_get(curve->cache, key, &step->mean);
        if (!step->has_mean && may_work(curve)) {
            measure(curve, step);
        }
        if (!step->has_mean || step->mean.error[0] != '\0') {
            refused = step->has_mean ? step : refused;
            continue;
        }
        const struct step *best = curve->best != NONE ? &curve->steps[curve->best] : NULL;
        if (best == NULL ||
            (higher ? step->mean.value > best->mean.value : step->mean.value < best->mean.value)) {
            curve->best = i;
        }
    }
    if (curve->best == NONE && curve->complete && refused != NULL) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "no step has numbers of '%s'; step %" PRId64 ": %s", curve->metric,
                             refused->step, refused->mean.error);
    }
    return EVQ_OK;
}

/* Compares every other step with the best one and corrects the p-values. Without all means and
 * differences nothing is said. */
static enum evq_status find_differences(struct curve *curve, struct evq_error *err)
{
    double p[STEPS_MAX];
    char key[KEY_BYTES];

    for (size_t i = 0; curve->complete && i < curve->count; i++) {
        struct step *step = &curve->steps[i];
        p[i] = (double)NAN;
        if (i == curve->best || step->mean.error[0] != '\0') {
            continue;
        }
        difference_key(curve, step, key);
        step->has_difference = evq_significance_cache_get(curve->cache, key, &step->difference);
        if (!step->has_difference && may_work(curve)) {
            compare(curve, step);
        }
        if (step->has_difference && step->difference.error[0] == '\0') {
            p[i] = step->difference.p;
        }
    }
    const enum evq_status status =
        curve->complete ? evq_holm_correct(p, curve->count, err) : EVQ_OK;
    for (size_t i = 0; status == EVQ_OK && curve->complete && i < curve->count; i++) {
        curve->steps[i].corrected = p[i];
    }
    return status;
}

static void write_member(const char *name, double value, struct evq_buffer *out)
{
    evq_buffer_printf(out, ", \"%s\": ", name);
    evq_samples_page_number(value, out);
}

static void write_step(const struct curve *curve, const struct step *step, struct evq_buffer *out)
{
    const bool has_mean = step->has_mean && step->mean.error[0] == '\0';
    const bool has_p = curve->complete && isfinite(step->corrected);
    const double none = (double)NAN;
    const char *error = step->mean.error[0] != '\0' ? step->mean.error : step->difference.error;

    evq_buffer_printf(out, "{\"step\": %" PRId64 ", \"items\": %" PRId64, step->step,
                      has_mean ? step->mean.items : 0);
    write_member("mean", has_mean ? step->mean.value : none, out);
    write_member("standard_error", has_mean ? step->mean.standard_error : none, out);
    write_member("low", has_mean ? step->mean.low : none, out);
    write_member("high", has_mean ? step->mean.high : none, out);
    write_member("difference", has_p ? step->difference.value : none, out);
    write_member("p", has_p ? step->difference.p : none, out);
    write_member("p_corrected", has_p ? step->corrected : none, out);
    evq_buffer_printf(out, ", \"differs\": %s, \"error\": ",
                      !has_p                                           ? "null"
                      : step->corrected < 1.0 - EVQ_PAIRING_CONFIDENCE ? "true"
                                                                       : "false");
    evq_buffer_json_text(out, error);
    evq_buffer_text(out, "}");
}

static void write_curve(const struct curve *curve, const char *run,
                        const struct evq_sample_choice *choice, struct evq_buffer *out)
{
    const struct evq_sample_file *first = &curve->steps[0].file;

    evq_buffer_printf(out,
                      "{\"run\": \"%s\", \"variant\": \"%s\", \"suite\": \"%s\", \"task\": "
                      "\"%s\", \"metric\": ",
                      run, choice->variant, first->suite, first->task); // Valid names.
    evq_buffer_json_text(out, curve->metric);
    evq_buffer_printf(out,
                      ", \"higher_is_better\": %s, \"confidence\": %g, \"correction\": \"holm\", "
                      "\"complete\": %s, \"best_step\": ",
                      evq_pairing_higher(curve->metric) ? "true" : "false", EVQ_PAIRING_CONFIDENCE,
                      curve->complete ? "true" : "false");
    if (curve->complete && curve->best != NONE) {
        evq_buffer_integer(out, curve->steps[curve->best].step);
    } else {
        evq_buffer_text(out, "null");
    }
    evq_buffer_text(out, ", \"steps\": [");
    for (size_t i = 0; i < curve->count; i++) {
        evq_buffer_text(out, i > 0 ? ",\n" : "");
        write_step(curve, &curve->steps[i], out);
    }
    evq_buffer_text(out, "]}\n");
}

void evq_api_significance(struct evq_api *api, struct evq_http_request *request,
                          struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_sample_choice choice;
    int64_t work_ms = WORK_MS_DEFAULT;
    const char *run = request->params[0];
    struct curve curve = {.cache = api->steps,
                          .metric = evq_http_query(request, "metric", ""),
                          .best = NONE,
                          .complete = true};

    if (!evq_http_run_valid(run, reply) ||
        !evq_samples_request_choice(api, request, reply, &choice) ||
        !evq_http_query_integer(request, reply, "work_ms", 0, WORK_MS_MAX, &work_ms)) {
        return;
    }
    if (curve.metric[0] == '\0' || strlen(curve.metric) > EVQ_SAMPLE_ID_BYTES_MAX) {
        evq_http_reply_error(reply, 400, "invalid",
                             "metric is missing or too long, expected the name of a score");
        return;
    }
    curve.deadline_ms = evq_clock_mono_ms() + work_ms;
    curve.steps = calloc(STEPS_MAX, sizeof *curve.steps);
    enum evq_status status = curve.steps != NULL
                                 ? list_steps(&curve, &choice, run, &err)
                                 : evq_error_set(&err, EVQ_E_NOMEM, "no memory for the steps");
    if (status == EVQ_OK) {
        status = find_best(&curve, &err);
    }
    if (status == EVQ_OK) {
        status = find_differences(&curve, &err);
    }
    if (status == EVQ_OK) {
        write_curve(&curve, run, &choice, &reply->body);
    } else {
        evq_samples_request_fail(reply, status, &err);
    }
    evq_samples_set_free(curve.best_set);
    free(curve.steps);
}
