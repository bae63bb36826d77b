/*
 * evalq up: runs Redis, workers, logger and gateway on this machine, as children of one process and
 * with all files in one directory.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "producer/cli/json.h"
#include "producer/cli/operate/suite_register.h"
#include "producer/cli/up/process_manager.h"
#include "producer/cli/up/training.h"
#include "producer/cli/verbs.h"
#include "shared/base/buffer.h"
#include "shared/base/file.h"

#define DEAD_RUNS_SHOWN 3

static enum evq_status resolve_directory(const char *given, char out[PATH_MAX],
                                         struct evq_error *err)
{
    if (mkdir(given, 0700) != 0 && errno != EEXIST) {
        return evq_error_set(err, EVQ_E_IO, "make the directory '%s': %s; name another with --dir",
                             given, strerror(errno));
    }
    if (realpath(given, out) == NULL) {
        return evq_error_set(err, EVQ_E_IO, "find the directory '%s': %s", given, strerror(errno));
    }
    struct stat info;
    if (stat(out, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is not a directory of this user", out);
    }
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "others may write to the directory '%s': run chmod go-w on it", out);
    }
    return EVQ_OK;
}

/* Makes a configuration if there is none: one root, and results in the same directory. */
static enum evq_status write_config(const char *directory, const char *path, struct evq_error *err)
{
    char here[PATH_MAX];
    struct evq_buffer text;
    if (getcwd(here, sizeof here) == NULL) {
        return evq_error_set(err, EVQ_E_IO, "find the working directory: %s", strerror(errno));
    }
    evq_buffer_init(&text, 65536);
    evq_buffer_text(&text, "# Written by `evalq up`. To change it, copy it to ./evalq.yaml; see "
                           "docs/configuration.md.\n"
                           "roots:\n  work: ");
    evq_buffer_json_text(&text, here);
    evq_buffer_text(&text, "\nlogger:\n  directory: ");
    char results[PATH_MAX + 16];
    (void)snprintf(results, sizeof results, "%s/results", directory);
    evq_buffer_json_text(&text, results);
    evq_buffer_text(&text, "\n");
    const char *string = evq_buffer_string(&text);
    enum evq_status status = string == NULL
                                 ? evq_error_set(err, EVQ_E_NOMEM, "the configuration")
                                 : evq_file_replace(path, string, strlen(string), 0600, err);
    evq_buffer_free(&text);
    return status;
}

/* The configuration of all processes: the user's, or the generated one. */
static enum evq_status choose_config(struct evq_cli *cli, const char *directory,
                                     struct evq_error *err)
{
    char path[EVQ_SERVER_PATH_MAX];
    char full[PATH_MAX];
    const char *file = evq_option_text(&cli->options, "config", getenv("EVALQ_CONFIG"));
    enum evq_status status = EVQ_OK;

    if (file == NULL || file[0] == '\0') {
        file = access("evalq.yaml", F_OK) == 0 ? "evalq.yaml" : NULL;
    }
    if (file == NULL) {
        status = evq_server_path(directory, "evalq.yaml", path, err);
        if (status == EVQ_OK && access(path, F_OK) != 0) {
            status = write_config(directory, path, err);
        }
        file = path;
    }
    if (status == EVQ_OK && realpath(file, full) == NULL) {
        cli->exit_code = EVQ_EXIT_CONFIG;
        status = evq_error_set(err, EVQ_E_NOT_FOUND, "the configuration '%s': %s", file,
                               strerror(errno));
    }
    if (status == EVQ_OK && setenv("EVALQ_CONFIG", full, 1) != 0) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the environment");
    }
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_config_source source = {.file = full,
                                       .queue = evq_option_text(&cli->options, "queue", NULL)};
    status = evq_config_load(&source, &cli->config, err);
    if (status != EVQ_OK) {
        cli->exit_code = EVQ_EXIT_CONFIG;
    }
    return status;
}

static void say_ready(const struct evq_process_manager *manager, bool has_command)
{
    const struct evq_cli *cli = manager->cli;
    size_t workers = manager->service_count - 1;
    evq_cli_say(cli, "evalq: %zu worker%s and the logger are up; configuration %s", workers,
                workers == 1 ? "" : "s", cli->config->file);
    evq_cli_say(cli, "evalq: Redis at %s", manager->server.url);
    evq_cli_say(cli, "evalq: and at redis://127.0.0.1:%d, password in %s", manager->server.port,
                manager->server.password_file);
    if (manager->page[0] != '\0') {
        evq_cli_say(cli, "evalq: page at %s%s%s", manager->page,
                    manager->page_key[0] != '\0' ? "" : " with a token of ",
                    manager->page_key[0] != '\0' ? "" : manager->gateway_tokens);
    }
    if (cli->config->suite_count == 0) {
        evq_cli_say(cli,
                    access("evalq.yaml", F_OK) != 0
                        ? "evalq: there is no evalq.yaml here, so nothing is evaluated: `evalq "
                          "init` writes one"
                        : "evalq: the configuration has no suites, so no worker was started: "
                          "jobs wait. `evalq init` shows the lines to add; docs/evaluators.md "
                          "explains them");
    }
    if (!has_command) {
        evq_cli_say(cli, "evalq: Ctrl-C stops everything; logs and data in %s", manager->directory);
    }
}

