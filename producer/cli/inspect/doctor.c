/*
 * evalq doctor: makes every check that is possible on this machine and says how to fix each fault.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "producer/cli/inspect/health.h"
#include "producer/cli/json_table.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/queue/function_library.h"

#define DISK_LOW_BYTES ((uint64_t)1 << 30)
#define CLOCK_OFF_MS   2000

static void check_config(const struct evq_config *config, json_t *checks)
{
    if (config->file[0] == '\0') {
        evq_health_add(checks, "configuration", EVQ_HEALTH_NOTE,
                       "write ./evalq.yaml; see docs/configuration.md",
                       "no file: all defaults, without roots and suites");
        return;
    }
    evq_health_add(checks, "configuration", EVQ_HEALTH_OK, "",
                   "%s: roots %zu, suites %zu, evaluators %zu", config->file, config->root_count,
                   config->suite_count, config->evaluator_count);
}

static void check_roots(const struct evq_config *config, json_t *checks)
{
    for (size_t i = 0; i < config->root_count; i++) {
        const struct evq_root *root = &config->roots[i];
        struct stat info;
        if (root->is_remote) {
            evq_health_add(checks, "roots", EVQ_HEALTH_OK, "", "root %s: %s, a remote store",
                           root->name, root->path);
        } else if (stat(root->path, &info) != 0) {
            evq_health_add(checks, "roots", EVQ_HEALTH_FAIL,
                           "mount it here, or correct roots in the configuration",
                           "root %s: '%s': %s", root->name, root->path, strerror(errno));
        } else if (!S_ISDIR(info.st_mode) || access(root->path, R_OK | X_OK) != 0) {
            evq_health_add(checks, "roots", EVQ_HEALTH_FAIL, "this user must be able to read it",
                           "root %s: '%s' is not a directory that this user can read", root->name,
                           root->path);
        } else {
            evq_health_add(checks, "roots", EVQ_HEALTH_OK, "", "root %s: %s", root->name,
                           root->path);
        }
    }
}

static void check_evaluators(const struct evq_config *config, json_t *checks)
{
    for (size_t i = 0; i < config->evaluator_count; i++) {
        const struct evq_evaluator *evaluator = &config->evaluators[i];
        char path[PATH_MAX];
        bool good = evq_file_program_find(evaluator->argv[0], path, sizeof path);
        evq_health_add(checks, "evaluators", good ? EVQ_HEALTH_OK : EVQ_HEALTH_FAIL,
                       good ? "" : "install it, or correct its command in the configuration",
                       good ? "%s: %s" : "%s: the program '%s' is not there or cannot be run",
                       evaluator->name, evaluator->argv[0]);
    }
}

static void check_data_file(const struct evq_suite *suite, const struct evq_task_config *task,
                            const struct evq_pair *pair, json_t *checks)
{
    if (!evq_config_is_data_path(pair->key) || pair->value[0] != '/') {
        return; // No path, or an address.
    }
    if (access(pair->value, R_OK) != 0) {
        evq_health_add(checks, "data", EVQ_HEALTH_FAIL, "put it there, or correct the task's data",
                       "suite %s, task %s, %s: '%.300s': %s", suite->name, task->name, pair->key,
                       pair->value, strerror(errno));
    }
}

static void check_suites(const struct evq_config *config, json_t *checks)
{
    size_t before = json_array_size(checks);
    for (size_t i = 0; i < config->suite_count; i++) {
        const struct evq_suite *suite = &config->suites[i];
        for (size_t t = 0; t < suite->task_count; t++) {
            for (size_t d = 0; d < suite->tasks[t].data_count; d++) {
                check_data_file(suite, &suite->tasks[t], &suite->tasks[t].data[d], checks);
            }
        }
    }
    if (config->suite_count > 0 && json_array_size(checks) == before) {
        evq_health_add(checks, "data", EVQ_HEALTH_OK, "",
                       "the data files of all suites are there (%zu)", config->suite_count);
    }
}

static void check_gpu(json_t *checks)
{
    static const char *const places[] = {"", "../lib/", "../lib/evalq/"};
    char self[PATH_MAX];
    char path[PATH_MAX + 64];
    bool has_gpu = access("/dev/nvidiactl", F_OK) == 0;
    const char *why = NULL;
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    self[bytes > 0 ? bytes : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        (void)snprintf(path, sizeof path, "%s%slibevalq_cuda.so", self, places[i]);
        if (access(path, F_OK) != 0) {
            continue;
        }
        void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (module != NULL) {
            evq_health_add(checks, "GPU", has_gpu ? EVQ_HEALTH_OK : EVQ_HEALTH_NOTE, "",
                           "the module %s loads%s", path,
                           has_gpu ? "" : "; this host has no NVIDIA GPU");
            return;
        }
        why = dlerror();
    }
    evq_health_add(checks, "GPU", has_gpu ? EVQ_HEALTH_WARN : EVQ_HEALTH_NOTE,
                   has_gpu ? "install the CUDA libraries that it names, or build with nvcc" : "",
                   "%s: %s", has_gpu ? "there is a GPU, but no module that loads" : "CPU only",
                   why != NULL ? why : "libevalq_cuda.so is not installed");
}

static void check_disk(const char *what, const char *path, json_t *checks)
{
    struct statvfs info;
    char shown[EVQ_TERMINAL_SPAN_BYTES];
    char parent[PATH_MAX];
    (void)snprintf(parent, sizeof parent, "%s", path);
    while (statvfs(parent, &info) !=
           0) { // A directory that does not exist yet will be on its parent's disk.
        char *slash = strrchr(parent, '/');
        if (errno != ENOENT || slash == NULL || slash == parent) {
            evq_health_add(checks, "disk", EVQ_HEALTH_NOTE, "", "%s: '%s': %s", what, path,
                           strerror(errno));
            return;
        }
        *slash = '\0';
    }
    uint64_t free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    evq_terminal_bytes((int64_t)(free_bytes > INT64_MAX ? INT64_MAX : free_bytes), shown);
    bool low = free_bytes < DISK_LOW_BYTES;
    evq_health_add(checks, "disk", low ? EVQ_HEALTH_WARN : EVQ_HEALTH_OK,
                   low ? "free some space" : "", "%s: %s free at %s", what, shown, path);
}

/* Finds the directory of the logger: that of the configuration, otherwise the results of `evalq
 * up`, which are beside its address file. */
