#include "shared/queue/result.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "shared/base/utf8.h"

static const struct evq_result defaults = {
    .job = "",
    .task = "",
    .run = "",
    .epoch = NAN,
    .variant = "regular",
    .suite = "",
    .state = EVQ_JOB_DONE,
    .reason = "",
    .metric_prefix = "",
    .n = -1,
    .weights_digest = "",
    .suite_digest = "",
    .data_digest = "",
    .samples_digest = "",
    .backend = "",
    .device = "",
    .compute = "",
    .note = "",
    .worker = "",
    .evalq_version = "",
    .attempt = 1,
    .checkpoint = "",
};

const struct evq_result *evq_result_defaults(void)
{
    return &defaults;
}

struct evq_result *evq_result_new(void)
{
    struct evq_arena *arena = evq_arena_new(0);
    if (arena == NULL) {
        return NULL;
    }
    struct evq_result *result = evq_arena_alloc(arena, sizeof *result);
    if (result == NULL) {
        evq_arena_free(arena);
        return NULL;
    }
    *result = defaults;
    result->arena = arena;
    return result;
}

void evq_result_free(struct evq_result *result)
{
    if (result != NULL) {
        evq_arena_free(result->arena);
    }
}

size_t evq_metric_name_printable(const char *name)
{
    const size_t bytes = strlen(name);
    size_t at = 0;

    while (at < bytes) {
        const size_t length = evq_utf8_sequence(name + at, bytes - at);
        const unsigned char byte = (unsigned char)name[at];
        const bool control =
            byte < 0x20 || byte == 0x7f || (byte == 0xc2 && (unsigned char)name[at + 1] < 0xa0);
        if (length == 0 || control) {
            break;
        }
        at += length;
    }
    return at;
}

static enum evq_status check_metric_name(const char *field, size_t index, const char *name,
                                         struct evq_error *err)
{
    size_t bytes = name != NULL ? strlen(name) : 0;
    if (bytes == 0 || bytes > EVQ_METRIC_NAME_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%s[%zu].name has %zu bytes, expected 1 to %d",
                             field, index, bytes, EVQ_METRIC_NAME_BYTES_MAX);
    }
    const size_t printable = evq_metric_name_printable(name);
    if (printable < bytes) {
        return evq_error_set(err, EVQ_E_INVALID, "%s[%zu].name is not printable UTF-8 at byte %zu",
                             field, index, printable);
    }
    return EVQ_OK;
}

static enum evq_status check_metrics(const struct evq_result *result, struct evq_error *err)
{
    if (result->metric_count > EVQ_RESULT_METRICS_MAX ||
        result->sum_count > EVQ_RESULT_METRICS_MAX) {
        bool metrics = result->metric_count > EVQ_RESULT_METRICS_MAX;
        return evq_error_set(
            err, EVQ_E_INVALID, "%s has %zu entries, allowed %d", metrics ? "metrics" : "sums",
            metrics ? result->metric_count : result->sum_count, EVQ_RESULT_METRICS_MAX);
    }
    for (size_t i = 0; i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        if (check_metric_name("metrics", i, metric->name, err) != EVQ_OK) {
            return EVQ_E_INVALID;
        }
        if (metric->higher_is_better < -1 || metric->higher_is_better > 1) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "metrics[%zu].higher_is_better is %d, expected -1, 0 or 1", i,
                                 metric->higher_is_better);
        }
        for (size_t j = 0; j < i; j++) {
            if (strcmp(metric->name, result->metrics[j].name) == 0) {
                return evq_error_set(err, EVQ_E_INVALID, "metrics has '%s' twice", metric->name);
            }
        }
    }
    for (size_t i = 0; i < result->sum_count; i++) {
        if (check_metric_name("sums", i, result->sums[i].name, err) != EVQ_OK) {
            return EVQ_E_INVALID;
        }
    }
    return EVQ_OK;
}