/* Names the runs that have dead jobs. A training that uses such a run's name again does not repeat
 * these jobs, so nothing else would mention them. */
static void say_dead(const struct evq_cli *cli)
{
    char *text = NULL;
    json_t *page = NULL;
    size_t index = 0;
    size_t said = 0;
    const json_t *row = NULL;

    if (evq_queue_runs(cli->queue, "", &text, NULL) != EVQ_OK ||
        evq_json_take(text, &page, NULL) != EVQ_OK) {
        return; // If Redis failed, the next call reports the error.
    }
    json_array_foreach(json_object_get(page, "runs"), index, row)
    {
        const char *run = evq_json_text(row, "run", "?");
        const int64_t dead = evq_json_integer(json_object_get(row, "counts"), "dead", 0);
        if (dead > 0 && ++said <= DEAD_RUNS_SHOWN) {
            evq_cli_say(cli,
                        "evalq: run %s has %" PRId64 " dead job%s from an earlier training: `evalq "
                        "dead %s` lists %s, and `evalq retry --dead --run %s` repeats %s",
                        run, dead, dead == 1 ? "" : "s", run, dead == 1 ? "it" : "them", run,
                        dead == 1 ? "it" : "them");
        }
    }
    if (said > DEAD_RUNS_SHOWN) {
        evq_cli_say(cli, "evalq: %zu more runs have dead jobs: `evalq dead` lists them",
                    said - DEAD_RUNS_SHOWN);
    }
    json_decref(page);
}

/* Runs until a signal arrives or a service fails for good. */
static enum evq_status serve(struct evq_process_manager *manager, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    while (status == EVQ_OK && manager->stop_count == 0) {
        status = evq_process_manager_step(manager, -1, 200, NULL, err);
    }
    return status;
}

static enum evq_status start_all(struct evq_process_manager *manager, struct evq_error *err)
{
    struct evq_cli *cli = manager->cli;
    enum evq_status status = evq_process_manager_start_server(manager, err);
    if (status == EVQ_OK) {
        status = evq_queue_open(cli->conn, cli->config->redis.queue, &cli->queue, err);
    }
    if (status == EVQ_OK) {
        const char *devices = evq_option_text(&cli->options, "devices", "cpu");
        manager->devices = strcmp(devices, "cpu") == 0 ? NULL : devices;
        int workers = manager->devices != NULL ? 1 : 2; // One has a slot for each of its GPUs.
        workers = (int)evq_option_integer(&cli->options, "workers", workers);
        workers = cli->config->suite_count > 0 ? workers : 0; // They would serve nothing.
        // Otherwise all workers would be refused if a suite changed since the last `up`.
        status = workers > 0 ? evq_suite_register_all(cli, err) : EVQ_OK;
        if (status == EVQ_OK) {
            status = evq_process_manager_start_workers(
                manager, workers, (int)evq_option_integer(&cli->options, "slots", 0), err);
        }
    }
    if (status == EVQ_OK && !evq_option_flag(&cli->options, "no-page")) {
        status = evq_process_manager_start_gateway(manager, err);
    }
    if (status == EVQ_OK) {
        status = evq_process_manager_await_workers(manager, err);
    }
    if (status == EVQ_OK) {
        status = evq_process_manager_await_gateway(manager, err);
    }
    if (status == EVQ_OK) {
        status = evq_server_announce(&manager->server, err);
    }
    return status;
}

