/*
 * Waits until the workers of `evalq up` have registered with the queue, and says on which devices
 * they run.
 */
#include <string.h>
#include <sys/wait.h>

#include "producer/cli/json.h"
#include "producer/cli/up/process_manager.h"
#include "producer/cli/view.h"
#include "shared/base/clock.h"

#define READY_MS   30000 // After this time, `up` says that workers are slow and continues.
#define LOOK_MS    20
#define NOTE_BYTES 1024

/* The queue's entry of the worker with this process id; NULL: it has not registered yet. */
static const json_t *worker_of(const json_t *stats, pid_t pid)
{
    size_t index = 0;
    const json_t *worker = NULL;
    json_array_foreach(json_object_get(stats, "workers"), index, worker)
    {
        const json_t *info = json_object_get(worker, "info");
        if (strcmp(evq_json_text(worker, "state", ""), "alive") == 0 &&
            evq_json_integer(info, "pid", -1) == pid) {
            return info;
        }
    }
    return NULL;
}

/* Whether all workers have registered; counts the GPUs that they have. */
static bool all_registered(const struct evq_process_manager *manager, size_t workers,
                           int64_t *ret_gpus)
{
    json_t *stats = NULL;
    size_t registered = 0;
    if (evq_view_stats(manager->cli, &stats, NULL) != EVQ_OK) {
        return false;
    }
    *ret_gpus = 0;
    for (size_t i = 0; i < workers; i++) {
        const json_t *info = worker_of(stats, manager->services[i].pid);
        size_t index = 0;
        const json_t *slot = NULL;
        registered += info != NULL;
        json_array_foreach(json_object_get(info, "slots"), index, slot)
        {
            // A slot that shares the machine's GPUs waits for its own.
            *ret_gpus +=
                evq_json_integer(slot, "gpus", 0) + json_is_true(json_object_get(slot, "waits"));
        }
    }
    json_decref(stats);
    return registered == workers;
}

enum evq_status evq_process_manager_await_workers(struct evq_process_manager *manager,
                                                  struct evq_error *err)
{
    const size_t workers = manager->service_count - 1; // The last is the logger.
    const int64_t deadline = evq_clock_mono_ms() + READY_MS;
    enum evq_status status = EVQ_OK;
    int64_t gpus = 0;

    while (workers > 0 && !all_registered(manager, workers, &gpus)) {
        status = evq_process_manager_step(manager, -1, LOOK_MS, NULL, err);
        if (status != EVQ_OK || manager->stop_count > 0) {
            return status;
        }
        if (evq_clock_mono_ms() > deadline) {
            evq_cli_say(manager->cli, "evalq: not every worker has registered within %d s; see %s",
                        READY_MS / 1000, manager->logs[0]);
            return EVQ_OK;
        }
    }
    if (manager->devices != NULL && workers > 0 && gpus == 0) {
        evq_cli_say(manager->cli,
                    "evalq: --devices %s found no GPU here: the workers evaluate on the CPU",
                    manager->devices);
    }
    return EVQ_OK;
}

static bool has_persistent(const struct evq_config *config)
{
    for (size_t i = 0; i < config->suite_count; i++) {
        const struct evq_evaluator *evaluator =
            evq_config_evaluator(config, config->suites[i].evaluator);
        if (evaluator != NULL && evaluator->kind == EVQ_EVALUATOR_PERSISTENT) {
            return true;
        }
    }
    return false;
}

struct failed_start {      // A persistent evaluator of a slot that did not start.
    char note[NOTE_BYTES]; // The reason; "": no evaluator failed.
    bool is_final;         // Its jobs will fail. Otherwise the first job tries again.
};

/* Counts the slots that are starting their evaluators. */
static size_t slots_starting(const struct evq_process_manager *manager, size_t workers,
                             struct failed_start *ret_failed)
{
    json_t *stats = NULL;
    size_t starting = 0;
    *ret_failed = (struct failed_start){0};
    if (evq_view_stats(manager->cli, &stats, NULL) != EVQ_OK) {
        return workers; // Redis does not answer, so assume that all are starting.
    }
    for (size_t i = 0; i < workers; i++) {
        size_t index = 0;
        const json_t *slot = NULL;
        const json_t *info = worker_of(stats, manager->services[i].pid);
        starting += info == NULL && !evq_service_ended_for_good(&manager->services[i]);
        json_array_foreach(json_object_get(info, "slots"), index, slot)
        {
            const char *state = evq_json_text(slot, "state", "");
            const char *note = evq_json_text(slot, "note", "");
            starting +=
                strcmp(state, "starting") == 0 ||
                (strcmp(state, "down") == 0 && note[0] == '\0' && !evq_json_true(slot, "waits"));
            const char *evaluators = evq_json_text(slot, "evaluators", "ready");
            if (strcmp(evaluators, "ready") != 0) {
                evq_error_escape(note, strlen(note), ret_failed->note, NOTE_BYTES);
                ret_failed->is_final = strcmp(evaluators, "failed") == 0;
            }
        }
    }
    json_decref(stats);
    return starting;
}