enum evq_status evq_result_check(const struct evq_result *result, struct evq_error *err)
{
    if (result->job == NULL || result->job[0] == '\0') {
        return evq_error_set(err, EVQ_E_INVALID, "job is missing");
    }
    if (strlen(result->job) >= EVQ_JOB_ID_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "job has %zu bytes, allowed %d",
                             strlen(result->job), EVQ_JOB_ID_BYTES_MAX - 1);
    }
    if (result->task[0] != '\0' && !evq_job_name_valid(result->task, EVQ_JOB_NAME_BYTES_MAX)) {
        return evq_error_set(err, EVQ_E_INVALID, "task is not 1 to %d of the bytes [A-Za-z0-9._-]",
                             EVQ_JOB_NAME_BYTES_MAX);
    }
    if (result->step < 0 || result->step >= EVQ_JOB_STEP_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "step is %jd, expected 0 to %jd",
                             (intmax_t)result->step, (intmax_t)EVQ_JOB_STEP_MAX - 1);
    }
    if ((unsigned)result->state >= EVQ_JOB_STATE_COUNT) {
        return evq_error_set(err, EVQ_E_INVALID, "state is not a job state");
    }
    if (result->n < -1 || result->attempt < 0) {
        return evq_error_set(err, EVQ_E_INVALID, "%s is negative",
                             result->n < -1 ? "n" : "attempt");
    }
    return check_metrics(result, err);
}

void evq_result_id(const struct evq_result *result, char out[EVQ_RESULT_ID_BYTES_MAX])
{
    if (result->task[0] != '\0') {
        (void)snprintf(out, EVQ_RESULT_ID_BYTES_MAX, "%s#%s", result->job, result->task);
        return;
    }
    // A job that is retried by hand ends again under its old id, often with the same number of
    // attempts.
    char retries[16] = "";
    if (result->retries > 0) {
        (void)snprintf(retries, sizeof retries, ".%d", result->retries);
    }
    (void)snprintf(out, EVQ_RESULT_ID_BYTES_MAX, "%s#=%s.%d%s", result->job,
                   evq_job_state_name(result->state), result->attempt, retries);
}

/* rest: the metric's name without its "eval_". */
static void trainer_key(const struct evq_result *result, const char *rest, char *out,
                        size_t out_bytes)
{
    const bool regular = strcmp(result->variant, "regular") == 0;
    const size_t task = strlen(result->task);
    const bool known = strcmp(result->task, "eval") == 0 ||
                       (strncmp(rest, result->task, task) == 0 && rest[task] == '_');

    (void)snprintf(out, out_bytes, "eval%s%s/%s%s%s", regular ? "" : "_",
                   regular ? "" : result->variant, known ? "" : result->task, known ? "" : "_",
                   rest);
}

void evq_result_metric_key(const struct evq_result *result, const struct evq_metric *metric,
                           char *out, size_t out_bytes)
{
    const char *prefix = result->metric_prefix;
    const bool regular = strcmp(result->variant, "regular") == 0;

    if (prefix[0] == '\0' && strncmp(metric->name, "eval_", 5) == 0 && metric->name[5] != '\0') {
        trainer_key(result, metric->name + 5, out, out_bytes);
    } else if (prefix[0] != '\0' && regular) {
        (void)snprintf(out, out_bytes, "%s%s", prefix, metric->name);
        // All variants of a suite have the prefix, but each is its own curve.
    } else if (prefix[0] != '\0') {
        const char *rest = prefix + strcspn(prefix, "/");
        (void)snprintf(out, out_bytes, "%.*s%s%s%s%s", (int)(rest - prefix), prefix,
                       rest[0] != '\0' ? "_" : "", result->variant, rest[0] != '\0' ? rest : "_",
                       metric->name);
    } else if (regular) {
        (void)snprintf(out, out_bytes, "eval/%s/%s", result->task, metric->name);
    } else {
        (void)snprintf(out, out_bytes, "eval_%s/%s/%s", result->variant, result->task,
                       metric->name);
    }
}

/* key includes the comma before it and the colon, because a line has about thirty. */
static void json_text(struct evq_buffer *out, const char *key, const char *text)
{
    evq_buffer_text(out, key);
    evq_buffer_json_text(out, text);
}

