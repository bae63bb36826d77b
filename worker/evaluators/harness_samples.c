#include "worker/evaluators/harness_samples.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/sha256.h"
#include "shared/samples/samples_reader.h"
#include "worker/evaluators/harness_results.h"

#define PATH_BYTES  8192
#define TEXT_BYTES  ((size_t)1 << 20) // Of an output that is no text, as JSON.
#define HASH_DIGITS 16
#define NAME_BYTES  136

struct harness {
    struct evq_sample_store *store;
    const struct evq_result *result;
    const char *cluster; // See evq_harness_samples_add().
    char filter[64];     // For lm-eval: the filter of the first line.
    json_t *seen;        // For lmms-eval: the ids so far.
};

struct item { // A sample and what it owns.
    struct evq_sample sample;
    char id[EVQ_SAMPLE_ID_BYTES_MAX];
    char names[EVQ_SAMPLE_SCORES_MAX][NAME_BYTES];
    char *output;
    char *target;
    char *cluster;
};

/* Recognises samples_TASK_TIME.jsonl, where TIME begins with a year. context: the task's name. */
static bool name_is_lm_eval(const char *name, const void *context)
{
    const char *task = context;
    const size_t bytes = strlen(task);

    if (strncmp(name, "samples_", 8) != 0 || strncmp(name + 8, task, bytes) != 0 ||
        !evq_file_ends_with(name, ".jsonl")) {
        return false;
    }
    const char *time = name + 8 + bytes;
    return time[0] == '_' && isdigit((unsigned char)time[1]) && isdigit((unsigned char)time[2]) &&
           isdigit((unsigned char)time[3]) && isdigit((unsigned char)time[4]) && time[5] == '-';
}

/* Recognises TIME_samples_TASK.jsonl, where TIME has digits only: 20261126_103000. */
static bool name_is_lmms_eval(const char *name, const void *context)
{
    char end[EVQ_HARNESS_NAME_BYTES];

    (void)snprintf(end, sizeof end, "_samples_%s.jsonl", (const char *)context);
    return evq_file_ends_with(name, end) &&
           strspn(name, "0123456789_") == strlen(name) - strlen(end) + 1;
}

/* A text as it is, anything else as JSON. The caller frees *ret_made, which may stay NULL. */
static const char *text_of(const json_t *value, char **ret_made)
{
    if (json_is_string(value)) {
        return json_string_value(value);
    }
    *ret_made = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    return *ret_made != NULL && strlen(*ret_made) <= TEXT_BYTES ? *ret_made : NULL;
}

/* The text of one choice, or with "arg_0" its context. NULL: the line has no such choice. */
static const char *choice_of(const json_t *line, size_t number, const char *part)
{
    char key[32];

    (void)snprintf(key, sizeof key, "gen_args_%zu", number);
    const json_t *asked = json_object_get(json_object_get(line, "arguments"), key);
    return json_string_value(json_object_get(asked, part));
}

/* The choice with the highest log-probability, which is the first part of each answer. NULL: the
 * task has no choices, or they differ in the context, as in winogrande. */
static const char *chosen_of(const json_t *line, const json_t *answers)
{
    const char *context = choice_of(line, 0, "arg_0");
    const char *best = NULL;
    double highest = -(double)INFINITY;

    for (size_t i = 0; i < json_array_size(answers); i++) {
        const json_t *value = json_array_get(json_array_get(answers, i), 0);
        const char *text = json_string_value(value); // The harness writes numbers as text.
        const double number = text != NULL ? strtod(text, NULL) : json_number_value(value);
        const char *choice = choice_of(line, i, "arg_1");
        const char *before = choice_of(line, i, "arg_0");
        if (value == NULL || choice == NULL || before == NULL || strcmp(before, context) != 0 ||
            json_array_size(answers) < 2) {
            return NULL;
        }
        if (best == NULL || number > highest) {
            highest = number;
            best = choice;
        }
    }
    return best;
}