static const char *results_directory(const struct evq_config *config, char out[PATH_MAX])
{
    char line[PATH_MAX] = "";
    const bool by_default = strcmp(config->logger.directory, EVQ_CONFIG_RESULTS_DEFAULT) == 0;
    FILE *file = by_default ? fopen(".evalq/url", "re") : NULL;
    if (file == NULL) {
        return config->logger.directory;
    }
    const bool read = fgets(line, sizeof line, file) != NULL;
    (void)fclose(file); // Read only.
    line[strcspn(line, "\n")] = '\0';
    // The `up` may run another server than the one that is checked here.
    char real[PATH_MAX];
    const bool same = read && strcmp(line, config->redis.url) == 0;
    return same && realpath(".evalq", real) != NULL &&
                   snprintf(out, PATH_MAX, "%s/results", real) < PATH_MAX
               ? out
               : config->logger.directory;
}

static void check_here(const struct evq_config *config, json_t *checks)
{
    char results[PATH_MAX];
    check_config(config, checks);
    check_roots(config, checks);
    check_evaluators(config, checks);
    check_suites(config, checks);
    check_gpu(checks);
    check_disk("scratch", config->worker.scratch, checks);
    check_disk("results", results_directory(config, results), checks);
}

/* The function library, the round trip to it and the server's clock, all from one question. */
static void check_functions(struct evq_cli *cli, json_t *checks)
{
    struct evq_queue_info info;
    struct evq_error err = {0};
    char took[EVQ_TERMINAL_SPAN_BYTES];
    char off_text[EVQ_TERMINAL_SPAN_BYTES];
    int64_t before = evq_clock_unix_ms();
    int64_t begin = evq_clock_mono_us();
    enum evq_status status = evq_queue_info(cli->queue, &info, &err);
    if (status != EVQ_OK) {
        evq_health_add(checks, "functions", EVQ_HEALTH_FAIL,
                       status == EVQ_E_VERSION ? "evalq admin install" : "", "%s", err.message);
        cli->exit_code = (int)evq_status_exit_code(status);
        return;
    }
    evq_health_add(checks, "functions", EVQ_HEALTH_OK, "", EVQ_FUNCTIONS_LIBRARY " build %" PRId64,
                   info.build);
    int64_t trip_us = evq_clock_mono_us() - begin;
    int64_t off = info.now_ms - before - trip_us / 2000;
    int64_t size = off < 0 ? -off : off;
    evq_health_add(checks, "round trip", trip_us < 100000 ? EVQ_HEALTH_OK : EVQ_HEALTH_WARN, "",
                   "%s", evq_terminal_took(trip_us, took));
    evq_health_add(checks, "clock", size < CLOCK_OFF_MS ? EVQ_HEALTH_OK : EVQ_HEALTH_NOTE,
                   size < CLOCK_OFF_MS
                       ? ""
                       : "set it by NTP: a run that is started again is the newer one by its "
                         "host's clock; all else goes by the server's",
                   "this host's clock is %s %s the server's", evq_terminal_span(size, off_text),
                   off < 0 ? "ahead of" : "behind");
}

