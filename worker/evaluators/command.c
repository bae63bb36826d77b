#include "worker/evaluators/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/clock.h"
#include "worker/evaluators/harness_samples.h"
#include "worker/evaluators/job_json.h"
#include "worker/evaluators/program_run.h"
#include "worker/evaluators/result_files.h"
#include "worker/evaluators/sample_store.h"

#define PATH_BYTES 8192

struct paths {
    char job[PATH_BYTES];
    char result[PATH_BYTES];
    char checkpoint[PATH_BYTES];
};

/* The attempt's directory is new, so it cannot contain a result of another attempt. */
static enum evq_status paths_make(const struct evq_evaluator *evaluator,
                                  const struct evq_eval_request *request, struct paths *paths,
                                  struct evq_error *err)
{
    const bool directory = evaluator->results[0] != '\0';

    (void)snprintf(paths->job, PATH_BYTES, "%s/job.json", request->scratch);
    (void)snprintf(paths->result, PATH_BYTES, "%s/%s", request->scratch,
                   directory ? "results" : "result.json");
    evq_job_json_checkpoint(request, paths->checkpoint, PATH_BYTES);
    if (directory && mkdir(paths->result, 0700) != 0) {
        return evq_error_set(err, EVQ_E_IO, "create '%s': %s", paths->result, strerror(errno));
    }
    return evq_job_json_write(request, paths->result, paths->job, err);
}

/* Keeps the samples of one task, if the suite wants them and the program left some, and notes them
 * in the result: samples.jsonl or samples_TASK.jsonl of the documented form, or the files of a
 * harness. */
static void samples_keep(const struct evq_eval_request *request, const char *form,
                         struct evq_result *result)
{
    struct evq_sample_store *store = evq_sample_store_new(request, result->task, "", "");
    const struct evq_task_config *task = evq_suite_task(request->suite, result->task);
    char path[PATH_BYTES];

    if (store == NULL) {
        return;
    }
    if (form[0] != '\0') {
        const char *source =
            task != NULL ? evq_pair_get(task->options, task->option_count, "source", result->task)
                         : result->task;
        const char *cluster =
            task != NULL ? evq_pair_get(task->options, task->option_count, "cluster", "") : "";
        (void)snprintf(path, sizeof(path), "%s/results", request->scratch);
        evq_harness_samples_add(store, path, strcmp(source, "*") == 0 ? result->task : source, form,
                                cluster, result);
    } else {
        const bool several = request->suite->task_count > 1;
        (void)snprintf(path, sizeof(path), "%s/samples%s%s.jsonl", request->scratch,
                       several ? "_" : "", several ? result->task : "");
        evq_sample_store_add_file(store, path);
    }
    evq_sample_store_finish(store, result);
}

static enum evq_status results_report(const struct evq_evaluator *evaluator,
                                      const struct evq_program_place *place,
                                      const struct evq_eval_request *request,
                                      struct evq_results *results, int64_t compute_us,
                                      const struct evq_eval_report *report, struct evq_error *err)
{
    for (size_t i = 0; i < results->count; i++) {
        struct evq_result *result = results->items[i];
        result->backend = "command";
        result->device = place->devices[0] != '\0' ? place->devices : "cpu";
        result->timing.compute_us = compute_us / (int64_t)results->count;
        result->timing.samples = result->n > 0 ? result->n : 0;
        samples_keep(request, evaluator->results, result);
        const enum evq_status status = report->task(report->context, result, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    return EVQ_OK;
}

enum evq_status evq_command_eval(const struct evq_evaluator *evaluator,
                                 const struct evq_program_place *place,
                                 const struct evq_eval_request *request,
                                 const struct evq_eval_report *report, struct evq_failure *failure,
                                 struct evq_error *err)
{
    struct paths paths;
    struct evq_results results = {0};

    enum evq_status status = paths_make(evaluator, request, &paths, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_pair extra[] = {{"EVALQ_JOB", paths.job},
                                     {"EVALQ_CHECKPOINT", paths.checkpoint},
                                     {"EVALQ_RESULT", paths.result}};
    const struct evq_program_run run = {.evaluator = evaluator,
                                        .request = request,
                                        .devices = place->devices,
                                        .log_path = place->log_path,
                                        .extra = extra,
                                        .extra_count = sizeof(extra) / sizeof(extra[0]),
                                        .report = report};
    const int64_t began_us = evq_clock_mono_us();
    status = evq_program_run_wait(&run, failure, err);
    if (status != EVQ_OK) {
        return status;
    }
    status = evq_result_files_read(request->suite, request->tasks_done, request->task_done_count,
                                   evaluator->results, paths.result, &results, err);
    if (status == EVQ_E_NOT_FOUND) {
        return evq_error_set(err, EVQ_E_RETRY,
                             "evaluator '%s' left no results in $EVALQ_RESULT (exit status 0)",
                             evaluator->name);
    }
    if (status == EVQ_OK) {
        status = results_report(evaluator, place, request, &results, evq_clock_mono_us() - began_us,
                                report, err);
    }
    evq_results_free(&results);
    return status;
}
