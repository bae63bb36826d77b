#include "worker/child/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"
#include "shared/checkpoint/file_list.h"
#include "shared/queue/attempt_log.h"
#include "worker/child/scratch.h"
#include "worker/convert/conversion_plan.h"
#include "worker/evaluators/command.h"
#include "worker/evaluators/native/native.h"
#include "worker/evaluators/persistent.h"
#include "worker/evaluators/prepare.h"

struct evq_runner {
    struct evq_runner_config config;
    struct evq_native *native;
    // By the number of the evaluator in the configuration; NULL: not started yet.
    struct evq_persistent **persistents;
};

/* Passes reports on and adds what the evaluator does not know. */
struct relay {
    const struct evq_eval_report *report;
    const struct evq_eval_request *request;
    bool native;
    const char *fingerprint; // Fingerprint before the evaluation, like inventory.
    // All files of the checkpoint; not used for native evaluations.
    const struct evq_file_list *inventory;
};

enum evq_status evq_runner_open(const struct evq_runner_config *config,
                                struct evq_runner **ret_runner, struct evq_error *err)
{
    struct evq_runner *runner = calloc(1, sizeof(*runner));

    if (runner != NULL) {
        runner->config = *config;
        runner->persistents =
            calloc(config->config->evaluator_count + 1, sizeof(*runner->persistents));
    }
    if (runner == NULL || runner->persistents == NULL) {
        free(runner);
        return evq_error_set(err, EVQ_E_NOMEM, "the evaluators of a slot");
    }
    *ret_runner = runner;
    return EVQ_OK;
}

void evq_runner_close(struct evq_runner *runner)
{
    if (runner == NULL) {
        return;
    }
    for (size_t i = 0; i < runner->config.config->evaluator_count; i++) {
        evq_persistent_free(runner->persistents[i]);
    }
    evq_native_close(runner->native);
    free(runner->persistents);
    free(runner);
}

static bool suite_is_native(const struct evq_suite *suite)
{
    return strcmp(suite->evaluator, "native") == 0;
}

enum evq_status evq_runner_suite_check(const struct evq_config *config,
                                       const struct evq_suite *suite, struct evq_error *err)
{
    const struct evq_evaluator *prepare = evq_config_evaluator(config, suite->prepare);

    if (!suite_is_native(suite) && evq_config_evaluator(config, suite->evaluator) == NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "suite '%s' names evaluator '%s', which %s does not define",
                             suite->name, suite->evaluator, config->file);
    }
    if (suite_is_native(suite)) {
        const enum evq_status status = evq_native_check(suite, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    if (!suite_is_native(suite) && suite->shards > 1) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "suite '%s' has shards: %u, but evaluator '%s' is a program, whose metrics cannot be "
            "added up: remove shards or use evaluator native",
            suite->name, suite->shards, suite->evaluator);
    }
    if (suite->prepare[0] != '\0' && (prepare == NULL || prepare->kind != EVQ_EVALUATOR_COMMAND)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "suite '%s' has prepare: %s, which is not a command of %s",
                             suite->name, suite->prepare, config->file);
    }
    return EVQ_OK;
}

/* Counts the ids in a list such as "GPU-a,GPU-b". */
static int32_t gpu_count(const char *devices)
{
    int32_t count = devices[0] != '\0';

    for (; *devices != '\0'; devices++) {
        count += *devices == ',';
    }
    return count;
}

enum evq_status evq_runner_open_native(struct evq_runner *runner, char *ret_note, size_t note_bytes,
                                       struct evq_error *err)
{
    ret_note[0] = '\0';
    if (runner->native != NULL) {
        return EVQ_OK;
    }
    return evq_native_open(gpu_count(runner->config.devices), runner->config.threads,
                           &runner->native, ret_note, note_bytes, err);
}

static enum evq_status persistent_have(struct evq_runner *runner,
                                       const struct evq_evaluator *evaluator,
                                       struct evq_persistent **ret_persistent,
                                       struct evq_error *err)
{
    const struct evq_config *config = runner->config.config;
    struct evq_persistent **persistent = &runner->persistents[evaluator - config->evaluators];
    enum evq_status status = EVQ_OK;

