#include "shared/queue/codec_schema.h"

#include <math.h>
#include <string.h>

#include "shared/queue/job.h"
#include "shared/queue/result.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#define TEXT(struct_name, member)                                                                  \
    {                                                                                              \
        .name = #member, .type = EVQ_SCHEMA_TEXT, .offset = offsetof(struct struct_name, member)   \
    }
#define INT64(struct_name, member, low, high)                                                      \
    {                                                                                              \
        .name = #member, .type = EVQ_SCHEMA_INT64, .offset = offsetof(struct struct_name, member), \
        .min = (low), .max = (high)                                                                \
    }
#define INT32(struct_name, member, low, high)                                                      \
    {                                                                                              \
        .name = #member, .type = EVQ_SCHEMA_INT32, .offset = offsetof(struct struct_name, member), \
        .min = (low), .max = (high)                                                                \
    }
#define DOUBLE(struct_name, member)                                                                \
    {                                                                                              \
        .name = #member, .type = EVQ_SCHEMA_DOUBLE, .offset = offsetof(struct struct_name, member) \
    }
#define PAIRS(struct_name, member, count)                                                          \
    {                                                                                              \
        .name = #member, .type = EVQ_SCHEMA_PAIRS, .offset = offsetof(struct struct_name, member), \
        .count_offset = offsetof(struct struct_name, count), .entries_max = EVQ_JOB_PAIRS_MAX      \
    }

static const char *policy_word(unsigned value)
{
    return evq_job_policy_name((enum evq_job_policy)value);
}

static bool policy_parse(const char *word, unsigned *ret)
{
    enum evq_job_policy policy;
    if (evq_job_policy_parse(word, &policy) != EVQ_OK) {
        return false;
    }
    *ret = policy;
    return true;
}

static const char *state_word(unsigned value)
{
    return evq_job_state_name((enum evq_job_state)value);
}

static bool state_parse(const char *word, unsigned *ret)
{
    enum evq_job_state state;
    if (evq_job_state_parse(word, &state) != EVQ_OK) {
        return false;
    }
    *ret = state;
    return true;
}

static const struct evq_schema_field needs_fields[] = {
    INT32(evq_needs, gpus, 0, EVQ_NEEDS_GPUS_MAX),
    INT64(evq_needs, gpu_memory_bytes, 0, INT64_MAX),
    {.name = "labels",
     .type = EVQ_SCHEMA_TEXTS,
     .offset = offsetof(struct evq_needs, labels),
     .count_offset = offsetof(struct evq_needs, label_count),
     .entries_max = EVQ_NEEDS_LABELS_MAX},
};

static const struct evq_schema needs = {
    .name = "needs",
    .fields = needs_fields,
    .field_count = COUNT_OF(needs_fields),
    .bytes = sizeof(struct evq_needs),
};

static const struct evq_schema_field snapshot_fields[] = {
    TEXT(evq_snapshot, boot),     TEXT(evq_snapshot, place),
    TEXT(evq_snapshot, token),    INT64(evq_snapshot, bytes, 0, EVQ_SNAPSHOT_BYTES_MAX),
    TEXT(evq_snapshot, checksum),
};

static const struct evq_schema snapshot = {
    .name = "snapshot",
    .fields = snapshot_fields,
    .field_count = COUNT_OF(snapshot_fields),
    .bytes = sizeof(struct evq_snapshot),
};

static const struct evq_schema_field job_fields[] = {
    TEXT(evq_job, run),
    INT64(evq_job, session_ms, 0, INT64_MAX),
    INT64(evq_job, step, 0, EVQ_JOB_STEP_MAX - 1),
    DOUBLE(evq_job, epoch),
    TEXT(evq_job, variant),
    TEXT(evq_job, suite),
    TEXT(evq_job, root),
    TEXT(evq_job, path),
    TEXT(evq_job, pin),
    TEXT(evq_job, format),
    TEXT(evq_job, fingerprint),
    TEXT(evq_job, manifest),
    TEXT(evq_job, host),
    INT64(evq_job, created_ms, 0, INT64_MAX),
    {.name = "needs",
     .type = EVQ_SCHEMA_STRUCT,
     .offset = offsetof(struct evq_job, needs),
     .flag = EVQ_SCHEMA_WHEN_SET,
     .flag_offset = offsetof(struct evq_job, needs_given),
     .table = &needs},
    INT32(evq_job, priority, 0, EVQ_JOB_BANDS - 1),
    {.name = "policy",
     .type = EVQ_SCHEMA_WORD,
     .offset = offsetof(struct evq_job, policy),
     .word = policy_word,
     .parse = policy_parse},
    {.name = "keep", .type = EVQ_SCHEMA_BOOL, .offset = offsetof(struct evq_job, keep)},
    PAIRS(evq_job, params, param_count),
    PAIRS(evq_job, trackers, tracker_count),
    PAIRS(evq_job, tags, tag_count),
    {.name = "snapshot",
     .type = EVQ_SCHEMA_STRUCT,
     .offset = offsetof(struct evq_job, snapshot),
     .flag = EVQ_SCHEMA_WHEN_SET,
     .flag_offset = offsetof(struct evq_job, snapshot_given),
     .table = &snapshot},
};