static enum evq_status up_run(struct evq_cli *cli, struct evq_error *err)
{
    char directory[PATH_MAX];
    struct evq_process_manager *manager = NULL;
    char *const *command = cli->options.arg_count > 0 ? cli->options.args : NULL;
    if (evq_option_text(&cli->options, "url", NULL) != NULL) {
        return evq_cli_usage(cli, err, "up starts a redis-server of its own: --url is not for it");
    }
    enum evq_status status = command != NULL ? evq_service_command_check(command[0], err) : EVQ_OK;
    if (status != EVQ_OK) {
        return status;
    }
    status = resolve_directory(evq_option_text(&cli->options, "dir", ".evalq"), directory, err);
    if (status == EVQ_OK && (manager = calloc(1, sizeof *manager)) == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the manager");
    }
    if (status != EVQ_OK) {
        cli->exit_code = EVQ_EXIT_ERROR; // Not the code for a Redis that cannot be reached.
        return status;
    }
    status = evq_process_manager_open(manager, cli, directory, err);
    if (status == EVQ_OK) {
        status = choose_config(cli, directory, err);
        if (status == EVQ_OK) {
            status = start_all(manager, err);
        }
        if (status == EVQ_OK && manager->stop_count == 0) {
            say_ready(manager, command != NULL);
            say_dead(cli);
            if (command != NULL && !evq_option_flag(&cli->options, "at-once")) {
                status = evq_process_manager_await_evaluators(manager, err);
            }
        }
        if (status == EVQ_OK && manager->stop_count == 0) {
            int64_t wait_ms = 1000 * evq_option_integer(&cli->options, "wait", 3600);
            status = command != NULL ? evq_training_run(manager, command, wait_ms, err)
                                     : serve(manager, err);
        }
    }
    if (manager->stop_signal != 0) {
        evq_cli_say(cli, "evalq: stopping");
        if (command != NULL && status == EVQ_OK) {
            cli->exit_code = EVQ_EXIT_INTERRUPTED;
        }
    }
    evq_process_manager_stop(manager);
    free(manager);
    return status;
}

static const struct evq_option options[] = {
    {"dir", 'd', EVQ_OPTION_TEXT, "DIR",
     "directory of all data, sockets and logs; default ./.evalq", 0, 0},
    {"workers", 'w', EVQ_OPTION_INTEGER, "N", "worker processes; default 2, or 1 with GPUs", 0,
     EVQ_PROCESS_MANAGER_WORKERS_MAX},
    {"devices", 0, EVQ_OPTION_TEXT, "LIST",
     "GPUs that evaluate: auto, or numbers such as 0,1; default cpu", 0, 0},
    {"slots", 's', EVQ_OPTION_INTEGER, "N",
     "evaluations at a time in each worker; default as configured", 1, 1024},
    {"no-page", 0, EVQ_OPTION_FLAG, NULL, "do not serve the page", 0, 0},
    {"at-once", 0, EVQ_OPTION_FLAG, NULL,
     "with COMMAND: start it before the persistent evaluators are ready", 0, 0},
    {"wait", 0, EVQ_OPTION_INTEGER, "SECONDS",
     "with COMMAND: wait at most so long for its open jobs after it has ended; default 3600", 0,
     10000000},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_up = {
    .name = "up",
    .arguments = "[--dir DIR] [--workers N] [--slots N] [--devices LIST] [--no-page] "
                 "[--at-once] [-- COMMAND [ARGUMENT...]]",
    .summary = "Start Redis, workers, logger and page here, and stop them on Ctrl-C",
    .description =
        "Starts a private redis-server, workers, the logger and the page. All data is in one "
        "directory, ./.evalq. Other verbs and libevalq find the address of Redis in ./.evalq/url. "
        "If a process dies, `evalq up` starts it again. Ctrl-C or SIGTERM lets running evaluations "
        "finish, then stops everything. A second Ctrl-C does not wait.\n\nWithout an evalq.yaml, "
        "`evalq up` writes one to ./.evalq, with the working directory as its only root and "
        "without suites. `evalq init` writes one with a suite.\n\nThe page is served on a free "
        "port of 127.0.0.1, or on the address in the section `gateway` of the configuration. "
        "`evalq page` prints the address again, and --no-page turns the page off.\n\nWith a "
        "COMMAND, such as a training, `evalq up` first waits until the persistent evaluators are "
        "ready (not with --at-once). Then it runs the command with $EVALQ_URL and $EVALQ_CONFIG "
        "set, and prints results as they arrive. After the command has ended, it waits for the "
        "jobs that the command submitted, prints a summary and stops everything. It does not wait "
        "for jobs that no worker here can run. Ctrl-C and SIGTERM are passed on to the command, "
        "which can take as long as it needs to end. A second Ctrl-C kills the command.\n\nExit "
        "code 1: the command failed. 4: a job is dead, or no worker here can run it. 124: jobs "
        "were still open at the end of --wait.\n\nExamples: `evalq up`, `evalq up -- python "
        "train.py`",
    .options = options,
    .arg_min = 0,
    .arg_max = -1,
    .run = up_run,
};