    if (*persistent == NULL) {
        status = evq_persistent_new(evaluator, runner->config.devices, config->worker.scratch,
                                    persistent, err);
    }
    if (status == EVQ_OK) {
        *ret_persistent = *persistent;
    }
    return status;
}

enum evq_status evq_runner_start_programs(struct evq_runner *runner,
                                          const struct evq_eval_report *report,
                                          struct evq_error *ret_fault, struct evq_error *err)
{
    const struct evq_config *config = runner->config.config;
    struct evq_error fault;

    ret_fault->status = EVQ_OK;
    for (size_t i = 0; i < config->suite_count; i++) {
        const struct evq_suite *suite = &config->suites[i];
        const struct evq_evaluator *evaluator = evq_config_evaluator(config, suite->evaluator);
        struct evq_persistent *persistent = NULL;
        if (evaluator == NULL || evaluator->kind != EVQ_EVALUATOR_PERSISTENT ||
            suite->needs.gpus > gpu_count(runner->config.devices) ||
            runner->persistents[evaluator - config->evaluators] != NULL) {
            continue;
        }
        enum evq_status status = persistent_have(runner, evaluator, &persistent, &fault);
        if (status == EVQ_OK) {
            status = evq_persistent_warm(persistent, config, suite, report, &fault);
        }
        if (status == EVQ_E_STOPPED) {
            return evq_error_set(err, status, "%s", fault.message);
        }
        if (status != EVQ_OK && ret_fault->status == EVQ_OK) {
            *ret_fault = fault;
        }
    }
    return EVQ_OK;
}

/* Takes the fingerprint of what is evaluated. A program may read any file, so for a program all
 * files count. */
static enum evq_status fingerprint_take(const struct evq_eval_request *request, bool native,
                                        char out[33], struct evq_error *err)
{
    const int root_fd = request->root_fd;
    const enum evq_status status =
        evq_checkpoint_fingerprint(root_fd, request->path, out, NULL, err);

    return !native && (status == EVQ_E_CORRUPT || status == EVQ_E_INVALID)
               ? evq_checkpoint_files_fingerprint(root_fd, request->path, out, err)
               : status;
}

static enum evq_status relay_progress(void *context, int64_t done, int64_t total,
                                      const char *status)
{
    struct relay *relay = context;

    return relay->report->progress(relay->report->context, done, total, status);
}

static enum evq_status changed_error(const struct evq_eval_request *request, const char *when,
                                     struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_CHANGED, "checkpoint '%s' %s", request->path, when);
}

/* Whether this machine could not check, for example because memory or file descriptors ran out.
 * That says nothing about the checkpoint. */
static bool could_not_look(enum evq_status status)
{
    return status == EVQ_E_NOMEM || status == EVQ_E_IO;
}

/*
 * Checks that the checkpoint is still the one that the evaluation began with. evalq does not see
 * what a program reads, so every file must be unchanged. EVQ_E_GONE, EVQ_E_CHANGED: it is not the
 * same. EVQ_E_NOMEM, EVQ_E_IO: that is not known, so the attempt fails and publishes nothing.
 */
static enum evq_status check_unchanged(const struct relay *relay, struct evq_error *err)
{
    const struct evq_eval_request *request = relay->request;
    struct evq_error fault = {0};
    char now[33];

    enum evq_status status = evq_file_list_verify(relay->inventory, request->root_fd, &fault);
    if (status == EVQ_OK) {
        status = fingerprint_take(request, false, now, &fault);
    }
    if (status == EVQ_E_GONE) {
        return evq_error_set(err, EVQ_E_GONE, "checkpoint '%s' vanished while it was evaluated",
                             request->path);
    }
    if (could_not_look(status)) {
        return evq_error_set(err, status,
                             "cannot find out if checkpoint '%s' changed during the evaluation: %s",
                             request->path, fault.message);
    }
    if (status != EVQ_OK || strcmp(relay->fingerprint, now) != 0) {
        return changed_error(request, "changed while it was evaluated", err);
    }
    return EVQ_OK;
}