// The defaults themselves are in job.c and result.c; codec.c asks for them.
const struct evq_schema evq_schema_job = {
    .name = "message",
    .fields = job_fields,
    .field_count = COUNT_OF(job_fields),
    .bytes = sizeof(struct evq_job),
};

static const struct evq_metric metric_defaults = {
    .name = "",
    .value = NAN,
    .higher_is_better = -1,
    .std_error = NAN,
};

static const struct evq_schema_field metric_fields[] = {
    TEXT(evq_metric, name),
    DOUBLE(evq_metric, value),
    INT32(evq_metric, higher_is_better, -1, 1),
    DOUBLE(evq_metric, std_error),
};

static const struct evq_schema metric = {
    .name = "metric",
    .fields = metric_fields,
    .field_count = COUNT_OF(metric_fields),
    .bytes = sizeof(struct evq_metric),
    .defaults = &metric_defaults,
};

static const struct evq_sum sum_defaults = {.name = ""};

static const struct evq_schema_field sum_fields[] = {
    TEXT(evq_sum, name),
    {.name = "count",
     .type = EVQ_SCHEMA_INT64,
     .offset = offsetof(struct evq_sum, count),
     .min = INT64_MIN,
     .max = INT64_MAX,
     .flag = EVQ_SCHEMA_WHEN_SET,
     .flag_offset = offsetof(struct evq_sum, is_count)},
    {.name = "value",
     .type = EVQ_SCHEMA_DOUBLE,
     .offset = offsetof(struct evq_sum, value),
     .flag = EVQ_SCHEMA_WHEN_CLEAR,
     .flag_offset = offsetof(struct evq_sum, is_count)},
};

static const struct evq_schema sum = {
    .name = "sum",
    .fields = sum_fields,
    .field_count = COUNT_OF(sum_fields),
    .bytes = sizeof(struct evq_sum),
    .defaults = &sum_defaults,
};

// Differences of clocks may be negative, which is no reason to lose a result.
static const struct evq_schema_field timing_fields[] = {
    INT64(evq_timing, queued_ms, INT64_MIN, INT64_MAX),
    INT64(evq_timing, load_us, INT64_MIN, INT64_MAX),
    INT64(evq_timing, compute_us, INT64_MIN, INT64_MAX),
    INT64(evq_timing, bytes, INT64_MIN, INT64_MAX),
    INT64(evq_timing, samples, INT64_MIN, INT64_MAX),
    INT64(evq_timing, tokens, INT64_MIN, INT64_MAX),
};

static const struct evq_schema timing = {
    .name = "timing",
    .fields = timing_fields,
    .field_count = COUNT_OF(timing_fields),
    .bytes = sizeof(struct evq_timing),
};

static const struct evq_schema_field result_fields[] = {
    TEXT(evq_result, job),
    TEXT(evq_result, task),
    TEXT(evq_result, run),
    INT64(evq_result, step, 0, EVQ_JOB_STEP_MAX - 1),
    DOUBLE(evq_result, epoch),
    TEXT(evq_result, variant),
    TEXT(evq_result, suite),
    {.name = "state",
     .type = EVQ_SCHEMA_WORD,
     .offset = offsetof(struct evq_result, state),
     .word = state_word,
     .parse = state_parse},
    TEXT(evq_result, reason),
    TEXT(evq_result, metric_prefix),
    {.name = "metrics",
     .type = EVQ_SCHEMA_LIST,
     .offset = offsetof(struct evq_result, metrics),
     .count_offset = offsetof(struct evq_result, metric_count),
     .entries_max = EVQ_RESULT_METRICS_MAX,
     .table = &metric},
    INT64(evq_result, n, -1, INT64_MAX),
    {.name = "sums",
     .type = EVQ_SCHEMA_LIST,
     .offset = offsetof(struct evq_result, sums),
     .count_offset = offsetof(struct evq_result, sum_count),
     .entries_max = EVQ_RESULT_METRICS_MAX,
     .table = &sum},
    {.name = "timing",
     .type = EVQ_SCHEMA_STRUCT,
     .offset = offsetof(struct evq_result, timing),
     .table = &timing},
    TEXT(evq_result, weights_digest),
    TEXT(evq_result, suite_digest),
    TEXT(evq_result, data_digest),
    TEXT(evq_result, samples_digest),
    INT64(evq_result, samples_bytes, 0, INT64_MAX),
    TEXT(evq_result, backend),
    TEXT(evq_result, device),
    TEXT(evq_result, compute),
    TEXT(evq_result, note),
    TEXT(evq_result, worker),
    TEXT(evq_result, evalq_version),
    INT32(evq_result, attempt, 0, INT32_MAX),
    INT32(evq_result, retries, 0, INT32_MAX),
    INT64(evq_result, finished_ms, 0, INT64_MAX),
    TEXT(evq_result, checkpoint),
    PAIRS(evq_result, trackers, tracker_count),
};

