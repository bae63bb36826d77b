#include "shared/samples/sample.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "shared/queue/result.h"

/* Does what evq_buffer_text() does, but inline. Each item has many texts, and most are constants
 * whose length the compiler knows. */
static inline void put_constant(struct evq_buffer *out, const char *text)
{
    const size_t bytes = strlen(text);

    if (bytes < out->capacity - out->bytes && !out->failed &&
        out->bytes + bytes <= out->bytes_max) {
        memcpy(out->data + out->bytes, text, bytes + 1);
        out->bytes += bytes;
    } else {
        evq_buffer_text(out, text);
    }
}

/* before: the text before the value, such as ",\"output\":". */
static inline void put_text(struct evq_buffer *out, const char *before, const char *value)
{
    if (value != NULL) {
        put_constant(out, before);
        evq_buffer_json_text(out, value);
    }
}

void evq_sample_write(const struct evq_sample *sample, struct evq_buffer *out)
{
    put_text(out, "{\"id\":", sample->id);
    put_constant(out, ",\"scores\":{");
    for (size_t i = 0; i < sample->score_count; i++) {
        put_constant(out, i > 0 ? "," : "");
        evq_buffer_json_text(out, sample->scores[i].name);
        put_constant(out, ":");
        evq_buffer_json_double(out, sample->scores[i].value);
    }
    put_constant(out, "}");
    put_text(out, ",\"output\":", sample->output);
    put_text(out, ",\"target\":", sample->target);
    put_text(out, ",\"cluster\":", sample->cluster);
    if (!isnan(sample->logprob)) {
        put_constant(out, ",\"logprob\":");
        evq_buffer_json_double(out, sample->logprob);
    }
    if (sample->tokens >= 0) {
        put_constant(out, ",\"tokens\":");
        evq_buffer_integer(out, sample->tokens);
    }
    put_constant(out, "}\n");
}

void evq_samples_header_write(const struct evq_samples_header *header, struct evq_buffer *out)
{
    evq_buffer_printf(out, "{\"evalq_samples\":%d", EVQ_SAMPLES_FORMAT);
    put_text(out, ",\"job\":", header->job);
    put_text(out, ",\"task\":", header->task);
    put_text(out, ",\"suite_digest\":", header->suite_digest);
    put_text(out, ",\"data_digest\":", header->data_digest);
    put_text(out, ",\"weighted\":", header->weighted);
    if (header->limit > 0) {
        evq_buffer_text(out, ",\"limit\":");
        evq_buffer_integer(out, header->limit);
    }
    evq_buffer_text(out, "}\n");
}

void evq_samples_end_write(int64_t items, uint32_t crc, struct evq_buffer *out)
{
    evq_buffer_printf(out, "{\"" EVQ_SAMPLES_END "\":%" PRId64 ",\"crc32\":%" PRIu32 "}\n", items,
                      crc);
}

bool evq_samples_end_matches(const json_t *object, int64_t items, uint32_t crc)
{
    const json_t *count = json_object_get(object, EVQ_SAMPLES_END);
    const json_t *sum = json_object_get(object, "crc32");

    return json_is_integer(count) && json_integer_value(count) == items && json_is_integer(sum) &&
           json_integer_value(sum) == crc;
}

static bool name_valid(const char *name, size_t bytes_max)
{
    const size_t bytes = strlen(name);

    return bytes > 0 && bytes <= bytes_max && evq_metric_name_printable(name) == bytes;
}

static enum evq_status read_id(const json_t *value, struct evq_sample *to, struct evq_error *err)
{
    const char *id = json_string_value(value);
    char shown[48];

    if (id == NULL || !name_valid(id, EVQ_SAMPLE_ID_BYTES_MAX)) {
        id = id != NULL ? id : "";
        return evq_error_set(err, EVQ_E_INVALID,
                             "the id is '%s', expected a text of 1 to %d bytes without control "
                             "characters",
                             evq_error_escape(id, strlen(id), shown, sizeof shown),
                             EVQ_SAMPLE_ID_BYTES_MAX);
    }
    to->id = id;
    return EVQ_OK;
}

static enum evq_status read_scores(const json_t *value, struct evq_sample *to,
                                   struct evq_error *err)
{
    const char *key;
    json_t *score;