static void json_integer(struct evq_buffer *out, const char *key, int64_t value)
{
    evq_buffer_text(out, key);
    evq_buffer_integer(out, value);
}

static void json_metrics(const struct evq_result *result, struct evq_buffer *out)
{
    bool detail = false;
    evq_buffer_text(out, ",\"metrics\":{");
    for (size_t i = 0; i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        evq_buffer_text(out, i > 0 ? "," : "");
        evq_buffer_json_text(out, metric->name);
        evq_buffer_text(out, ":");
        evq_buffer_json_double(out, metric->value);
        detail = detail || evq_metric_direction(metric) >= 0 || !isnan(metric->std_error);
    }
    evq_buffer_text(out, "}");
    if (!detail) {
        return;
    }
    const char *comma = ",\"metrics_detail\":{";
    for (size_t i = 0; i < result->metric_count; i++) {
        const struct evq_metric *metric = &result->metrics[i];
        if (evq_metric_direction(metric) < 0 && isnan(metric->std_error)) {
            continue;
        }
        evq_buffer_text(out, comma);
        comma = ",";
        evq_buffer_json_text(out, metric->name);
        evq_buffer_text(out, ":{");
        if (evq_metric_direction(metric) >= 0) {
            evq_buffer_printf(out, "\"higher_is_better\":%s",
                              evq_metric_direction(metric) > 0 ? "true" : "false");
        }
        if (!isnan(metric->std_error)) {
            evq_buffer_text(out, evq_metric_direction(metric) >= 0 ? ",\"std_error\":"
                                                                   : "\"std_error\":");
            evq_buffer_json_double(out, metric->std_error);
        }
        evq_buffer_text(out, "}");
    }
    evq_buffer_text(out, "}");
}

static void json_sums(const struct evq_result *result, struct evq_buffer *out)
{
    evq_buffer_text(out, ",\"sums\":{");
    for (size_t i = 0; i < result->sum_count; i++) {
        const struct evq_sum *sum = &result->sums[i];
        evq_buffer_text(out, i > 0 ? "," : "");
        evq_buffer_json_text(out, sum->name);
        evq_buffer_text(out, ":");
        if (sum->is_count) {
            evq_buffer_integer(out, sum->count);
        } else {
            evq_buffer_json_double(out, sum->value);
        }
    }
    evq_buffer_text(out, "}");
}

static void json_provenance(const struct evq_result *result, struct evq_buffer *out)
{
    const struct evq_timing *timing = &result->timing;
    evq_buffer_text(out, ",\"timing\":{\"queued_ms\":");
    evq_buffer_integer(out, timing->queued_ms);
    json_integer(out, ",\"load_us\":", timing->load_us);
    json_integer(out, ",\"compute_us\":", timing->compute_us);
    json_integer(out, ",\"bytes\":", timing->bytes);
    json_integer(out, ",\"samples\":", timing->samples);
    json_integer(out, ",\"tokens\":", timing->tokens);
    evq_buffer_text(out, "}");
    json_text(out, ",\"weights_digest\":", result->weights_digest);
    json_text(out, ",\"suite_digest\":", result->suite_digest);
    json_text(out, ",\"data_digest\":", result->data_digest);
    if (result->samples_digest[0] != '\0') {
        json_text(out, ",\"samples_digest\":", result->samples_digest);
        json_integer(out, ",\"samples_bytes\":", result->samples_bytes);
    }
    json_text(out, ",\"backend\":", result->backend);
    json_text(out, ",\"device\":", result->device);
    if (result->compute[0] != '\0') {
        json_text(out, ",\"compute\":", result->compute);
    }
    json_text(out, ",\"note\":", result->note);
    json_text(out, ",\"worker\":", result->worker);
    json_text(out, ",\"evalq_version\":", result->evalq_version);
    json_integer(out, ",\"attempt\":", result->attempt);
    if (result->retries > 0) {
        json_integer(out, ",\"retries\":", result->retries);
    }
    json_integer(out, ",\"finished_ms\":", result->finished_ms);
    json_text(out, ",\"checkpoint\":", result->checkpoint);
    evq_buffer_text(out, ",\"trackers\":{");
    for (size_t i = 0; i < result->tracker_count; i++) {
        evq_buffer_text(out, i > 0 ? "," : "");
        evq_buffer_json_text(out, result->trackers[i].key);
        evq_buffer_text(out, ":");
        evq_buffer_json_text(out, result->trackers[i].value);
    }
    evq_buffer_text(out, "}");
}