static void add_score(struct item *item, const char *metric, const char *filter,
                      const json_t *value)
{
    struct evq_sample *sample = &item->sample;
    const double number =
        json_is_boolean(value) ? (double)json_is_true(value) : json_number_value(value);

    // Values that are no numbers, such as the pairs behind a perplexity, are left out.
    if ((!json_is_number(value) && !json_is_boolean(value)) || !isfinite(number) ||
        sample->score_count == EVQ_SAMPLE_SCORES_MAX) {
        return;
    }
    char *name = item->names[sample->score_count];
    (void)snprintf(name, NAME_BYTES, "%.80s%s%.40s", metric, filter[0] != '\0' ? "," : "", filter);
    sample->scores[sample->score_count++] =
        (struct evq_sample_score){.name = name, .value = number};
}

/* Takes the item's cluster from its doc. False: the doc lacks the field. */
static bool add_cluster(struct harness *harness, const json_t *line, struct item *item)
{
    const json_t *value = json_object_get(json_object_get(line, "doc"), harness->cluster);
    struct evq_error fault;

    if (harness->cluster[0] == '\0') {
        return true;
    }
    item->sample.cluster = json_is_null(value) ? NULL : text_of(value, &item->cluster);
    if (item->sample.cluster == NULL) {
        (void)evq_error_set(
            &fault, EVQ_E_INVALID,
            "the doc of item '%s' has no field '%.64s', which the task's cluster names", item->id,
            harness->cluster);
        evq_sample_store_fault(harness->store, &fault);
    }
    return item->sample.cluster != NULL;
}

static void add_item(struct harness *harness, const json_t *line, struct item *item)
{
    const json_t *answers = json_object_get(line, "filtered_resps");
    const json_t *answer = json_array_size(answers) == 1 ? json_array_get(answers, 0) : answers;
    const json_t *target = json_object_get(line, "target");
    const char *chosen = chosen_of(line, answers);
    const char *number = json_string_value(target); // The harness writes the index as text.
    const bool is_index =
        chosen != NULL && number != NULL && strspn(number, "0123456789") == strlen(number);
    const char *right = is_index ? choice_of(line, strtoul(number, NULL, 10), "arg_1") : NULL;

    if (item->sample.score_count > 0 && add_cluster(harness, line, item)) {
        item->sample.id = item->id;
        item->sample.output = chosen != NULL ? chosen : text_of(answer, &item->output);
        item->sample.target = right != NULL ? right : text_of(target, &item->target);
        evq_sample_store_add(harness->store, &item->sample);
    }
    free(item->output);
    free(item->target);
    free(item->cluster);
}

static void line_fault(struct harness *harness, const char *fields)
{
    struct evq_error fault;

    (void)evq_error_set(&fault, EVQ_E_INVALID, "a line of the harness has no %s", fields);
    evq_sample_store_fault(harness->store, &fault);
}

static void add_lm_eval(struct harness *harness, const json_t *line)
{
    const char *filter = json_string_value(json_object_get(line, "filter"));
    const char *hash = json_string_value(json_object_get(line, "prompt_hash"));
    const json_t *number = json_object_get(line, "doc_id");
    const json_t *metrics = json_object_get(line, "metrics");
    struct item item = {.sample = {.logprob = (double)NAN, .tokens = -1}};

    if (filter == NULL || hash == NULL || !json_is_integer(number)) {
        line_fault(harness, "doc_id, prompt_hash or filter");
        return;
    }
    if (harness->filter[0] == '\0') {
        (void)snprintf(harness->filter, sizeof harness->filter, "%s", filter);
    }
    if (strncmp(harness->filter, filter, sizeof harness->filter - 1) != 0) {
        return;
    }
    (void)snprintf(item.id, sizeof item.id, "%lld-%.*s", (long long)json_integer_value(number),
                   HASH_DIGITS, hash);
    for (size_t i = 0; i < json_array_size(metrics); i++) {
        const char *metric = json_string_value(json_array_get(metrics, i));
        if (metric != NULL) {
            add_score(&item, metric, filter, json_object_get(line, metric));
        }
    }
    add_item(harness, line, &item);
}