enum evq_status evq_process_manager_await_evaluators(struct evq_process_manager *manager,
                                                     struct evq_error *err)
{
    const size_t workers = manager->service_count - 1; // The last is the logger.
    const int64_t began_ms = evq_clock_mono_ms();
    struct failed_start failed;
    char took[EVQ_TERMINAL_SPAN_BYTES];

    if (workers == 0 || !has_persistent(manager->cli->config)) {
        return EVQ_OK;
    }
    evq_cli_say(manager->cli,
                "evalq: the evaluators start; the command follows when they are ready "
                "(--at-once does not wait for them)");
    while (slots_starting(manager, workers, &failed) > 0) {
        const enum evq_status status = evq_process_manager_step(manager, -1, LOOK_MS, NULL, err);
        if (status != EVQ_OK || manager->stop_count > 0) {
            return status;
        }
    }
    if (failed.note[0] != '\0') {
        evq_cli_say(manager->cli, "evalq: warning: %s; %s", failed.note,
                    failed.is_final ? "its jobs will fail" : "the first job tries again");
    } else {
        evq_cli_say(manager->cli, "evalq: the evaluators are ready after %s",
                    evq_terminal_span(evq_clock_mono_ms() - began_ms, took));
    }
    return EVQ_OK;
}

/* Whether a worker serves the queue. True if Redis does not answer. */
static bool any_alive(const struct evq_process_manager *manager)
{
    json_t *stats = NULL;
    size_t index = 0;
    const json_t *worker = NULL;
    bool alive = false;
    if (evq_view_stats(manager->cli, &stats, NULL) != EVQ_OK) {
        return true;
    }
    json_array_foreach(json_object_get(stats, "workers"), index, worker)
    {
        alive = alive || strcmp(evq_json_text(worker, "state", ""), "alive") == 0;
    }
    json_decref(stats);
    return alive;
}

/* Whether a job with this reason waits for ever. The queue is private, so no other worker comes. */
static bool is_hopeless(const char *why)
{
    return strncmp(why, "no worker offers suite ", 23) == 0 ||
           strncmp(why, "no worker has the label ", 24) == 0;
}

bool evq_process_manager_is_stuck(const struct evq_process_manager *manager, const json_t *stats,
                                  const char **ret_why)
{
    const size_t workers = manager->service_count - 1; // The last is the logger.
    const json_t *states = json_object_get(stats, "states");
    size_t registered = 0;
    int64_t others = evq_json_integer(states, "queued", 0) +
                     evq_json_integer(states, "delayed", 0) +
                     evq_json_integer(states, "running", 0);
    const char *why = NULL;
    json_t *count = NULL;

    if (evq_option_integer(&manager->cli->options, "workers", -1) == 0) {
        return false;
    }
    for (size_t i = 0; i < workers; i++) {
        const bool is_there = worker_of(stats, manager->services[i].pid) != NULL;
        if (!is_there && !evq_service_ended_for_good(&manager->services[i])) {
            return false; // It is starting and may offer the suite later.
        }
        registered += is_there;
    }
    if (workers > 0 && registered == 0) {
        return false; // evq_process_manager_workers_left() knows why no worker runs.
    }
    json_object_foreach((json_t *)json_object_get(stats, "waiting"), why, count)
    {
        if (is_hopeless(why)) {
            others -= (int64_t)json_number_value(count);
            *ret_why = why;
        }
    }
    return *ret_why != NULL && others <= 0;
}

enum evq_status evq_process_manager_workers_left(struct evq_process_manager *manager,
                                                 struct evq_error *err)
{
    const size_t workers = manager->service_count - 1; // The last is the logger.
    const struct evq_service *first = &manager->services[0];
    char end[64];
    char line[384];

    for (size_t i = 0; i < workers; i++) {
        const struct evq_service *worker = &manager->services[i];
        if (worker->pid != 0 || !evq_service_ended_for_good(worker)) {
            return EVQ_OK;
        }
    }
    if (workers == 0 || any_alive(manager)) {
        return EVQ_OK;
    }
    evq_service_end_text(first->wait_status, end, sizeof end);
    evq_service_last_line(first, line, sizeof line);
    manager->cli->exit_code = WEXITSTATUS(first->wait_status);
    return evq_error_set(err, EVQ_E_INVALID, "%s %s: %s", first->name, end, line);
}