void evq_result_json(const struct evq_result *result, struct evq_buffer *out)
{
    char id[EVQ_RESULT_ID_BYTES_MAX];
    char finished[EVQ_CLOCK_ISO_BYTES];

    evq_result_id(result, id);
    evq_clock_iso(result->finished_ms, finished);
    evq_buffer_text(out, "{\"result_id\":");
    evq_buffer_json_text(out, id);
    json_integer(out, ",\"global_step\":", result->step);
    json_text(out, ",\"finished_at\":", finished);
    json_text(out, ",\"job\":", result->job);
    json_text(out, ",\"task\":", result->task);
    json_text(out, ",\"run\":", result->run);
    json_integer(out, ",\"step\":", result->step);
    if (isnan(result->epoch)) {
        evq_buffer_text(out, ",\"epoch\":null");
    } else {
        evq_buffer_text(out, ",\"epoch\":");
        evq_buffer_json_double(out, result->epoch);
    }
    json_text(out, ",\"variant\":", result->variant);
    json_text(out, ",\"suite\":", result->suite);
    json_text(out, ",\"state\":", evq_job_state_name(result->state));
    json_text(out, ",\"reason\":", result->reason);
    json_text(out, ",\"metric_prefix\":", result->metric_prefix);
    json_metrics(result, out);
    if (result->n < 0) {
        evq_buffer_text(out, ",\"n\":null");
    } else {
        json_integer(out, ",\"n\":", result->n);
    }
    json_sums(result, out);
    json_provenance(result, out);
    evq_buffer_text(out, "}");
}

/* Whether name contains one of the words between separators. words: lower case, ended by NULL. */
static bool name_holds(const char *name, const char *const *words)
{
    for (const char *at = name; *at != '\0';) {
        char word[32];
        size_t bytes = 0;
        while (isalnum((unsigned char)at[bytes])) {
            bytes++;
        }
        for (size_t i = 0; i < bytes && i < sizeof word - 1; i++) {
            word[i] = (char)tolower((unsigned char)at[i]);
        }
        word[bytes < sizeof word ? bytes : sizeof word - 1] = '\0';
        for (size_t i = 0; bytes > 0 && words[i] != NULL; i++) {
            if (strcmp(word, words[i]) == 0) {
                return true;
            }
        }
        at += bytes > 0 ? bytes : 1;
    }
    return false;
}

int evq_metric_direction(const struct evq_metric *metric)
{
    // Words that name something to make small.
    static const char *const lower[] = {
        "loss",     "losses",  "entropy",       "nll",   "perplexity", "ppl",
        "error",    "errors",  "err",           "mse",   "mae",        "rmse",
        "msle",     "rmsle",   "mape",          "smape", "wer",        "cer",
        "ter",      "eer",     "bpb",           "bpc",   "bpt",        "bits",
        "fid",      "kid",     "lpips",         "kl",    "kld",        "ece",
        "brier",    "regret",  "hallucination", "cost",  "deviation",  "divergence",
        "distance", "latency", "toxicity",      NULL,
    };
    // Words about the evaluation and not about the checkpoint: eval_runtime, eval_steps_per_second.
    // A count of NaN (nan_tokens) is a flag, so no checkpoint is the best by it.
    static const char *const neither[] = {
        "runtime", "time", "duration",   "elapsed", "second", "seconds",
        "sec",     "ms",   "throughput", "epoch",   "nan",    NULL,
    };
    if (metric->higher_is_better >= 0) {
        return metric->higher_is_better > 0 ? 1 : 0;
    }
    if (name_holds(metric->name, lower)) {
        return 0;
    }
    return name_holds(metric->name, neither) ? -1 : 1;
}