    if (!json_is_object(value) || json_object_size(value) == 0 ||
        json_object_size(value) > EVQ_SAMPLE_SCORES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'scores' holds %zu scores, expected an object of 1 to %d numbers",
                             json_object_size(value), EVQ_SAMPLE_SCORES_MAX);
    }
    // jansson can iterate over a const object only after a cast. Nothing is changed.
    json_object_foreach((json_t *)(uintptr_t)value, key, score)
    {
        char shown[64];
        const double number =
            json_is_boolean(score) ? (double)json_is_true(score) : json_number_value(score);
        if (!name_valid(key, EVQ_METRIC_NAME_BYTES_MAX)) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "a score is named '%s', expected 1 to %d bytes without control "
                                 "characters",
                                 evq_error_escape(key, strlen(key), shown, sizeof shown),
                                 EVQ_METRIC_NAME_BYTES_MAX);
        }
        if ((!json_is_number(score) && !json_is_boolean(score)) || !isfinite(number)) {
            return evq_error_set(err, EVQ_E_INVALID, "score '%s' is not a finite number",
                                 evq_error_escape(key, strlen(key), shown, sizeof shown));
        }
        to->scores[to->score_count++] = (struct evq_sample_score){.name = key, .value = number};
    }
    return EVQ_OK;
}

/* Reads one of the optional fields. */
static enum evq_status read_field(const char *key, const json_t *value, struct evq_sample *to,
                                  struct evq_error *err)
{
    const char **text = strcmp(key, "output") == 0    ? &to->output
                        : strcmp(key, "target") == 0  ? &to->target
                        : strcmp(key, "cluster") == 0 ? &to->cluster
                                                      : NULL;

    if (json_is_null(value)) {
        return EVQ_OK;
    }
    if (text != NULL) {
        *text = json_string_value(value);
        return *text != NULL ? EVQ_OK
                             : evq_error_set(err, EVQ_E_INVALID, "'%s' is not a text", key);
    }
    if (strcmp(key, "logprob") == 0) {
        to->logprob = json_number_value(value);
        return json_is_number(value) && isfinite(to->logprob)
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_INVALID, "'logprob' is not a finite number");
    }
    if (strcmp(key, "tokens") == 0) {
        const double count = json_number_value(value); // A program's line has only real numbers.
        if (!json_is_number(value) || !(count >= 0.0 && count < 9e15) || count != floor(count)) {
            return evq_error_set(err, EVQ_E_INVALID, "'tokens' is not a count");
        }
        to->tokens = (int64_t)count;
        return EVQ_OK;
    }
    char shown[64];
    return evq_error_set(err, EVQ_E_INVALID,
                         "'%s' is no field of a sample, expected id, scores, output, target, "
                         "cluster, logprob or tokens",
                         evq_error_escape(key, strlen(key), shown, sizeof shown));
}

enum evq_status evq_sample_read(const json_t *object, struct evq_sample *ret, struct evq_error *err)
{
    struct evq_sample out = {.logprob = (double)NAN, .tokens = -1};
    const char *key;
    json_t *value;

    if (!json_is_object(object)) {
        return evq_error_set(err, EVQ_E_INVALID, "it is not a JSON object");
    }
    enum evq_status status = read_id(json_object_get(object, "id"), &out, err);
    if (status == EVQ_OK) {
        status = read_scores(json_object_get(object, "scores"), &out, err);
    }
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (status == EVQ_OK && strcmp(key, "id") != 0 && strcmp(key, "scores") != 0) {
            status = read_field(key, value, &out, err);
        }
    }
    if (status == EVQ_OK) {
        *ret = out;
    }
    return status;
}

/* Copies a text of the header. False: it is missing or too long. */
static bool take_text(const json_t *object, const char *key, char *out, size_t out_bytes)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL && (size_t)snprintf(out, out_bytes, "%s", text) < out_bytes;
}

enum evq_status evq_samples_header_read(const json_t *object, struct evq_samples_header *ret,
                                        struct evq_error *err)
{
    struct evq_samples_header out = {.limit = 0};
    const json_t *format = json_object_get(object, "evalq_samples");

    if (!json_is_integer(format)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "the first line is not that of a samples file");
    }
    if (json_integer_value(format) != EVQ_SAMPLES_FORMAT) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "the samples have the format %lld, and this evalq reads format %d",
                             (long long)json_integer_value(format), EVQ_SAMPLES_FORMAT);
    }
    if (!take_text(object, "job", out.job, sizeof out.job) ||
        !take_text(object, "task", out.task, sizeof out.task) ||
        !take_text(object, "suite_digest", out.suite_digest, sizeof out.suite_digest) ||
        !take_text(object, "data_digest", out.data_digest, sizeof out.data_digest) ||
        !take_text(object, "weighted", out.weighted, sizeof out.weighted)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "the first line has no job, task, suite_digest, data_digest or "
                             "weighted, or one is too long");
    }
    out.limit = json_integer_value(json_object_get(object, "limit"));
    *ret = out;
    return EVQ_OK;
}

const struct evq_sample_score *evq_sample_score(const struct evq_sample *sample, const char *name)
{
    for (size_t i = 0; i < sample->score_count; i++) {
        if (strcmp(sample->scores[i].name, name) == 0) {
            return &sample->scores[i];
        }
    }
    return NULL;
}