/* Turns an error such as EVQ_E_IO into a failed check, so that the list is still printed. */
static void connection_failed(struct evq_cli *cli, enum evq_status status,
                              const struct evq_error *why, json_t *checks)
{
    const char *advice = "is the server running, and the address right? `evalq up` starts one";
    if (status == EVQ_E_AUTH || cli->exit_code == EVQ_EXIT_CONFIG) {
        advice = "check address, user and password file";
    } else if (status == EVQ_E_RETRY) {
        advice = ""; // It runs and has logged what it waits for.
    }
    evq_health_add(checks, "connection", EVQ_HEALTH_FAIL, advice, "%s", why->message);
    cli->exit_code = cli->exit_code != 0 ? cli->exit_code : (int)evq_status_exit_code(status);
    if (cli->exit_code == EVQ_EXIT_TIMEOUT) {
        cli->exit_code = EVQ_EXIT_UNREACHABLE;
    }
    struct evq_error busy = {EVQ_OK, ""};
    if (status == EVQ_E_RETRY && evq_health_server(cli, checks, &busy) != EVQ_OK) {
        evq_health_add(checks, "server", EVQ_HEALTH_NOTE, "", "%s", busy.message);
    }
}

static enum evq_status check_server(struct evq_cli *cli, json_t *checks, struct evq_error *err)
{
    static const char *const ping[] = {"PING"};
    struct evq_reply *reply = NULL;
    json_t *stats = NULL;
    enum evq_status status = evq_cli_connect(cli, err);
    if (status == EVQ_OK) {
        status = evq_conn_call(cli->conn, 1, ping, NULL, 0, &reply, err);
    }
    evq_reply_free(reply);
    if (status != EVQ_OK) {
        connection_failed(cli, status, err, checks);
        return EVQ_OK;
    }
    evq_health_add(checks, "connection", EVQ_HEALTH_OK, "", "%s, queue %s",
                   evq_conn_where(cli->conn), evq_queue_name(cli->queue));
    status = evq_health_server(cli, checks, err);
    if (status != EVQ_OK) {
        return status;
    }
    check_functions(cli, checks);
    if (cli->exit_code == 0) {
        status = evq_view_stats(cli, &stats, err);
        if (status == EVQ_OK) {
            evq_health_queue(stats, checks);
        }
        json_decref(stats);
    }
    return status;
}

static void cell_level(struct evq_table *table, const json_t *check)
{
    static const enum evq_colour colours[] = {EVQ_COLOUR_GREEN, EVQ_COLOUR_NONE, EVQ_COLOUR_YELLOW,
                                              EVQ_COLOUR_RED};

    evq_table_cell(table, colours[evq_health_level(check)], "%s",
                   evq_json_text(check, "level", "?"));
}

static void cell_found(struct evq_table *table, const json_t *check)
{
    const char *advice = evq_json_text(check, "advice", "");

    evq_table_cell(table, EVQ_COLOUR_NONE, "%s%s%s", evq_json_text(check, "text", "?"),
                   advice[0] != '\0' ? " -> " : "", advice);
}

static enum evq_status print_checks(const struct evq_cli *cli, const json_t *checks,
                                    struct evq_error *err)
{
    static const struct evq_column columns[] = {
        {"", .cell = cell_level},
        {"CHECK", .key = "check"},
        {"FOUND", .cell = cell_found},
    };
    static const struct evq_json_table table = {EVQ_COLUMNS(columns)};
    struct evq_terminal uncut = cli->terminal;

    uncut.width = 0; // Advice is useless if it is cut.
    return evq_json_table_print(&table, checks, &uncut, err);
}

static enum evq_status doctor_run(struct evq_cli *cli, struct evq_error *err)
{
    json_t *checks = json_array();
    int counts[4] = {0};
    size_t index = 0;
    const json_t *check = NULL;
    enum evq_status status = evq_cli_config(cli, err);
    if (status == EVQ_OK) {
        status = check_server(cli, checks, err);
    }
    if (status == EVQ_OK) {
        check_here(cli->config, checks);
        json_array_foreach(checks, index, check)
        {
            counts[evq_health_level(check)]++;
        }
        if (cli->exit_code == 0 && counts[EVQ_HEALTH_FAIL] > 0) {
            cli->exit_code = EVQ_EXIT_ERROR;
        }
    }
    if (status == EVQ_OK && cli->terminal.json) {
        status = evq_json_print(json_pack("{s:i, s:i, s:O}", "failed", counts[EVQ_HEALTH_FAIL],
                                          "warned", counts[EVQ_HEALTH_WARN], "checks", checks),
                                err);
    } else if (status == EVQ_OK) {
        status = print_checks(cli, checks, err);
        evq_cli_say(cli, "evalq: %d failed, %d warnings", counts[EVQ_HEALTH_FAIL],
                    counts[EVQ_HEALTH_WARN]);
    }
    json_decref(checks);
    return status;
}

const struct evq_verb evq_verb_doctor = {
    .name = "doctor",
    .arguments = "[--json]",
    .summary = "Check server, configuration and this host, and say what to do",
    .description =
        "Checks the server: connection, version, function library, append-only file, "
        "eviction and clock. Checks the workers and sinks of the queue. Checks this host: "
        "roots, programs of evaluators, data files, GPU module and disk space. Each problem "
        "comes with what to do.\n\nExit code 1: a check failed. 5, 6 or 7: the server, a "
        "permission or the function library failed.\n\nExample: `evalq doctor`",
    .arg_min = 0,
    .arg_max = 0,
    .run = doctor_run,
};