/* Whether a field of a line of lmms-eval is no score. */
static bool is_lmms_field(const char *key)
{
    static const char *const fields[] = {
        "doc_id",   "doc",         "target",         "input",        "arguments", "resps",
        "doc_hash", "input_media", "filtered_resps", "token_counts", NULL};
    size_t i = 0;

    while (fields[i] != NULL && strcmp(fields[i], key) != 0) {
        i++;
    }
    return fields[i] != NULL;
}

/* The filter in the name of the result's metric, which a line of lmms-eval does not tell. "": the
 * result has no such metric. */
static const char *filter_of(const struct evq_result *result, const char *metric)
{
    const size_t bytes = strlen(metric);

    for (size_t i = 0; i < result->metric_count; i++) {
        const char *name = result->metrics[i].name;
        if (strncmp(name, metric, bytes) == 0 && name[bytes] == ',') {
            return name + bytes + 1;
        }
    }
    return "";
}

/* The line's own doc_hash is not used: it covers the address of an image object in memory. */
static void add_lmms_eval(struct harness *harness, const json_t *line)
{
    const json_t *number = json_object_get(line, "doc_id");
    struct item item = {.sample = {.logprob = (double)NAN, .tokens = -1}};
    char digest[65];
    const char *key;
    json_t *value;

    char *asked =
        json_dumps(json_object_get(line, "input"), JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    if (asked == NULL || !json_is_integer(number)) {
        free(asked);
        line_fault(harness, "doc_id or input");
        return;
    }
    evq_sha256_hex(asked, strlen(asked), digest);
    free(asked);
    (void)snprintf(item.id, sizeof item.id, "%lld-%.*s", (long long)json_integer_value(number),
                   HASH_DIGITS, digest);
    if (json_object_get(harness->seen, item.id) != NULL) {
        return; // Another filter.
    }
    (void)json_object_set_new(harness->seen, item.id, json_true());
    // jansson can iterate over a const object only after a cast. Nothing is changed.
    json_object_foreach((json_t *)(uintptr_t)line, key, value)
    {
        if (!is_lmms_field(key)) {
            const json_t *score = json_is_object(value) ? json_object_get(value, "score") : value;
            add_score(&item, key, filter_of(harness->result, key), score);
        }
    }
    add_item(harness, line, &item);
}

void evq_harness_samples_add(struct evq_sample_store *store, const char *results, const char *task,
                             const char *form, const char *cluster, const struct evq_result *result)
{
    const bool lmms = strcmp(form, "lmms-eval") == 0;
    struct harness harness = {
        .store = store, .result = result, .cluster = cluster, .seen = json_object()};
    struct evq_samples_reader *reader = NULL;
    struct evq_error fault;
    const json_t *line = NULL;
    char name[EVQ_HARNESS_NAME_BYTES];
    char path[PATH_BYTES];
    int dir_fd = -1;

    enum evq_status status = evq_harness_file_find(
        results, lmms ? name_is_lmms_eval : name_is_lm_eval, task, &dir_fd, name, &fault);
    if (status == EVQ_E_NOT_FOUND) {
        (void)evq_error_set(&fault, status,
                            "the harness wrote no %ssamples_%.64s%s.jsonl, which --log_samples "
                            "makes it do",
                            lmms ? "*_" : "", task, lmms ? "" : "_*");
    } else if (status == EVQ_OK) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir_fd, name);
        status = evq_samples_reader_open(path, NULL, &reader, &fault);
    }
    while (status == EVQ_OK) {
        status = evq_samples_reader_object(reader, &line, &fault);
        if (status != EVQ_OK || line == NULL) {
            break;
        }
        if (lmms) {
            add_lmms_eval(&harness, line);
        } else {
            add_lm_eval(&harness, line);
        }
    }
    if (status != EVQ_OK) {
        evq_sample_store_fault(store, &fault);
    }
    evq_samples_reader_close(reader);
    json_decref(harness.seen);
    evq_file_close(&dir_fd);
}
