#include "worker/evaluators/sample_files.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/samples/samples_reader.h"
#include "worker/evaluators/harness_results.h"
#include "worker/evaluators/json.h"
#include "worker/evaluators/sample_store.h"

#define PATH_BYTES  8192
#define TEXT_BYTES  ((size_t)1 << 20) // Of an output that is no text, as JSON.
#define HASH_DIGITS 16

/* Recognises samples_TASK_TIME.jsonl, where TIME begins with a year. context: the task's name. */
static bool name_is_samples(const char *name, const void *context)
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

/* A text as it is, anything else as JSON. The caller frees *ret_made, which may stay NULL. */
static const char *text_of(const json_t *value, char **ret_made)
{
    if (json_is_string(value)) {
        return json_string_value(value);
    }
    *ret_made = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    return *ret_made != NULL && strlen(*ret_made) <= TEXT_BYTES ? *ret_made : NULL;
}

/* The scores of a line, named as the harness names its metrics: "acc,none". Values that are no
 * numbers, such as the pairs behind a perplexity, are left out. names has room for all. */
static void take_scores(const json_t *line, const char *filter, struct evq_sample *sample,
                        char names[EVQ_SAMPLE_SCORES_MAX][136])
{
    const json_t *metrics = json_object_get(line, "metrics");

    for (size_t i = 0; i < json_array_size(metrics) && sample->score_count < EVQ_SAMPLE_SCORES_MAX;
         i++) {
        const char *metric = json_string_value(json_array_get(metrics, i));
        const json_t *value = metric != NULL ? json_object_get(line, metric) : NULL;
        const double number =
            json_is_boolean(value) ? (double)json_is_true(value) : json_number_value(value);
        if ((json_is_number(value) || json_is_boolean(value)) && isfinite(number)) {
            char *name = names[sample->score_count];
            (void)snprintf(name, 136, "%.80s,%.40s", metric, filter);
            sample->scores[sample->score_count++] =
                (struct evq_sample_score){.name = name, .value = number};
        }
    }
}

/* Adds one line of the harness. A task with several filters has its items once for each; the first
 * filter counts. */
static void add_line(struct evq_sample_store *store, const json_t *line, char first_filter[64])
{
    const char *filter = json_string_value(json_object_get(line, "filter"));
    const char *hash = json_string_value(json_object_get(line, "prompt_hash"));
    const json_t *number = json_object_get(line, "doc_id");
    struct evq_sample sample = {.logprob = (double)NAN, .tokens = -1};
    struct evq_error fault;
    char names[EVQ_SAMPLE_SCORES_MAX][136];
    char id[EVQ_SAMPLE_ID_BYTES_MAX];
    char *output = NULL;
    char *target = NULL;

    if (filter == NULL || hash == NULL || !json_is_integer(number)) {
        (void)evq_error_set(&fault, EVQ_E_INVALID,
                            "a line of the harness has no doc_id, prompt_hash or filter");
        evq_sample_store_fault(store, &fault);
        return;
    }
    if (first_filter[0] == '\0') {
        (void)snprintf(first_filter, 64, "%s", filter);
    }
    if (strncmp(first_filter, filter, 63) != 0) {
        return;
    }
    (void)snprintf(id, sizeof id, "%lld-%.*s", (long long)json_integer_value(number), HASH_DIGITS,
                   hash);
    sample.id = id;
    take_scores(line, filter, &sample, names);
    if (sample.score_count > 0) {
        const json_t *answers = json_object_get(line, "filtered_resps");
        const json_t *answer = json_array_size(answers) == 1 ? json_array_get(answers, 0) : answers;
        sample.output = text_of(answer, &output);
        sample.target = text_of(json_object_get(line, "target"), &target);
        evq_sample_store_add(store, &sample);
    }
    free(output);
    free(target);
}

static void add_harness(struct evq_sample_store *store, const char *results, const char *task)
{
    struct evq_samples_reader *reader = NULL;
    struct evq_error fault;
    const json_t *line = NULL;
    char name[EVQ_HARNESS_NAME_BYTES];
    char path[PATH_BYTES];
    char filter[64] = "";
    int dir_fd = -1;

    enum evq_status status =
        evq_harness_file_find(results, name_is_samples, task, &dir_fd, name, &fault);
    if (status == EVQ_E_NOT_FOUND) {
        (void)evq_error_set(&fault, status,
                            "the harness wrote no samples_%.64s_*.jsonl, which "
                            "--log_samples makes it do",
                            task);
    } else if (status == EVQ_OK) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir_fd, name);
        status = evq_samples_reader_open(path, NULL, &reader, &fault);
    }
    while (status == EVQ_OK) {
        status = evq_samples_reader_object(reader, &line, &fault);
        if (status != EVQ_OK || line == NULL) {
            break;
        }
        add_line(store, line, filter);
    }
    if (status != EVQ_OK) {
        evq_sample_store_fault(store, &fault);
    }
    evq_samples_reader_close(reader);
    evq_file_close(&dir_fd);
}

void evq_sample_files_keep(const struct evq_eval_request *request, const char *form,
                           struct evq_result *result)
{
    struct evq_sample_store *store = evq_sample_store_new(request, result->task, "", "");
    const struct evq_task_config *task = evq_suite_task(request->suite, result->task);
    char path[PATH_BYTES];

    if (store == NULL) {
        return;
    }
    if (strcmp(form, "lm-eval") == 0) {
        const char *source =
            task != NULL ? evq_pair_get(task->options, task->option_count, "source", result->task)
                         : result->task;
        (void)snprintf(path, sizeof path, "%s/results", request->scratch);
        add_harness(store, path, strcmp(source, "*") == 0 ? result->task : source);
    } else if (form[0] == '\0') {
        const bool several = request->suite->task_count > 1;
        (void)snprintf(path, sizeof path, "%s/samples%s%s.jsonl", request->scratch,
                       several ? "_" : "", several ? result->task : "");
        evq_sample_store_add_file(store, path);
    }
    evq_sample_store_finish(store, result);
}