static enum evq_status relay_task(void *context, const struct evq_result *result,
                                  struct evq_error *err)
{
    struct relay *relay = context;
    struct evq_result copy = *result;
    char id[EVQ_JOB_ID_BYTES_MAX];

    if (!relay->native) {
        const enum evq_status status = check_unchanged(relay, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    if (copy.weights_digest == NULL || copy.weights_digest[0] == '\0') {
        copy.weights_digest = relay->fingerprint;
    }
    if ((copy.job == NULL || copy.job[0] == '\0') && relay->request->job != NULL) {
        // A record without these names is not valid. The supervisor adds the rest.
        evq_job_id(relay->request->job, id);
        copy.job = id;
    }
    return relay->report->task(relay->report->context, &copy, err);
}

static enum evq_status program_eval(struct evq_runner *runner,
                                    const struct evq_program_place *place,
                                    const struct evq_eval_request *request,
                                    const struct evq_eval_report *report,
                                    struct evq_failure *failure, struct evq_error *err)
{
    const struct evq_config *config = runner->config.config;
    const struct evq_evaluator *evaluator = evq_config_evaluator(config, request->suite->evaluator);

    if (evaluator->kind == EVQ_EVALUATOR_COMMAND) {
        return evq_command_eval(evaluator, place, request, report, failure, err);
    }
    struct evq_persistent *persistent = NULL;
    const enum evq_status status = persistent_have(runner, evaluator, &persistent, err);
    return status == EVQ_OK
               ? evq_persistent_eval(persistent, place->log_path, request, report, failure, err)
               : status;
}

static enum evq_status native_eval(struct evq_runner *runner,
                                   const struct evq_eval_request *request,
                                   const struct evq_eval_report *report, struct evq_error *err)
{
    char note[256];

    const enum evq_status status = evq_runner_open_native(runner, note, sizeof(note), err);
    return status == EVQ_OK ? evq_native_eval(runner->native, request, report, err) : status;
}

/* If the checkpoint was removed or rewritten while a program failed, that is the reason to report.
 */
static enum evq_status program_reason(const struct relay *relay, enum evq_status status,
                                      struct evq_error *err)
{
    struct evq_error fault;

    if (status == EVQ_OK || status == EVQ_E_STOPPED || status == EVQ_E_TIMEOUT) {
        return status;
    }
    const enum evq_status unchanged = check_unchanged(relay, &fault);
    if (unchanged == EVQ_OK) {
        return status;
    }
    if (err != NULL) {
        *err = fault;
    }
    return unchanged;
}

/* Runs the suite's prepare command, or the conversion that a model server needs. Without either,
 * *ret_path is "". */
static enum evq_status prepare_open(const struct evq_program_place *place,
                                    const struct relay *relay, const struct evq_eval_report *report,
                                    struct evq_prepared *ret_prepared, const char **ret_path,
                                    struct evq_failure *failure, struct evq_error *err)
{
    struct evq_eval_request mine = *relay->request;
    const char *name = mine.suite->prepare;
    const struct evq_evaluator *evaluator = evq_config_evaluator(mine.config, name);
    struct evq_conversion_plan conversion;
    char log_path[EVQ_SCRATCH_PATH_BYTES];

    *ret_path = "";
    enum evq_status status = evq_conversion_plan_make(&mine, relay->fingerprint, &conversion, err);
    if (status != EVQ_OK || (name[0] == '\0' && !conversion.needed)) {
        return status;
    }
    if (conversion.needed) {
        evaluator = &conversion.evaluator;
    } else {
        (void)snprintf(conversion.key, sizeof(conversion.key), "%s-%s-%s", relay->fingerprint,
                       evq_eval_variant(&mine), name);
    }
    (void)snprintf(log_path, sizeof(log_path), "%s.prepare", place->log_path);
    const struct evq_program_place prepare_place = {.devices = place->devices,
                                                    .log_path = log_path};
    mine.prepared = "";
    status = evq_prepare_open(evaluator, &prepare_place, conversion.key, &mine, report,
                              ret_prepared, failure, err);
    if (status != EVQ_OK) {
        return evq_error_prefix(err, conversion.needed ? "convert" : "prepare");
    }
    *ret_path = ret_prepared->path;
    return check_unchanged(relay, err);
}

static enum evq_status prepared_eval(struct evq_runner *runner,
                                     const struct evq_program_place *place,
                                     const struct relay *relay,
                                     const struct evq_eval_report *report,
                                     struct evq_failure *failure, struct evq_error *err)
{
    struct evq_eval_request mine = *relay->request;
    struct evq_prepared prepared = {.lock_fd = -1};

    enum evq_status status =
        prepare_open(place, relay, report, &prepared, &mine.prepared, failure, err);
    if (status == EVQ_OK) {
        status = suite_is_native(mine.suite)
                     ? native_eval(runner, &mine, report, err)
                     : program_eval(runner, place, &mine, report, failure, err);
    }
    evq_prepare_close(&prepared);
    return status;
}

/* Whether every task was published by earlier attempts, so that only the end of the job was lost.
 * The tasks behind `source: "*"` are not known before a run, so such a suite runs again. */
static bool all_tasks_done(const struct evq_eval_request *request)
{
    for (size_t i = 0; i < request->suite->task_count; i++) {
        const struct evq_task_config *task = &request->suite->tasks[i];
        bool done = false;
        for (size_t k = 0; k < request->task_done_count && !done; k++) {
            done = strcmp(request->tasks_done[k], task->name) == 0;
        }
        if (!done ||
            strcmp(evq_pair_get(task->options, task->option_count, "source", ""), "*") == 0) {
            return false;
        }
    }
    return request->suite->task_count > 0 && request->shard < 0;
}

static enum evq_status watched_eval(struct evq_runner *runner, const char *id, struct relay *relay,
                                    struct evq_failure *failure, struct evq_error *err)
{
    const struct evq_eval_request *request = relay->request;
    const struct evq_eval_report relayed = {
        .context = relay, .progress = relay_progress, .task = relay_task};
    char log_path[EVQ_SCRATCH_PATH_BYTES];
    char before[33];

    enum evq_status status = fingerprint_take(request, relay->native, before, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (request->job != NULL && !request->is_fetched && request->job->fingerprint != NULL &&
        request->job->fingerprint[0] != '\0' && strcmp(request->job->fingerprint, before) != 0) {
        return changed_error(request, "is not the one that was submitted: its content changed",
                             err);
    }
    relay->fingerprint = before;
    if (!evq_attempt_log_path(request->config->worker.scratch,
                              request->keyspace != NULL ? request->keyspace : "", id,
                              request->attempt, log_path, sizeof(log_path))) {
        return evq_error_set(err, EVQ_E_LIMIT, "worker.scratch is too long for the log of '%s'",
                             id);
    }
    const struct evq_program_place place = {.devices = runner->config.devices,
                                            .log_path = log_path};
    status = prepared_eval(runner, &place, relay, &relayed, failure, err);
    return relay->native ? status : program_reason(relay, status, err);
}

enum evq_status evq_runner_eval(struct evq_runner *runner, const char *id,
                                const struct evq_eval_request *request,
                                const struct evq_eval_report *report, struct evq_failure *failure,
                                struct evq_error *err)
{
    // A suite with a prepare command is treated like a program, because the command may read any
    // file of the checkpoint.
    const bool native = suite_is_native(request->suite) && request->suite->prepare[0] == '\0';
    struct evq_file_list inventory = {0};
    struct relay relay = {
        .report = report, .request = request, .native = native, .inventory = &inventory};

    *failure = (struct evq_failure){0};
    enum evq_status status = evq_runner_suite_check(request->config, request->suite, err);
    if (status == EVQ_OK && all_tasks_done(request)) {
        return EVQ_OK;
    }
    if (status == EVQ_OK && !native) {
        // This also refuses what a program must not follow: links that leave the root, and devices.
        status = evq_file_list_scan(request->root_fd, request->path, &inventory, err);
    }
    if (status == EVQ_OK) {
        status = watched_eval(runner, id, &relay, failure, err);
    }
    evq_file_list_free(&inventory);
    return status;
}
