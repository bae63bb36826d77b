#include "worker/evaluators/program_lines.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "worker/evaluators/python_json.h"
#include "worker/evaluators/result_files.h"

/* Finds the number of the task that a message names, among those of the suite. */
static enum evq_status task_find(const json_t *line, const struct evq_eval_request *request,
                                 size_t *ret_number, struct evq_error *err)
{
    const char *task = json_string_value(json_object_get(line, "task"));
    size_t number = 0;

    while (number < request->suite->task_count &&
           (task == NULL || strcmp(request->suite->tasks[number].name, task) != 0)) {
        number++;
    }
    if (number == request->suite->task_count) {
        char shown[64];
        task = task != NULL ? task : "";
        return evq_error_set(
            err, EVQ_E_CORRUPT, "a %s message has the \"task\" '%s', expected one of suite '%s'",
            json_string_value(json_object_get(line, "type")),
            evq_error_escape(task, strlen(task), shown, sizeof(shown)), request->suite->name);
    }
    *ret_number = number;
    return EVQ_OK;
}

/* Takes some samples of a task, whose own message follows. Samples of another task before it are
 * given up. Bad samples are no error. */
static enum evq_status samples_take(const json_t *line, const struct evq_eval_request *request,
                                    struct evq_sample_store **samples, struct evq_error *err)
{
    const json_t *items = json_object_get(line, "items");
    size_t number = 0;
    size_t i;
    json_t *item;

    const enum evq_status status = task_find(line, request, &number, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *task = request->suite->tasks[number].name;
    if (!json_is_array(items)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "a samples message of task '%s' has no \"items\", expected a list",
                             task);
    }
    if (strcmp(evq_sample_store_task(*samples), task) != 0) {
        evq_sample_store_free(*samples);
        *samples = evq_sample_store_new(request, task, "", "");
    }
    // jansson can iterate over a const array only after a cast. Nothing is changed.
    json_array_foreach((json_t *)(uintptr_t)items, i, item)
    {
        evq_sample_store_add_json(*samples, item);
    }
    return EVQ_OK;
}

static int64_t json_count(const json_t *json, const char *key)
{
    double value = -1;

    return evq_python_json_number(json_object_get(json, key), &value) && value >= 0 && value < 9e15
               ? (int64_t)value
               : -1;
}

static enum evq_status task_take(struct evq_program_job *job, const json_t *line,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report, struct evq_error *err)
{
    struct evq_result *result = NULL;
    const json_t *metrics = json_object_get(line, "metrics");
    size_t number = 0;

    enum evq_status status = task_find(line, request, &number, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *task = request->suite->tasks[number].name;
    if (!json_is_object(metrics)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "the message of task '%s' has no \"metrics\", expected an object",
                             task);
    }
    if (job->tasks_given[number]) {
        return evq_error_set(err, EVQ_E_CORRUPT, "task '%s' was given twice", task);
    }
    status = evq_results_task(task, metrics, "task message", &result, err);
    if (status == EVQ_E_INVALID || status == EVQ_E_LIMIT) {
        // The program keeps to the protocol and would report the same again, so this is neither a
        // crash nor worth a retry.
        (void)evq_error_set(&job->refusal, status, "evaluator '%s': %s", job->evaluator,
                            err->message);
        return EVQ_E_STOPPED;
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (json_count(line, "n") >= 0) {
        result->n = json_count(line, "n");
    }
    const int64_t now_us = evq_clock_mono_us();
    result->timing.compute_us = now_us - job->began_us;
    result->timing.samples = result->n > 0 ? result->n : 0;
    job->began_us = now_us;
    result->backend = "persistent";
    result->device = job->device;
    const char *note = json_string_value(json_object_get(line, "note"));
    result->note = note != NULL ? note : "";
    job->tasks_given[number] = true;
    if (strcmp(evq_sample_store_task(job->samples), task) == 0) {
        evq_sample_store_finish(job->samples, result);
        job->samples = NULL;
    }
    const int64_t report_ms = evq_clock_mono_ms();
    status = report->task(report->context, result, &job->refusal);
    job->report_ms += evq_clock_mono_ms() - report_ms;
    if (status != EVQ_OK) {
        job->refusal.status = status;
        status = EVQ_E_STOPPED; // The program did nothing wrong, so it is asked to stop.
    }
    evq_result_free(result);
    return status;
}

enum evq_status evq_program_lines_take(struct evq_program_job *job, const char *text, size_t bytes,
                                       const struct evq_eval_request *request,
                                       const struct evq_eval_report *report,
                                       enum evq_program_line *ret_said, struct evq_error *err)
{
    json_t *line = NULL;

    enum evq_status status =
        evq_python_json_object(text, bytes, "a line on standard output", &line, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *type = json_string_value(json_object_get(line, "type"));
    type = type != NULL ? type : "";
    const int64_t turn = json_count(line, "turn");
    job->echoes = job->echoes || turn > 0;
    if (turn > 0 && (uint64_t)turn != job->turn) {
        job->late++; // A line about an earlier job does not count for this one.
        *ret_said = EVQ_PROGRAM_LINE_NONE;
    } else if (strcmp(type, "ready") == 0) {
        *ret_said = EVQ_PROGRAM_LINE_READY;
    } else if (strcmp(type, "progress") == 0) {
        const char *words = json_string_value(json_object_get(line, "status"));
        *ret_said = EVQ_PROGRAM_LINE_PROGRESS;
        status = report->progress(report->context, json_count(line, "done"),
                                  json_count(line, "total"), words != NULL ? words : "");
    } else if (strcmp(type, "samples") == 0) {
        *ret_said = EVQ_PROGRAM_LINE_SAMPLES;
        status = samples_take(line, request, &job->samples, err);
    } else if (strcmp(type, "task") == 0) {
        *ret_said = EVQ_PROGRAM_LINE_TASK;
        status = task_take(job, line, request, report, err);
    } else if (strcmp(type, "done") == 0) {
        *ret_said = EVQ_PROGRAM_LINE_DONE;
    } else if (strcmp(type, "error") == 0) {
        const char *words = json_string_value(json_object_get(line, "message"));
        const bool final = json_is_true(json_object_get(line, "final"));
        char escaped[400];
        words = words != NULL ? words : "no message";
        *ret_said = EVQ_PROGRAM_LINE_ERROR;
        status = evq_error_set(err, final ? EVQ_E_INVALID : EVQ_E_RETRY, "evaluator '%s': %s",
                               job->evaluator,
                               evq_error_escape(words, strlen(words), escaped, sizeof(escaped)));
    } else {
        char shown[64];
        status = evq_error_set(err, EVQ_E_CORRUPT,
                               "a line on standard output has the \"type\" '%s', expected ready, "
                               "progress, samples, task, done or error",
                               evq_error_escape(type, strlen(type), shown, sizeof(shown)));
    }
    json_decref(line);
    return status;
}

enum evq_status evq_program_lines_begin(struct evq_program_job *job,
                                        const struct evq_eval_request *request,
                                        struct evq_error *err)
{
    const size_t count = request->suite->task_count;

    evq_sample_store_free(job->samples); // They are left of a job that ended before its task did.
    job->samples = NULL;
    if (count > job->task_room) {
        bool *grown = realloc(job->tasks_given, count * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "evaluator '%s'", job->evaluator);
        }
        job->tasks_given = grown;
        job->task_room = count;
    }
    for (size_t i = 0; i < count; i++) {
        job->tasks_given[i] = false;
    }
    return EVQ_OK;
}

void evq_program_lines_end(struct evq_program_job *job)
{
    evq_sample_store_free(job->samples);
    free(job->tasks_given);
}