const struct evq_schema evq_schema_result = {
    .name = "result",
    .fields = result_fields,
    .field_count = COUNT_OF(result_fields),
    .bytes = sizeof(struct evq_result),
};

/* Members are read with memcpy(), because the tables know offsets, not types. */
const void *evq_schema_at(const void *base, size_t offset)
{
    return (const unsigned char *)base + offset;
}

const char *evq_schema_text(const void *base, size_t offset)
{
    const char *text;
    memcpy(&text, evq_schema_at(base, offset), sizeof text);
    return text;
}

size_t evq_schema_count(const void *base, size_t offset)
{
    size_t count;
    memcpy(&count, evq_schema_at(base, offset), sizeof count);
    return count;
}

bool evq_schema_flag_value(const void *base, size_t offset)
{
    bool value;
    memcpy(&value, evq_schema_at(base, offset), sizeof value);
    return value;
}

double evq_schema_double(const void *base, size_t offset)
{
    double value;
    memcpy(&value, evq_schema_at(base, offset), sizeof value);
    return value;
}

int64_t evq_schema_integer(const struct evq_schema_field *field, const void *base)
{
    int64_t wide;
    int32_t narrow;
    if (field->type == EVQ_SCHEMA_INT64) {
        memcpy(&wide, evq_schema_at(base, field->offset), sizeof wide);
        return wide;
    }
    memcpy(&narrow, evq_schema_at(base, field->offset), sizeof narrow);
    return narrow;
}

unsigned evq_schema_word(const void *base, size_t offset)
{
    unsigned value; // Enums without negative members are unsigned int to the compilers supported.
    memcpy(&value, evq_schema_at(base, offset), sizeof value);
    return value;
}

static bool struct_given(const struct evq_schema *schema, const void *base, const void *defaults);

bool evq_schema_given(const struct evq_schema_field *field, const void *base, const void *defaults)
{
    if (field->flag != EVQ_SCHEMA_ALWAYS) {
        return evq_schema_flag_value(base, field->flag_offset) ==
               (field->flag == EVQ_SCHEMA_WHEN_SET);
    }
    switch (field->type) {
    case EVQ_SCHEMA_TEXT: {
        const char *text = evq_schema_text(base, field->offset);
        return text != NULL && strcmp(text, evq_schema_text(defaults, field->offset)) != 0;
    }
    case EVQ_SCHEMA_INT64:
    case EVQ_SCHEMA_INT32:
        return evq_schema_integer(field, base) != evq_schema_integer(field, defaults);
    case EVQ_SCHEMA_DOUBLE: {
        double value = evq_schema_double(base, field->offset);
        double fallback = evq_schema_double(defaults, field->offset);
        return isnan(fallback) ? !isnan(value) : memcmp(&value, &fallback, sizeof value) != 0;
    }
    case EVQ_SCHEMA_BOOL:
        return evq_schema_flag_value(base, field->offset) !=
               evq_schema_flag_value(defaults, field->offset);
    case EVQ_SCHEMA_WORD:
        return evq_schema_word(base, field->offset) != evq_schema_word(defaults, field->offset);
    case EVQ_SCHEMA_TEXTS:
    case EVQ_SCHEMA_PAIRS:
    case EVQ_SCHEMA_LIST:
        return evq_schema_count(base, field->count_offset) != 0;
    case EVQ_SCHEMA_STRUCT:
        return struct_given(field->table, evq_schema_at(base, field->offset),
                            evq_schema_at(defaults, field->offset));
    }
    return false;
}

static bool struct_given(const struct evq_schema *schema, const void *base, const void *defaults)
{
    for (size_t i = 0; i < schema->field_count; i++) {
        if (evq_schema_given(&schema->fields[i], base, defaults)) {
            return true;
        }
    }
    return false;
}
